//! Reports by hand, and their published parts.

use super::*;

/// The published report if nothing is hidden.
fn report(state: Value) -> Value {
    super::report(state, |_| false)
}

fn interface(name: &str, kind: &str, state: &str) -> Value {
    json!({ "name": name, "type": kind, "state": state })
}

fn route(destination: &str, through: Option<&str>) -> Value {
    let mut route = json!({ "destination": destination, "table-id": 254 });
    if let Some(through) = through {
        route["next-hop-interface"] = json!(through);
    }
    route
}

// nmstate#9
#[test]
fn unmanaged_veths_and_their_routes_are_hidden() {
    let routes = |names: &[Option<&str>]| -> Value {
        names
            .iter()
            .map(|through| route("198.51.100.0/24", *through))
            .collect()
    };
    let published = report(json!({
        "interfaces": [
            interface("veth0", "veth", "ignore"),
            interface("veth1", "veth", "up"),
            interface("cali0", "unknown", "ignore"),
            interface("eth0", "ethernet", "up"),
        ],
        "routes": {
            "running": routes(&[Some("veth0"), Some("veth1"), None, Some("cali0")]),
            "config": routes(&[Some("veth0"), Some("eth0")]),
        },
    }));
    assert_eq!(
        published,
        json!({
            "interfaces": [
                interface("veth1", "veth", "up"),
                interface("cali0", "unknown", "ignore"),
                interface("eth0", "ethernet", "up"),
            ],
            "routes": { "running": routes(&[Some("veth1"), Some("cali0")]), "config": routes(&[Some("eth0")]) },
        })
    );
}

#[test]
fn routes_have_both_lists() {
    let published = report(json!({ "interfaces": [], "routes": {} }));
    assert_eq!(
        published,
        json!({ "interfaces": [], "routes": { "config": [], "running": [] } })
    );
    assert_eq!(report(json!({ "interfaces": [] })), json!({ "interfaces": [] }));
}

// nmstate#10
#[test]
fn bridge_timers_are_removed() {
    let bridge = |kind: &str, options: Value| {
        json!({
            "interfaces": [{
                "name": "br1", "type": kind, "state": "up",
                "bridge": { "options": options, "port": [{ "name": "eth1" }] },
            }],
        })
    };
    let given =
        json!({ "gc-timer": 29, "group-addr": "01:80:C2:00:00:00", "hello-timer": 1, "hash-max": 4096 });
    let left = json!({ "group-addr": "01:80:C2:00:00:00", "hash-max": 4096 });
    assert_eq!(
        report(bridge("linux-bridge", given.clone())),
        bridge("linux-bridge", left)
    );
    let other = bridge("ovs-bridge", given);
    assert_eq!(report(other.clone()), other);
}

// nmstate#11
#[test]
fn address_lifetimes_are_removed() {
    let given = json!({ "interfaces": [{
        "name": "eth0", "type": "ethernet", "state": "up",
        "ipv4": { "enabled": true, "address": [{
            "ip": "192.0.2.2", "prefix-length": 24, "preferred-life-time": "42sec", "valid-life-time": "43sec",
        }] },
        "ipv6": { "enabled": true, "address": [
            { "ip": "2001:db8::2", "prefix-length": 64, "valid-life-time": "forever" },
            { "ip": "fe80::1", "prefix-length": 64 },
        ] },
    }] });
    let left = json!({ "interfaces": [{
        "name": "eth0", "type": "ethernet", "state": "up",
        "ipv4": { "enabled": true, "address": [{ "ip": "192.0.2.2", "prefix-length": 24 }] },
        "ipv6": { "enabled": true, "address": [
            { "ip": "2001:db8::2", "prefix-length": 64 }, { "ip": "fe80::1", "prefix-length": 64 },
        ] },
    }] });
    assert_eq!(report(given), left);
}

// nmstate#12
#[test]
fn empty_bridge_mappings_become_an_empty_section() {
    let mapping =
        json!({ "bridge-mappings": [{ "localnet": "blue", "bridge": "br-ex", "state": "present" }] });
    for (given, left) in [
        (json!({}), json!({})),
        (json!({ "bridge-mappings": [] }), json!({})),
        (mapping.clone(), mapping),
    ] {
        let published = report(json!({ "interfaces": [], "ovn": given }));
        assert_eq!(published["ovn"], left);
    }
    assert_eq!(report(json!({ "interfaces": [] })).get("ovn"), None);
}

// nmstate#13
#[test]
fn only_published_sections_remain() {
    let published = report(json!({
        "description": "a host",
        "hostname": { "running": "node01", "config": "node01" },
        "dns-resolver": {
            "config": { "search": ["example.org"], "server": ["192.0.2.1"], "options": ["rotate"] },
            "running": { "search": [], "server": ["2001:db8::1"], "options": [] },
        },
        "route-rules": { "config": [{ "priority": 1000, "route-table": 200 }] },
        "interfaces": [],
        "ovs-db": { "external_ids": {} },
    }));
    assert_eq!(
        published,
        json!({
            "dns-resolver": {
                "config": { "search": ["example.org"], "server": ["192.0.2.1"] },
                "running": { "search": [], "server": ["2001:db8::1"] },
            },
            "interfaces": [],
        })
    );
}

// nmstate#14
#[test]
fn numeric_names_stay_strings() {
    for name in ["1e3", "0042", "60.0", "0x1F", "null", "true"] {
        let yaml = format!("interfaces:\n- name: \"{name}\"\n  type: ethernet\n  state: up\n");
        let state = nmstate::NetworkState::new_from_yaml(&yaml).expect("a state");
        let published = report(serde_json::to_value(&state).expect("a document"));
        let text = published.to_string();
        assert!(text.contains(&format!("\"name\":\"{name}\"")), "{text}");
        assert_eq!(published["interfaces"][0]["name"], *name);
    }
}

#[test]
fn names_of_the_old_filter_are_hidden() {
    let hidden = names::Names::new("{veth*,cali*}");
    let given = json!({
        "interfaces": [interface("veth1", "veth", "up"), interface("eth0", "ethernet", "up")],
        "routes": { "running": [route("192.0.2.0/24", Some("veth1"))], "config": [] },
    });
    assert_eq!(
        super::report(given, |name| hidden.contains(name)),
        json!({
            "interfaces": [interface("eth0", "ethernet", "up")],
            "routes": { "config": [], "running": [] },
        })
    );
}

#[test]
fn malformed_state_does_not_panic() {
    for odd in [
        json!(null),
        json!([]),
        json!({ "interfaces": 1, "routes": 2, "dns-resolver": 3, "ovn": 4 }),
        json!({ "interfaces": [1, { "name": 2, "bridge": [], "ipv4": { "address": [3] } }], "routes": { "running": [4] } }),
    ] {
        report(odd);
    }
}
