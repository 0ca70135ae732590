use rstest::rstest;

use super::*;

/// A report with neighbours as the engine reports them.
fn report() -> Value {
    let neighbour = |vlans: &[u16]| {
        let vlans: Vec<Value> = vlans
            .iter()
            .map(|vid| json!({"name": format!("v{vid}"), "vid": vid}))
            .collect();
        json!([
            {"type": 5, "system-name": "switch"},
            {"type": 127, "ieee-802-3-max-frame-size": 1522, "oui": "00:12:0f", "subtype": 4},
            {"type": 127, "ieee-802-1-ppvids": [103], "oui": "00:80:c2", "subtype": 2},
            {"type": 127, "ieee-802-1-vlans": vlans, "oui": "00:80:c2", "subtype": 3},
        ])
    };
    json!({"interfaces": [
        {"name": "lo", "type": "loopback", "state": "up"},
        {"name": "eth1", "type": "ethernet", "state": "up", "lldp": {"enabled": true, "neighbors": [neighbour(&[101, 102])]}},
        {"name": "eth2", "type": "ethernet", "state": "up", "lldp": {"enabled": true, "neighbors": [neighbour(&[103])]}},
        {"name": "eth3", "type": "ethernet", "state": "up", "lldp": {"enabled": false}},
        {"name": "eth4", "type": "ethernet", "state": "ignore"},
        {"name": "eth5", "type": "ethernet", "state": "down"},
        {"name": "br1", "type": "linux-bridge", "state": "up"},
    ]})
}

fn policy(spec: &Value) -> OriginalPolicy {
    OriginalPolicy::of(spec).expect("sense").expect("an old policy")
}

fn names(document: &Value) -> Vec<&str> {
    interfaces(document)
        .map(|interface| text(interface, "name"))
        .collect()
}

// nmstate#91
#[test]
fn nameless_interface_stands_for_the_matching_one() {
    let policy = policy(&json!({
        "match": {"interfaces": {"name": "eth1", "type": "ethernet"}},
        "desiredState": {"interfaces": [{"ipv4": {"enabled": true, "dhcp": true}}]},
    }));
    assert_eq!(
        document(&policy, &report()),
        Ok(json!({"interfaces": [
            {"name": "eth1", "type": "ethernet", "state": "up", "ipv4": {"enabled": true, "dhcp": true}},
        ]}))
    );
    let without = json!({"interfaces": [{"name": "eth7", "type": "ethernet", "state": "up"}]});
    assert_eq!(document(&policy, &without), Ok(Value::Null));
}

#[rstest]
#[case::name(json!({"name": "eth1"}), &["eth1"])]
#[case::all_keys(json!({"name": "eth1", "type": "linux-bridge"}), &[])]
#[case::any_rule(json!([{"name": "eth1"}, {"type": "linux-bridge"}]), &["eth1", "br1"])]
#[case::unmanaged(json!({"name": "eth4"}), &[])]
#[case::down(json!({"type": "ethernet"}), &["eth1", "eth2", "eth3", "eth5"])]
#[case::vlan(json!({"lldp": {"vlan-ids": [102, 7]}}), &["eth1"])]
#[case::ppvid_is_no_vlan(json!({"lldp": {"vlan-ids": [103]}}), &["eth2"])]
#[case::no_neighbour(json!({"lldp": {"vlan-ids": [9]}}), &[])]
fn rule_matches_interfaces(#[case] rules: Value, #[case] matched: &[&str]) {
    let policy = policy(&json!({
        "match": {"interfaces": rules},
        "desiredState": {"interfaces": [{"mtu": 9000}]},
    }));
    let document = document(&policy, &report()).expect("a document");
    assert_eq!(names(&document), matched);
}

// nmstate#104
#[test]
fn ethernet_rule_matches_a_veth_except_with_the_kernel_backend() {
    let report = json!({"interfaces": [
        {"name": "eth1", "type": "ethernet", "state": "up"},
        {"name": "veth1", "type": "veth", "state": "up", "veth": {"peer": "veth2"}},
        {"name": "veth7", "type": "veth", "state": "ignore"},
        {"name": "br1", "type": "linux-bridge", "state": "up"},
    ]});
    let matched = |kind: &str, excludes_veths: bool| -> Vec<String> {
        let mut policy = policy(&json!({
            "match": {"interfaces": {"type": kind}},
            "desiredState": {"interfaces": [{"mtu": 9000}]},
        }));
        policy.excludes_veths = excludes_veths;
        let document = document(&policy, &report).expect("a document");
        names(&document).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(matched("ethernet", false), ["eth1", "veth1"]);
    assert_eq!(matched("ethernet", true), ["eth1"]);
    assert_eq!(matched("veth", true), ["veth1"]);
}

#[test]
fn named_interfaces_are_copied_and_duplicates_merged() {
    let policy = policy(&json!({
        "match": {"interfaces": [{"name": "eth1"}, {"name": "eth2"}]},
        "desiredState": {
            "dns-resolver": {"config": {"server": ["192.0.2.1"]}},
            "interfaces": [
                {"state": "down", "mtu": 9000},
                {"ipv4": {"enabled": false}},
                {"name": "eth2", "mtu": 1400},
                {"name": "br7", "type": "linux-bridge"},
            ],
        },
    }));
    assert_eq!(
        document(&policy, &report()),
        Ok(json!({
            "dns-resolver": {"config": {"server": ["192.0.2.1"]}},
            "interfaces": [
                {"name": "eth1", "type": "ethernet", "state": "up", "mtu": 9000, "ipv4": {"enabled": false}},
                {"name": "eth2", "type": "ethernet", "state": "up", "mtu": 1400, "ipv4": {"enabled": false}},
                {"name": "br7", "type": "linux-bridge"},
            ],
        }))
    );
}

#[test]
fn lldp_is_enabled_only_for_rules_with_vlans() {
    let with = |rules: Value| policy(&json!({"match": {"interfaces": rules}}));
    let vlans = with(json!({"type": "ethernet", "lldp": {"vlan-ids": [101]}}));
    assert_eq!(
        lldp_document(&vlans, &report()),
        json!({"interfaces": [{"name": "eth3", "type": "ethernet", "state": "up", "lldp": {"enabled": true}}]})
    );
    assert!(!has_neighbours(&vlans, &report()), "eth3 has no neighbour");
    let heard = with(json!([{"name": "eth1", "lldp": {"vlan-ids": [101]}}, {"name": "eth3"}]));
    assert_eq!(lldp_document(&heard, &report()), Value::Null);
    assert!(has_neighbours(&heard, &report()));
}

#[test]
fn malformed_report_does_not_panic() {
    let policy = policy(&json!({"match": {"interfaces": {"lldp": {"vlan-ids": [101]}}}}));
    for report in [
        json!(null),
        json!({"interfaces": {}}),
        json!({"interfaces": [1, {"lldp": []}, {"name": 3, "state": "up", "lldp": {"neighbors": [[1], {}, [{"type": 127, "ieee-802-1-vlans": 1}]]}}]}),
    ] {
        assert_eq!(document(&policy, &report), Ok(Value::Null));
        assert_eq!(lldp_document(&policy, &report), Value::Null);
    }
}
