//! Recovery after kills.

use serde_json::json;

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{HostState, NODES, Stage};

#[test]
fn daemon_killed_while_twenty_pods_start_fails_none_of_them() {
    // multus#67
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-kill");
    let before = NODES.map(|node| stage.host_state(node));
    ns.apply(&bridge_network("lan", "br1"));
    let pods: Vec<_> = (0..20)
        .map(|index| {
            pod(
                &format!("p{index}"),
                Some(NODES[index % 2]),
                &json!([{ "name": "lan", "ips": [format!("10.77.3.{}/24", index + 1)] }]),
            )
        })
        .collect();
    ns.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }));

    // The kill follows the first attachments, so that requests are in flight.
    stage.wait("the first of the twenty pods is attached", || {
        let pods = ns.kubectl(&["get", "pods", "-o", "json"]);
        pods.contains("network-status").then_some(())
    });
    let killed = NODES.map(|node| stage.daemon_pids(node, "multus-daemon"));
    for (node, pids) in NODES.iter().zip(&killed) {
        // A starting delegate still has the daemon's name.
        assert!(!pids.is_empty(), "a daemon runs on {node}");
        for pid in pids {
            stage.kill_9(*pid);
        }
    }

    for index in 0..20 {
        let ready = ns.ready(&format!("p{index}"));
        let attached = ready.network_status("lan");
        assert_eq!(attached["ips"], json!([format!("10.77.3.{}", index + 1)]));
        let mac = ns.exec(&ready.name, &["cat", "/sys/class/net/net1/address"]);
        assert_eq!(attached["mac"], mac.trim(), "pod {}", ready.name);
    }
    for (node, killed) in NODES.iter().zip(killed) {
        stage.wait(&format!("another daemon than {killed:?} serves {node}"), || {
            let now = stage.daemon_pids(node, "multus-daemon");
            (!now.is_empty() && now.iter().all(|pid| !killed.contains(pid))).then_some(())
        });
    }
    ns.delete_pods();
    for (node, before) in NODES.iter().zip(before) {
        stage.wait_equal(
            &format!("additional links, namespaces, leases, records and files of {node}"),
            &HostState::default(),
            || stage.host_state(node).beyond(&before),
        );
    }
}
