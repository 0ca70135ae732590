//! Pods on bridges of Open vSwitch on both nodes.

use cluster::OpenVswitch;
use serde_json::{Value, json};

use crate::components::Components;
use crate::pods::{TestNamespace, network, pod};
use crate::support::{NODES, Stage};

const BRIDGE: &str = "br-ovs";
/// The bridge port to the other node.
const UPLINK: &str = "ovs-up";
/// The marker's resource for nodes with the bridge.
const RESOURCE: &str = "ovs-cni.network.kubevirt.io/br-ovs";

fn switch(stage: &Stage, node: &str) -> OpenVswitch {
    let switch = OpenVswitch::start_on(&stage.cluster, node).unwrap();
    switch.add_bridge(BRIDGE).unwrap();
    switch.vsctl(["add-port", BRIDGE, UPLINK]).unwrap();
    switch
}

fn vlan(name: &str, vlan: u16) -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "ovs", "bridge": BRIDGE, "vlan": vlan,
        "capabilities": { "ips": true }, "ipam": { "type": "static" },
    });
    network(name, &config.to_string())
}

/// A pod with a port of a network. The scheduler selects a node with the bridge.
fn port(name: &str, node: &str, network: &str, address: &str) -> Value {
    let networks = json!([{ "name": network, "ips": [format!("{address}/24")] }]);
    let mut port = pod(name, Some(node), &networks);
    port["spec"]["containers"][0]["resources"] = json!({ "limits": { RESOURCE: "1" } });
    port
}

/// Ports of the bridge, except the port to the other node.
fn ports(switch: &OpenVswitch) -> usize {
    let listed = switch.vsctl(["list-ports", BRIDGE]).unwrap();
    listed.lines().filter(|port| *port != UPLINK).count()
}

fn reaches(ns: &TestNamespace<'_>, pod: &str, address: &str, timeout: &str) -> bool {
    let ping = [
        "exec", pod, "--", "ping", "-c", "1", "-W", timeout, "-I", "net1", address,
    ];
    ns.try_kubectl(&ping).is_ok()
}

#[test]
fn ports_of_a_vlan_are_connected_across_nodes_and_after_a_crash_of_the_switch() {
    let Some(stage) = Stage::enter() else { return };
    let _uplinks = NODES.map(|node| stage.uplink(node, UPLINK));
    let mut switches = NODES.map(|node| switch(&stage, node));
    let _ovs = Components::deploy(&stage, &json!({ "ovs": {} }), &["ovs-cni-amd64"]);
    let ns = TestNamespace::create(&stage, "e2e-ovs");
    let [here, there] = NODES;
    ns.apply(&vlan("red", 100));
    ns.apply(&vlan("blue", 200));
    ns.apply(&port("red-here", here, "red", "10.81.0.1"));
    ns.apply(&port("red-there", there, "red", "10.81.0.2"));
    ns.apply(&port("blue-there", there, "blue", "10.81.0.3"));
    for pod in ["red-here", "red-there", "blue-there"] {
        ns.ready(pod);
    }
    assert_eq!(switches.each_ref().map(ports), [1, 2]);
    let meet = || {
        stage.wait("pods of one VLAN reach each other", || {
            reaches(&ns, "red-here", "10.81.0.2", "5").then_some(())
        });
        assert!(!reaches(&ns, "red-here", "10.81.0.3", "1"), "VLANs are apart");
    };
    meet();

    for switch in &mut switches {
        switch.crash_switch().unwrap();
    }
    meet();
    ns.apply(&port("red-later", here, "red", "10.81.0.4"));
    ns.ready("red-later");
    stage.wait("a pod that came after the crash is reached", || {
        reaches(&ns, "red-there", "10.81.0.4", "5").then_some(())
    });

    ns.delete_pods();
    stage.wait_equal("the ports are gone", &[0, 0], || switches.each_ref().map(ports));
    drop(switches);
}
