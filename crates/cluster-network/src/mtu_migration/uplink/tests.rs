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
    let settings = settings(&links(report), mtu).expect("settings");
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
    let links = links(&report);
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
        settings(&links(&report), 9000),
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
        assert_eq!(links(&report), Links::new());
    }
}

#[test]
fn interfaces_that_refer_to_each_other_end() {
    let mut one = interface("a", "vlan", 1500);
    one["vlan"] = json!({ "base-iface": "b" });
    let mut other = interface("b", "vlan", 1500);
    other["vlan"] = json!({ "base-iface": "a" });
    let report = report(&[route("::/0", "a", 254)], &[one, other]);
    let links = links(&report);
    assert!(!links["a"].is_base && links["b"].is_base, "{links:?}");
}
