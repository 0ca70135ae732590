use rstest::rstest;

use super::*;

fn normalised(mut value: Value) -> Value {
    document(&mut value);
    value
}

fn interface_of(value: &Value) -> Value {
    normalised(json!({ "interfaces": [value] }))["interfaces"][0].take()
}

// nmstate#85
#[rstest]
#[case::autoconf(json!({"ipv6": {"enabled": true, "autoConf": true, "dhcp": false}}), json!({"ipv6": {"enabled": true, "autoconf": true, "dhcp": false}}))]
#[case::mac(json!({"macAddress": "02:00:00:00:00:01"}), json!({"mac-address": "02:00:00:00:00:01"}))]
#[case::bond(json!({"linkaggregation": {"mode": "active-backup", "slaves": ["eth1", "eth2"]}}), json!({"link-aggregation": {"mode": "active-backup", "port": ["eth1", "eth2"]}}))]
#[case::bond_items(json!({"linkAggregation": {"slaves": {"items": ["eth1"]}}}), json!({"link-aggregation": {"port": ["eth1"]}}))]
#[case::bond_of_2019(json!({"link-aggregation": {"slaves": ["eth1"]}}), json!({"link-aggregation": {"port": ["eth1"]}}))]
#[case::vlan(json!({"type": "vlan", "vlanID": 101, "vlanbase": "eth1"}), json!({"type": "vlan", "vlan": {"id": 101, "base-iface": "eth1"}}))]
#[case::bridge_ports(json!({"bridge": {"ports": [{"name": "eth1"}]}}), json!({"bridge": {"port": [{"name": "eth1"}]}}))]
#[case::bridge_names(json!({"bridge": {"slaves": ["eth1"]}}), json!({"bridge": {"port": [{"name": "eth1"}]}}))]
#[case::reported(json!({"name": "eth1", "ifIndex": 3, "adminStatus": "UP", "linkStatus": "UP", "statistics": {}, "capabilities": []}), json!({"name": "eth1"}))]
fn old_spellings_are_rewritten(#[case] old: Value, #[case] new: Value) {
    assert_eq!(interface_of(&old), new);
}

#[test]
fn old_key_beside_the_new_one_stays() {
    let both = json!({"mac-address": "02:00:00:00:00:01", "macAddress": "02:00:00:00:00:02"});
    assert_eq!(interface_of(&both), both);
    let both = json!({"vlan": {"id": 1}, "vlanID": 2});
    assert_eq!(interface_of(&both), both);
}

// nmstate#86
#[rstest]
#[case::absent(json!(null), false)]
#[case::empty(json!({}), false)]
#[case::null(json!({"interfaces": null}), false)]
#[case::no_items(json!({"interfaces": [], "routes": {"config": []}}), false)]
#[case::interface(json!({"interfaces": [{"name": "eth1"}]}), true)]
#[case::purged_dns(json!({"dns-resolver": {"config": {"server": ["192.0.2.1"]}}}), true)]
fn empty_document_has_no_content(#[case] document: Value, #[case] expected: bool) {
    assert_eq!(has_content(&document), expected);
}

#[test]
fn empty_and_reported_only_members_are_dropped() {
    let old =
        json!({"interfaces": null, "routes": null, "capabilities": ["bond"], "dns-resolver": {"config": {}}});
    assert_eq!(normalised(old), json!({"dns-resolver": {"config": {}}}));
}

#[test]
fn present_and_malformed_documents_stay() {
    for document in [
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up", "ipv6": {"autoconf": true},
            "bridge": {"port": [{"name": "eth1", "vlan": {}}]}}]}),
        json!({"interfaces": "{{ capture.lldp.interfaces }}"}),
        json!({"interfaces": ["eth1", 3, null, {"bridge": "x", "ipv6": [], "link-aggregation": 1}]}),
        json!({"interfaces": {"items": []}}),
        json!([1]),
        json!("text"),
        json!(null),
    ] {
        assert_eq!(normalised(document.clone()), document);
    }
}

#[test]
fn renamed_keys_keep_their_positions() {
    let text = interface_of(&json!({"name": "b", "macAddress": "m", "mtu": 1})).to_string();
    assert_eq!(text, r#"{"name":"b","mac-address":"m","mtu":1}"#);
}
