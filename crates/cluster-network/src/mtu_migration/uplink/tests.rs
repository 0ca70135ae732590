use super::*;

fn route(destination: &str, interface: &str, table: u64) -> Value {
    json!({
        "destination": destination, "next-hop-interface": interface, "next-hop-address": "192.0.2.1",
        "table-id": table,
    })
}

fn interface(name: &str, kind: &str, mtu: u32) -> Value {
    json!({ "name": name, "type": kind, "state": "up", "mtu": mtu })
}

fn report(routes: &[Value], interfaces: &[Value]) -> Value {
    json!({ "routes": { "running": routes }, "interfaces": interfaces })
}

/// The settings for an MTU, as `name type mtu`.
fn wanted(report: &Value, mtu: u32) -> Vec<String> {
    let settings = settings(&links(report).expect("links"), mtu).expect("settings");
    settings
        .iter()
        .map(|(name, it)| format!("{name} {} {}", it.kind, it.mtu))
        .collect()
}

// cluster-network#101
#[test]
fn interfaces_of_all_default_routes_of_the_main_table_count() {
    let report = report(
        &[
            route("0.0.0.0/0", "eth0", 254),
            route("::/0", "eth1", 254),
            route("198.51.100.0/24", "eth2", 254),
            route("0.0.0.0/0", "eth3", 200),
        ],
        &[
            interface("eth0", "ethernet", 1500),
            interface("eth1", "veth", 1500),
            interface("eth2", "ethernet", 1500),
            interface("eth3", "ethernet", 1500),
        ],
    );
    assert_eq!(
        wanted(&report, 9000),
        ["eth0 ethernet 9000", "eth1 ethernet 9000"]
    );
    let links = links(&report).expect("links");
    let settings = settings(&links, 9000).expect("settings");
    let former = former(&links, &settings);
    assert_eq!(
        document(&former),
        json!({ "interfaces": [
            { "name": "eth0", "type": "ethernet", "state": "up", "mtu": 1500 },
            { "name": "eth1", "type": "ethernet", "state": "up", "mtu": 1500 },
        ] })
    );
}

// cluster-network#101
#[test]
fn interfaces_below_the_uplink_follow() {
    let mut bond = interface("bond0", "bond", 1500);
    bond["link-aggregation"] = json!({ "mode": "802.3ad", "port": ["eth0", "eth1"] });
    let mut bridge = interface("br0", "linux-bridge", 1500);
    bridge["bridge"] = json!({ "port": [{ "name": "bond0" }, { "name": "vnet1" }] });
    let ports = [
        interface("eth0", "ethernet", 1500),
        interface("eth1", "ethernet", 1500),
        interface("vnet1", "tun", 1500),
    ];
    let mut interfaces = vec![bridge, bond];
    interfaces.extend(ports);
    let report = report(&[route("0.0.0.0/0", "br0", 254)], &interfaces);
    assert_eq!(
        wanted(&report, 9000),
        [
            "bond0 bond 9000",
            "br0 linux-bridge 9000",
            "eth0 ethernet 9000",
            "eth1 ethernet 9000"
        ]
    );
}

// cluster-network#101
#[test]
fn base_of_a_vlan_is_raised_and_never_lowered() {
    let mut vlan = interface("eth0.5", "vlan", 1500);
    vlan["vlan"] = json!({ "base-iface": "eth0", "id": 5 });
    let of = |base: u32| {
        report(
            &[route("0.0.0.0/0", "eth0.5", 254)],
            &[vlan.clone(), interface("eth0", "ethernet", base)],
        )
    };
    assert_eq!(
        wanted(&of(1500), 9000),
        ["eth0 ethernet 9000", "eth0.5 vlan 9000"]
    );
    assert_eq!(wanted(&of(9000), 4000), ["eth0.5 vlan 4000"]);
    assert_eq!(wanted(&of(1500), 1400), ["eth0.5 vlan 1400"]);
}

// cluster-network#101
#[test]
fn bridge_of_open_vswitch_has_the_mtu_of_its_interface_and_uplink() {
    let mut bridge = json!({ "name": "br-ex", "type": "ovs-bridge", "state": "up" });
    bridge["bridge"] = json!({ "port": [{ "name": "eth0" }, { "name": "br-ex" }, { "name": "patch0" }] });
    let report = report(
        &[route("0.0.0.0/0", "br-ex", 254)],
        &[
            bridge,
            interface("br-ex", "ovs-interface", 1500),
            interface("eth0", "ethernet", 1500),
            interface("patch0", "ovs-interface", 1500),
        ],
    );
    assert_eq!(
        wanted(&report, 9000),
        ["br-ex ovs-interface 9000", "eth0 ethernet 9000"]
    );
}

