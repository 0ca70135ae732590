//! Policies on nodes with NetworkManager.

use serde_json::{Map, Value, json};

use crate::node_network::{History, NodeNetwork, ROUTER, condition, most_at_once};
use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{NODES, Stage};

/// `br1` takes over the configuration of `eth1`, the NIC of the default route. The kernel of many test machines cannot
/// filter VLANs, so filtering must be off.
fn bridge() -> Value {
    json!({
        "maxUnavailable": 1,
        "capture": {
            "default-gw": "routes.running.destination==\"0.0.0.0/0\"",
            "base-iface": "interfaces.name==capture.default-gw.routes.running.0.next-hop-interface",
            "base-routes": "routes.running.next-hop-interface==capture.default-gw.routes.running.0.next-hop-interface",
            "bridge-routes": "capture.base-routes | routes.running.next-hop-interface:=\"br1\"",
        },
        "desiredState": {
            "interfaces": [{
                "name": "br1", "type": "linux-bridge", "state": "up",
                "mac-address": "{{ capture.base-iface.interfaces.0.mac-address }}",
                "ipv4": "{{ capture.base-iface.interfaces.0.ipv4 }}",
                "bridge": {
                    "options": { "stp": { "enabled": false } },
                    "port": [{ "name": "{{ capture.base-iface.interfaces.0.name }}", "vlan": {} }],
                },
            }],
            "routes": { "config": "{{ capture.bridge-routes.routes.running }}" },
        },
    })
}

/// Restores the configuration of `eth1`.
fn without_bridge() -> Value {
    json!({ "desiredState": { "interfaces": [
        { "name": "br1", "type": "linux-bridge", "state": "absent" },
        { "name": "eth1", "type": "ethernet", "state": "up", "ipv4": { "enabled": true, "dhcp": true } },
    ] } })
}

