//! The documented recipes that need more than a minimal kernel, unchanged: no difference remains once they are applied,
//! and their interfaces can be removed. Each change takes an emulated processor long: recipes that do not touch each
//! other are one change.

use serde_json::{Value, json};
use weft_nmstate::render::PolicySpec;

use crate::host::{Host, interface};
use crate::shared::{Place, spec};

fn address(ip: &str) -> Value {
    json!({ "enabled": true, "dhcp": false, "address": [{ "ip": ip, "prefix-length": 24 }] })
}

/// Applies policies at once, asserts that no difference remains, and returns the host's report.
fn follow(host: &Host, policies: &[PolicySpec]) -> Value {
    let mut desired = json!({ "interfaces": [], "routes": { "config": [] } });
    for policy in policies {
        let rendered = host.rendered(policy);
        for list in ["/interfaces", "/routes/config"] {
            let Some(Value::Array(some)) = rendered.pointer(list).cloned() else {
                continue;
            };
            let all = desired.pointer_mut(list).and_then(Value::as_array_mut).unwrap();
            all.extend(some);
        }
    }
    host.apply(&desired);
    assert_eq!(host.left(&desired), json!({}), "{desired:#}");
    host.report()
}

fn recipe(name: &str) -> PolicySpec {
    spec(Place::Machine, name)
}

#[test]
fn recipes_of_bonds_vlans_and_vrfs_are_applied() {
    let Some(host) = Host::enter("bonds") else { return };
    let report = follow(&host, &[recipe("vlan"), recipe("vrf")]);
    let found = &interface(&report, "eth1.102")["vlan"];
    assert_eq!(
        (&found["id"], &found["base-iface"]),
        (&json!(102), &json!("eth1"))
    );

    let found = &interface(&report, "vrf1")["vrf"];
    assert_eq!(
        (&found["route-table-id"], &found["port"]),
        (&json!(1001), &json!(["eth1"]))
    );
    assert_eq!(
        interface(&report, "eth1")["ipv4"]["address"][0]["ip"],
        "192.0.2.10"
    );
    let routes = report["routes"]["running"].as_array().unwrap();
    let found = routes.iter().find(|route| route["destination"] == "0.0.0.0/0");
    assert_eq!(
        found.map(|route| (&route["table-id"], &route["next-hop-address"])),
        Some((&json!(1001), &json!("192.0.2.1"))),
        "{routes:#?}"
    );
    host.remove(&[("eth1.102", "vlan"), ("vrf1", "vrf")]);

    let report = follow(&host, &[recipe("bond")]);
    let found = interface(&report, "bond0");
    assert_eq!(found["link-aggregation"]["mode"], "active-backup");
    assert_eq!(found["link-aggregation"]["options"]["primary"], "eth1");
    assert_eq!(found["link-aggregation"]["port"], json!(["eth1", "eth2"]));
    assert_eq!(found["ipv4"]["dhcp"], true);

    let report = follow(&host, &[recipe("bond-vlan")]);
    assert_eq!(
        interface(&report, "bond0")["link-aggregation"]["mode"],
        "balance-rr"
    );
    let found = &interface(&report, "bond0.102")["vlan"];
    assert_eq!(
        (&found["id"], &found["base-iface"]),
        (&json!(102), &json!("bond0"))
    );
    host.remove(&[("bond0.102", "vlan"), ("bond0", "bond")]);
}

// nmstate#53
#[test]
fn recipes_of_bridges_and_port_vlans_are_applied() {
    let Some(host) = Host::enter("VLAN filtering") else {
        return;
    };
    host.apply(&json!({
        "interfaces": [
            { "name": "eth2", "type": "ethernet", "state": "up", "ipv4": address("198.51.100.2") },
            // No recipe, but minimal kernels lack them too.
            { "name": "dummy0", "type": "dummy", "state": "up", "ipv4": address("192.0.2.5") },
            {
                "name": "mv0", "type": "mac-vlan", "state": "up",
                "mac-vlan": { "base-iface": "dummy0", "mode": "bridge", "promiscuous": true },
            },
        ],
        "routes": { "config": [{
            "destination": "0.0.0.0/0", "next-hop-address": "198.51.100.1", "next-hop-interface": "eth2",
        }] },
    }));
    let before = host.report();
    assert_eq!(
        interface(&before, "dummy0")["ipv4"]["address"][0]["ip"],
        "192.0.2.5"
    );
    assert_eq!(interface(&before, "mv0")["mac-vlan"]["base-iface"], "dummy0");

    // A policy without VLANs.
    let filtering = || std::fs::read_to_string("/sys/class/net/br1/bridge/vlan_filtering").unwrap();
    let port = |report: &Value| interface(report, "br1")["bridge"]["port"][0].clone();
    let every = json!([{ "id-range": { "min": 2, "max": 4094 } }]);
    let report = follow(&host, &[recipe("linux-bridge")]);
    assert_eq!(port(&report)["name"], "eth1");
    assert_eq!(port(&report)["vlan"]["trunk-tags"], every);
    assert_eq!(filtering(), "1\n");

    let vlan = port(&follow(&host, &[recipe("linux-bridge-vlans")]))["vlan"].clone();
    let trunk = json!({
        "mode": "trunk", "enable-native": true, "tag": 100,
        "trunk-tags": [{ "id": 101 }, { "id-range": { "min": 200, "max": 500 } }],
    });
    for key in ["mode", "trunk-tags", "tag", "enable-native"] {
        assert_eq!(vlan[key], trunk[key], "{key} of {vlan:#}");
    }

    assert_eq!(
        port(&follow(&host, &[recipe("workers")]))["vlan"]["trunk-tags"],
        every
    );

    // This switches filtering off.
    let without = PolicySpec::only(json!({ "interfaces": [{
        "name": "br1", "type": "linux-bridge", "state": "up",
        "bridge": { "port": [{ "name": "eth1", "vlan": {} }] },
    }] }));
    let report = follow(&host, &[without, recipe("uplink-bridge")]);
    assert_eq!(filtering(), "0\n");
    // There is no DHCP here: the MAC, by which the bridge would get that of the card, is enough. Ports with every
    // VLAN make all later steps slow, so this comes last.
    let bridge = interface(&report, "br-uplink");
    assert_eq!(bridge["mac-address"], interface(&before, "eth2")["mac-address"]);
    assert_eq!(bridge["ipv4"]["dhcp"], true);
    assert_eq!(bridge["bridge"]["port"][0]["name"], "eth2");
    host.remove(&[
        ("br1", "linux-bridge"),
        ("br-uplink", "linux-bridge"),
        ("mv0", "mac-vlan"),
        ("dummy0", "dummy"),
    ]);
}