// cluster-network#101
#[test]
fn mtu_beyond_the_driver_is_refused() {
    let mut eth0 = interface("eth0", "ethernet", 1500);
    eth0["max-mtu"] = json!(3000);
    let report = report(&[route("0.0.0.0/0", "eth0", 254)], &[eth0]);
    assert_eq!(
        settings(&links(&report).expect("links"), 9000),
        Err("interface eth0 supports an MTU of at most 3000, and 9000 is requested".to_owned())
    );
    assert_eq!(wanted(&report, 3000), ["eth0 ethernet 3000"]);
}

// cluster-network#101
#[test]
fn report_without_a_default_route_has_no_uplink() {
    for report in [
        json!(null),
        json!({}),
        report(&[], &[interface("eth0", "ethernet", 1500)]),
    ] {
        assert_eq!(links(&report), Ok(Links::new()));
    }
}

#[test]
fn interfaces_that_refer_to_each_other_end() {
    let mut one = interface("a", "vlan", 1500);
    one["vlan"] = json!({ "base-iface": "b" });
    let mut other = interface("b", "vlan", 1500);
    other["vlan"] = json!({ "base-iface": "a" });
    let report = report(&[route("::/0", "a", 254)], &[one, other]);
    let links = links(&report).expect("links");
    assert!(!links["a"].is_base && links["b"].is_base, "{links:?}");
}

/// The reason for which a node with this report has no settings.
fn refused(report: &Value, mtu: u32) -> String {
    links(report)
        .and_then(|links| settings(&links, mtu))
        .expect_err("no settings")
}

fn open_vswitch(ports: &Value, others: &[Value]) -> Value {
    let mut bridge = json!({ "name": "br-ex", "type": "ovs-bridge", "state": "up" });
    bridge["bridge"] = json!({ "port": ports });
    let mut interfaces = vec![bridge, interface("br-ex", "ovs-interface", 1500)];
    interfaces.extend_from_slice(others);
    report(&[route("0.0.0.0/0", "br-ex", 254)], &interfaces)
}

// cluster-network#130
#[test]
fn ports_of_an_open_vswitch_bond_follow() {
    let bond = json!({
        "name": "bond1",
        "link-aggregation": { "mode": "balance-slb", "port": [{ "name": "eth1" }, { "name": "eth2" }] },
    });
    let ports = json!([bond, { "name": "br-ex" }]);
    let nics = ["eth1", "eth2"].map(|name| interface(name, "ethernet", 1500));
    assert_eq!(
        wanted(&open_vswitch(&ports, &nics), 9000),
        [
            "br-ex ovs-interface 9000",
            "eth1 ethernet 9000",
            "eth2 ethernet 9000"
        ]
    );
    assert_eq!(
        refused(&open_vswitch(&ports, &nics[..1]), 9000),
        "its NodeNetworkState lacks interface eth2"
    );
}

// cluster-network#130
#[test]
fn bridge_without_an_uplink_port_is_refused() {
    let expected = "its NodeNetworkState has no port of br-ex that leads out of the node";
    let pods = interface("vnet1", "ovs-interface", 1500);
    for ports in [
        json!([{ "name": "br-ex" }]),
        json!([{ "name": "br-ex" }, { "name": "vnet1" }]),
    ] {
        assert_eq!(
            refused(&open_vswitch(&ports, std::slice::from_ref(&pods)), 9000),
            expected
        );
    }
}

// cluster-network#131
#[test]
fn report_that_lacks_a_part_of_the_uplink_is_refused() {
    let of = |uplink: Value, others: &[Value]| {
        let mut interfaces = vec![uplink];
        interfaces.extend_from_slice(others);
        refused(&report(&[route("0.0.0.0/0", "up0", 254)], &interfaces), 9000)
    };
    let with = |kind: &str, section: &str, content: Value| {
        let mut interface = interface("up0", kind, 1500);
        interface[section] = content;
        interface
    };
    let eth0 = interface("eth0", "ethernet", 1500);
    let bond = || with("bond", "link-aggregation", json!({ "port": ["eth0", "eth1"] }));
    let vlan = || with("vlan", "vlan", json!({ "base-iface": "eth1" }));
    let unmeasured = json!({ "name": "up0", "type": "ethernet", "state": "up" });
    for (uplink, expected) in [
        (bond(), "its NodeNetworkState lacks interface eth1"),
        (vlan(), "its NodeNetworkState lacks interface eth1"),
        (
            interface("up0", "bond", 1500),
            "its NodeNetworkState has no port of up0 that leads out of the node",
        ),
        (
            interface("up0", "linux-bridge", 1500),
            "its NodeNetworkState has no port of up0 that leads out of the node",
        ),
        (
            interface("up0", "mac-vlan", 1500),
            "its NodeNetworkState lacks the base of interface up0",
        ),
        (unmeasured, "its NodeNetworkState lacks the MTU of interface up0"),
        (eth0.clone(), "its NodeNetworkState lacks interface up0"),
    ] {
        assert_eq!(of(uplink, std::slice::from_ref(&eth0)), expected);
    }
}