// nmstate#1, nmstate#5, nmstate#22, nmstate#43, nmstate#54, nmstate#68
#[test]
fn policy_creates_a_bridge_node_by_node_and_pods_connect_on_it() {
    let Some(stage) = Stage::enter() else { return };
    let network = NodeNetwork::deploy(&stage);
    for node in NODES {
        // The only default route is that of eth1.
        network.script(node, "ip route delete default dev eth0");
        let state = stage.json(&["get", "nns", node]);
        assert_eq!(state["metadata"]["ownerReferences"][0]["kind"], "Node");
        assert_eq!(state["metadata"]["ownerReferences"][0]["name"], node);
        let version = |field: &str| state["status"][field].as_str().unwrap_or_default().to_owned();
        assert!(!version("hostNetworkManagerVersion").is_empty(), "{state:#}");
        assert!(!version("handlerNmstateVersion").is_empty(), "{state:#}");
    }
    let address = |node: &str, link: &str| {
        let shown = network.script(node, &format!("ip -4 -brief address show {link}"));
        shown.split_whitespace().nth(2).map(str::to_owned)
    };
    let before = NODES.map(|node| address(node, "eth1"));
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let asked = NODES.map(|node| refresh(&stage, node));

    // The first node is blocked until the second one waits for its turn.
    network.names.silence();
    let history = History::start(&stage, "bridge");
    network.apply_policy("bridge", &bridge());
    stage.wait("one node to wait for the other", || {
        let of = |kind| {
            let enactments = NODES.iter().filter_map(|node| network.enactment(node, "bridge"));
            enactments
                .filter(|enactment| condition(enactment, kind, "True").is_some())
                .count()
        };
        (of("Progressing") == 1 && of("Pending") == 1).then_some(())
    });
    network.names.speak();
    network.available("bridge", "2/2 nodes successfully configured");
    let history = history.end();
    assert_eq!(most_at_once(&history), 1, "{history:#?}");
    let policy = network.policy("bridge").expect("the policy");
    let slots = &policy["status"]["unavailableNodeCountMap"];
    assert!(slots.as_object().is_none_or(serde_json::Map::is_empty), "{slots}");

    for ((node, before), asked) in NODES.iter().zip(&before).zip(&asked) {
        assert_eq!(address(node, "br1"), *before);
        assert_eq!(address(node, "eth1"), None);
        let ports = network.script(node, "ip -brief link show master br1");
        assert!(ports.starts_with("eth1"), "{ports}");
        let profiles = network.script(node, "ls /etc/NetworkManager/system-connections");
        assert!(profiles.contains("br1.nmconnection"), "{profiles}");
        stage.wait(&format!("the bridge in the report of {node}"), || {
            let bridge = network.interface(node, "br1")?;
            (bridge["bridge"]["port"][0]["name"] == "eth1").then_some(())
        });
        assert_ne!(refresh(&stage, node), *asked);
    }

    // A restarted handler applies the policy again. It must use the recorded capture, because the NIC has no
    // configuration now.
    let applied = network.enacted("node01", "bridge", "Available");
    let remembered = |network: &NodeNetwork<'_>| {
        let enactment = network.enactment("node01", "bridge").unwrap_or_default();
        let status = &enactment["status"];
        (status["desiredState"].clone(), status["capturedStates"].clone())
    };
    let found = remembered(&network);
    assert_eq!(found.1.as_object().map_or(0, Map::len), 4, "{found:#?}");
    network.kill_handler("node01");
    stage.wait("the policy to be applied again", || {
        let enactment = network.enactment("node01", "bridge")?;
        let again = condition(&enactment, "Available", "True")?;
        (again["lastTransitionTime"] != applied["lastTransitionTime"]).then_some(())
    });
    network.available("bridge", "2/2 nodes successfully configured");
    assert_eq!(remembered(&network), found);
    assert_eq!(address("node01", "br1"), before[0]);
    let ports = network.script("node01", "ip -brief link show master br1");
    assert!(ports.starts_with("eth1"), "{ports}");

    {
        let ns = TestNamespace::create(&stage, "e2e-nmstate");
        ns.apply(&bridge_network("lan", "br1"));
        for (index, node) in NODES.iter().enumerate() {
            let address = json!([{ "name": "lan", "ips": [format!("10.79.0.{}/24", index + 1)] }]);
            ns.apply(&pod(&format!("p{index}"), Some(node), &address));
        }
        ns.ready("p0");
        ns.ready("p1");
        ns.ping("p0", "10.79.0.2");
        ns.delete_pods();
    }

    // A removed policy does not revert its configuration.
    network.remove_policy("bridge");
    for (node, before) in NODES.iter().zip(&before) {
        assert_eq!(address(node, "br1"), *before);
    }
    network.apply_policy("no-bridge", &without_bridge());
    network.available("no-bridge", "2/2 nodes successfully configured");
    for (node, before) in NODES.iter().zip(&before) {
        assert!(network.try_script(node, "ip link show br1").is_none());
        stage.wait_equal(&format!("the address of eth1 on {node}"), before, || {
            address(node, "eth1")
        });
        let servers = network.script(node, "cat /etc/resolv.conf");
        assert!(servers.contains(ROUTER), "{servers}");
    }
}

/// Returns the cause of a node's newest report.
fn refresh(stage: &Stage, node: &str) -> Value {
    let state = stage.json(&["get", "nns", node]);
    state["metadata"]["labels"]["nmstate.io/force-nns-refresh"].clone()
}

// nmstate#85, nmstate#87
#[test]
fn objects_of_the_original_design_work_beside_policies() {
    let Some(stage) = Stage::enter() else { return };
    let network = NodeNetwork::deploy(&stage);
    let state = |managed: bool, interfaces: &Value| {
        let object = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState",
            "metadata": { "name": "node01" },
            "spec": { "managed": managed, "nodeName": "node01", "desiredState": { "interfaces": interfaces } },
            "status": { "currentState": { "interfaces": [], "capabilities": [] } },
        });
        stage
            .kubectl
            .apply(&object.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    };
    let mtu = |node: &str| {
        network
            .script(node, "cat /sys/class/net/eth1/mtu")
            .trim()
            .to_owned()
    };
    let nic = |mtu: u32| {
        json!([{
            "name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu,
            "ipv4": { "enabled": true, "dhcp": true },
        }])
    };

    state(true, &nic(1400));
    stage.wait("the state of node01 to be enforced", || {
        let state = stage.kubectl.get(["nns", "node01"]).ok()??;
        condition(&state, "Available", "True").map(drop)
    });
    assert_eq!((mtu("node01").as_str(), mtu("node02").as_str()), ("1400", "1500"));

    // Unmanaged state is not enforced, but reported.
    state(false, &nic(1300));
    network.script("node01", "ip link set eth1 mtu 1200");
    stage.wait("the report of the change", || {
        (network.interface("node01", "eth1")?["mtu"] == 1200).then_some(())
    });
    assert_eq!(mtu("node01"), "1200");
}
