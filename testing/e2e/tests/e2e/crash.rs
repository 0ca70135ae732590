//! Recovery after kills.

use serde_json::json;

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{NODES, Stage};

#[test]
fn daemon_killed_while_twenty_pods_start_fails_none_of_them() {
    // multus#67
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-kill");
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
        let now = stage.daemon_pids(node, "multus-daemon");
        let replaced = !now.is_empty() && now.iter().all(|pid| !killed.contains(pid));
        assert!(
            replaced,
            "another daemon serves {node}: {killed:?} were killed, now {now:?}"
        );
    }
    let before = NODES.map(|node| stage.host_state(node));
    ns.delete_pods();
    for (node, before) in NODES.iter().zip(before) {
        stage.wait(
            &format!("the ten pods' links and files are gone from {node}"),
            || {
                let now = stage.host_state(node);
                (now.veths.len() == before.veths.len() - 20 && now.scratch.len() == before.scratch.len() - 10)
                    .then_some(())
            },
        );
    }
}