// cluster-network#131
#[test]
fn pruned_report_is_incomplete() {
    let report = report(
        &[route("0.0.0.0/0", "eth0", 254)],
        &[interface("eth0", "ethernet", 1500)],
    );
    let state = |status: &str| {
        json!({ "status": {
            "currentState": report,
            "conditions": [{ "type": "Pruned", "status": status, "message": "left out: features of drivers" }],
        } })
    };
    let incomplete = "its NodeNetworkState is incomplete: left out: features of drivers";
    assert_eq!(read(&state("True")), Some(Err(incomplete.to_owned())));
    assert_eq!(read(&state("False")), Some(links(&report)));
    assert_eq!(
        read(&json!({ "status": { "currentState": report } })),
        Some(links(&report))
    );
    assert_eq!(read(&json!({})), None);
}

// cluster-network#132
#[test]
fn interface_that_is_not_managed_is_refused() {
    for state in ["ignore", "down", ""] {
        let mut eth0 = interface("eth0", "ethernet", 1500);
        eth0["state"] = json!(state);
        let of_uplink = report(&[route("0.0.0.0/0", "eth0", 254)], &[eth0.clone()]);
        let expected =
            format!("interface eth0 is not managed by NetworkManager: its reported state is \"{state}\"");
        assert_eq!(refused(&of_uplink, 9000), expected);
        let mut vlan = interface("eth0.5", "vlan", 1500);
        vlan["vlan"] = json!({ "base-iface": "eth0", "id": 5 });
        let of_base = report(&[route("0.0.0.0/0", "eth0.5", 254)], &[vlan, eth0]);
        assert_eq!(refused(&of_base, 9000), expected);
        // The base keeps its MTU.
        assert_eq!(wanted(&of_base, 1400), ["eth0.5 vlan 1400"]);
    }
}

// cluster-network#132
#[test]
fn interface_of_another_type_is_refused() {
    let report = report(
        &[route("0.0.0.0/0", "tun0", 254)],
        &[interface("tun0", "tun", 1500)],
    );
    assert_eq!(
        refused(&report, 9000),
        "interface tun0 has type tun, which is not supported"
    );
}

// cluster-network#138
#[test]
fn larger_interface_above_the_uplink_is_refused() {
    let above = |kind: &str, mtu: u32| {
        let mut interface = interface("up1", kind, mtu);
        interface[kind] = json!({ "base-iface": "eth0" });
        let interfaces = [self::interface("eth0", "ethernet", 9000), interface];
        report(&[route("0.0.0.0/0", "eth0", 254)], &interfaces)
    };
    for kind in ["vlan", "mac-vlan", "mac-vtap", "ipvlan", "macsec"] {
        assert_eq!(
            refused(&above(kind, 9000), 1500),
            "interface up1 on eth0 has MTU 9000, and the kernel would lower it: set at most 1500 there first"
        );
        assert_eq!(wanted(&above(kind, 1500), 1500), ["eth0 ethernet 1500"]);
    }
    // A VLAN that is a part of the uplink itself is lowered too.
    let mut vlan = interface("eth0.5", "vlan", 9000);
    vlan["vlan"] = json!({ "base-iface": "eth0", "id": 5 });
    let both = report(
        &[route("0.0.0.0/0", "eth0", 254), route("::/0", "eth0.5", 254)],
        &[interface("eth0", "ethernet", 9000), vlan],
    );
    assert_eq!(wanted(&both, 1500), ["eth0 ethernet 1500", "eth0.5 vlan 1500"]);
}

#[test]
fn difference_to_the_report_is_found() {
    let report = report(
        &[route("0.0.0.0/0", "eth0", 254)],
        &[interface("eth0", "ethernet", 1500)],
    );
    let links = links(&report).expect("links");
    let settings = |mtu| settings(&links, mtu).expect("settings");
    assert_eq!(differing(&links, &settings(9000)), Some(("eth0", 1500)));
    assert_eq!(differing(&links, &settings(1500)), None);
    assert_eq!(differing(&links, &Settings::new()), None);
}
