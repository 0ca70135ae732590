//! The documented recipes that take more than a minimal kernel: each is applied, found again, applied once more without
//! a change, and removed.

use serde_json::{Value, json};

use crate::host::Host;

fn address(ip: &str) -> Value {
    json!({ "enabled": true, "dhcp": false, "address": [{ "ip": ip, "prefix-length": 24 }] })
}

fn bond(ipv4: &Value) -> Value {
    json!({
        "name": "bond0", "type": "bond", "state": "up", "ipv4": ipv4,
        "link-aggregation": {
            "mode": "balance-rr", "options": { "miimon": "140" }, "port": ["eth1", "eth2"],
        },
    })
}

fn vlan(base: &str) -> Value {
    let name = format!("{base}.102");
    json!({
        "name": name, "type": "vlan", "state": "up", "ipv4": address("192.0.2.2"),
        "vlan": { "base-iface": base, "id": 102 },
    })
}

/// Applies a document, and finds nothing left to do for it.
fn apply(host: &Host, desired: &Value) {
    host.apply(desired);
    assert!(host.is(desired), "{desired:#}\n{:#}", host.report());
}

#[test]
fn a_bond_of_two_nics_and_a_vlan_on_it() {
    let Some(host) = Host::enter("bonds") else { return };
    apply(&host, &json!({ "interfaces": [bond(&address("192.0.2.1"))] }));
    let found = host.interface("bond0");
    assert_eq!(found["link-aggregation"]["mode"], "balance-rr");
    assert_eq!(found["link-aggregation"]["port"], json!(["eth1", "eth2"]));
    assert_eq!(found["ipv4"]["address"][0]["ip"], "192.0.2.1");

    let disabled = json!({ "enabled": false });
    apply(&host, &json!({ "interfaces": [bond(&disabled), vlan("bond0")] }));
    let found = host.interface("bond0.102");
    assert_eq!(
        (&found["vlan"]["id"], &found["vlan"]["base-iface"]),
        (&json!(102), &json!("bond0"))
    );
    host.remove(&[("bond0.102", "vlan"), ("bond0", "bond")]);
}

#[test]
fn a_vlan_on_a_nic() {
    let Some(host) = Host::enter("VLANs") else { return };
    apply(&host, &json!({ "interfaces": [vlan("eth1")] }));
    assert_eq!(
        host.interface("eth1.102")["ipv4"]["address"][0]["ip"],
        "192.0.2.2"
    );
    host.remove(&[("eth1.102", "vlan")]);
}

// nmstate#53
#[test]
fn a_bridge_whose_port_has_vlans_of_its_own() {
    let Some(host) = Host::enter("VLAN filtering") else {
        return;
    };
    let tags = json!({
        "mode": "trunk",
        "trunk-tags": [{ "id": 101 }, { "id-range": { "min": 200, "max": 500 } }],
        "tag": 100, "enable-native": true,
    });
    let bridge = json!({ "interfaces": [{
        "name": "br1", "type": "linux-bridge", "state": "up",
        "ipv4": address("192.0.2.3"),
        "bridge": {
            "options": { "stp": { "enabled": false } },
            "port": [{ "name": "eth1", "vlan": tags }],
        },
    }] });
    host.apply(&bridge);
    let found = host.interface("br1")["bridge"]["port"][0]["vlan"].clone();
    for key in ["mode", "trunk-tags", "tag", "enable-native"] {
        assert_eq!(found[key], tags[key], "{key} of {found:#}");
    }

    // The way to switch filtering off.
    let filtering = || std::fs::read_to_string("/sys/class/net/br1/bridge/vlan_filtering").unwrap();
    assert_eq!(filtering(), "1\n");
    let mut without = bridge;
    without["interfaces"][0]["bridge"]["port"][0]["vlan"] = json!({});
    host.apply(&host.rendered(&without));
    assert_eq!(filtering(), "0\n");

    // A policy that does not say anything about them.
    let mut silent = without;
    silent["interfaces"][0]["bridge"]["port"][0] = json!({ "name": "eth1" });
    host.apply(&host.rendered(&silent));
    assert_eq!(filtering(), "1\n");
    assert_eq!(
        host.interface("br1")["bridge"]["port"][0]["vlan"]["trunk-tags"],
        json!([{ "id-range": { "min": 2, "max": 4094 } }])
    );
    host.remove(&[("br1", "linux-bridge")]);
}

#[test]
fn a_vrf_with_a_route() {
    let Some(host) = Host::enter("VRF") else { return };
    let vrf = json!({
        "interfaces": [
            {
                "name": "vrf0", "type": "vrf", "state": "up",
                "vrf": { "port": ["eth1"], "route-table-id": 100 },
            },
            { "name": "eth1", "type": "ethernet", "state": "up", "ipv4": address("192.0.2.4") },
        ],
        "routes": { "config": [{
            "destination": "198.51.100.0/24", "next-hop-address": "192.0.2.254", "next-hop-interface": "eth1",
            "table-id": 100, "metric": 150,
        }] },
    });
    host.apply(&vrf);
    assert_eq!(host.interface("vrf0")["vrf"]["route-table-id"], 100);
    let report = host.report();
    let routes = report["routes"]["running"].as_array().unwrap();
    let found = routes
        .iter()
        .find(|route| route["destination"] == "198.51.100.0/24");
    assert_eq!(
        found.map(|route| &route["table-id"]),
        Some(&json!(100)),
        "{routes:#?}"
    );
    host.remove(&[("vrf0", "vrf")]);
}

#[test]
fn a_dummy_and_a_mac_vlan() {
    let Some(host) = Host::enter("dummies") else {
        return;
    };
    let links = json!({ "interfaces": [
        { "name": "dummy0", "type": "dummy", "state": "up", "ipv4": address("192.0.2.5") },
        {
            "name": "mv0", "type": "mac-vlan", "state": "up",
            "mac-vlan": { "base-iface": "eth2", "mode": "bridge", "promiscuous": true },
        },
    ] });
    apply(&host, &links);
    assert_eq!(host.interface("dummy0")["ipv4"]["address"][0]["ip"], "192.0.2.5");
    assert_eq!(host.interface("mv0")["mac-vlan"]["base-iface"], "eth2");
    host.remove(&[("dummy0", "dummy"), ("mv0", "mac-vlan")]);
}
