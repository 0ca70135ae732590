use serde_json::json;

use super::*;

/// A host whose gateway is behind a VLAN on a bridge over `eth1`, with two interfaces and a bridge without addresses.
fn report() -> Value {
    let off = json!({ "enabled": false });
    let on = json!({ "enabled": true, "dhcp": true });
    json!({
        "interfaces": [
            { "name": "br1", "type": "linux-bridge", "state": "up", "ipv4": off, "ipv6": off,
              "bridge": { "port": [{ "name": "eth1" }] } },
            { "name": "br1.100", "type": "vlan", "state": "up", "ipv4": on, "ipv6": off,
              "vlan": { "base-iface": "br1", "id": 100 } },
            { "name": "br2", "type": "linux-bridge", "state": "up", "ipv4": off, "ipv6": off,
              "bridge": { "port": [{ "name": "eth2" }] } },
            { "name": "eth1", "type": "ethernet", "state": "up", "ipv4": off, "ipv6": off, "controller": "br1",
              "profile-name": "uplink", "alt-names": [{ "name": "enp1s0" }] },
            { "name": "eth2", "type": "ethernet", "state": "up", "ipv4": off, "ipv6": off, "controller": "br2" },
            { "name": "eth3", "type": "ethernet", "state": "up", "ipv4": off },
            { "name": "eth4", "type": "ethernet", "state": "up", "ipv4": off, "ipv6": on },
            { "name": "tun0", "type": "tun", "state": "up" },
        ],
        "routes": { "running": [
            { "destination": "0.0.0.0/0", "next-hop-interface": "br1.100", "next-hop-address": "192.0.2.1" },
            { "destination": "198.51.100.0/24", "next-hop-interface": "tun0" },
        ] },
        "dns-resolver": { "running": { "server": ["192.0.2.1"] } },
    })
}

fn may(interfaces: &Value) -> bool {
    may_change(&json!({ "interfaces": interfaces }), &report())
}

// nmstate#120
#[test]
fn interface_without_address_keeps_the_targets() {
    for interfaces in [
        json!([{ "name": "br9", "type": "linux-bridge", "state": "up",
            "bridge": { "options": { "stp": { "enabled": false } }, "port": [] } }]),
        json!([{ "name": "br9", "type": "linux-bridge", "state": "up", "mtu": 9000,
            "ipv4": { "enabled": false }, "ipv6": { "enabled": false },
            "bridge": { "port": [{ "name": "eth3", "vlan": { "mode": "trunk",
                "trunk-tags": [{ "id-range": { "min": 2, "max": 4094 } }] } }] } }]),
        json!([{ "name": "br2", "type": "linux-bridge", "state": "absent" }]),
        json!([
            { "name": "bond9", "type": "bond", "state": "up",
              "link-aggregation": { "mode": "active-backup", "port": ["eth3"], "options": { "miimon": 100 } } },
            { "name": "bond9.101", "type": "vlan", "state": "up", "vlan": { "base-iface": "bond9", "id": 101 } },
        ]),
        json!([]),
    ] {
        assert!(!may(&interfaces), "{interfaces:#}");
    }
}

// nmstate#120
#[test]
fn interface_with_address_may_alter_the_targets() {
    let bridge = |more: Value| {
        let mut bridge = json!({ "name": "br9", "type": "linux-bridge", "state": "up" });
        for (key, value) in more.as_object().expect("members") {
            bridge[key] = value.clone();
        }
        json!([bridge])
    };
    let over = |port: &str| bridge(json!({ "bridge": { "port": [{ "name": port }] } }));
    for interfaces in [
        bridge(json!({ "ipv4": { "enabled": true, "dhcp": true } })),
        // The library reads this as true.
        bridge(json!({ "ipv6": { "enabled": "yes" } })),
        bridge(json!({ "ipv4": { "address": [] } })),
        bridge(json!({ "dispatch": { "post-activation": "ip route flush table main" } })),
        bridge(json!({ "identifier": "mac-address" })),
        bridge(json!({ "copy-mac-from": "eth3" })),
        over("eth1"),
        over("enp1s0"),
        over("uplink"),
        over("eth4"),
        over("tun0"),
        over("sriov:eth3:2"),
        json!([{ "name": "br1", "type": "linux-bridge", "state": "absent" }]),
        json!([{ "name": "br1.100", "type": "vlan", "state": "up" }]),
        json!([{ "name": "br1.200", "type": "vlan", "vlan": { "base-iface": "br1", "id": 200 } }]),
        // Settings of a card are those of its functions, too.
        json!([{ "name": "eth3", "type": "ethernet", "state": "up" }]),
        json!([{ "name": "eth3", "state": "up" }]),
        json!(["br9"]),
    ] {
        assert!(may(&interfaces), "{interfaces:#}");
    }
}

// nmstate#120
#[test]
fn other_sections_may_alter_the_targets() {
    let bridge = json!([{ "name": "br9", "type": "linux-bridge", "state": "up" }]);
    let aside = json!({ "interfaces": bridge });
    assert!(!may_change(&aside, &report()));
    for (section, content) in [
        ("dns-resolver", json!({ "config": {} })),
        ("routes", json!({ "config": [] })),
        ("route-rules", json!({ "config": [] })),
        ("ovs-db", json!({})),
        ("hostname", json!({ "running": "node01" })),
    ] {
        let mut desired = aside.clone();
        desired[section] = content;
        assert!(may_change(&desired, &report()), "{section}");
    }
    for unknown in [
        Value::Null,
        json!({}),
        json!("interfaces"),
        json!({ "interfaces": null }),
    ] {
        assert!(may_change(&unknown, &report()), "{unknown}");
    }
}
