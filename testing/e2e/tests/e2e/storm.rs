//! Many pods at once, while their daemons or the API server are killed, replaced, or unreachable.

use std::time::{Duration, Instant};

use cluster::Quiet;
use serde_json::{Value, json};

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{HostState, NODES, Stage};

/// Their secondary networks.
const NETWORKS: [&str; 3] = ["a", "b", "c"];
/// Default number of pods, unless this variable is set.
const PODS: usize = 40;
const PODS_VARIABLE: &str = "WEFT_STORM_PODS";

/// Number of kills of the daemons, and their interval.
const KILL_EVERY: Duration = Duration::from_secs(2);
const KILLS_END: Duration = Duration::from_secs(60);
/// Creates the bridge over the spare NIC, which a node has from its start.
const BRIDGE: &str = "ip link add br1 type bridge\nip link set eth1 master br1 up\nip link set br1 up";
/// Duration of the API server's outage.
const OUTAGE: Duration = Duration::from_secs(30);

/// A namespace with networks whose addresses are leased on the node.
fn networks<'a>(stage: &'a Stage, namespace: &'static str) -> TestNamespace<'a> {
    let ns = TestNamespace::create(stage, namespace);
    for (index, name) in NETWORKS.iter().enumerate() {
        let mut network = bridge_network(name, "br1");
        let config = json!({
            "cniVersion": "1.0.0", "name": format!("{namespace}-{name}"), "type": "cnv-bridge", "bridge": "br1",
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.8{index}.0.0/16") }]] },
        });
        network["spec"]["config"] = json!(config.to_string());
        ns.apply(&network);
    }
    ns
}

/// Pods on all networks.
fn pods(count: usize, nodes: &[&str]) -> Value {
    let networks: Vec<_> = NETWORKS.iter().map(|name| json!({ "name": name })).collect();
    let pods = (0..count).map(|index| {
        let node = nodes[index % nodes.len()];
        pod(&format!("p{index}"), Some(node), &json!(networks))
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>() })
}

fn wanted() -> usize {
    let said = std::env::var(PODS_VARIABLE).ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(PODS)
}

/// Waits until all pods are Ready, and checks all networks of each.
fn all_attached(stage: &Stage, ns: &TestNamespace<'_>, count: usize, mut meanwhile: impl FnMut()) {
    stage.wait(&format!("{count} pods are Ready"), || {
        meanwhile();
        let pods: Value = serde_json::from_str(&ns.try_kubectl(&["get", "pods", "-o", "json"]).ok()?).ok()?;
        let ready = pods["items"]
            .as_array()?
            .iter()
            .filter(|pod| cluster::is_ready(pod))
            .count();
        (ready == count).then_some(())
    });
    let mut taken = Vec::new();
    for index in 0..count {
        let pod = ns.ready(&format!("p{index}"));
        let statuses = pod.network_statuses();
        assert_eq!(
            statuses.len(),
            NETWORKS.len() + 1,
            "networks of {}: {statuses:#?}",
            pod.name
        );
        for (network, place) in NETWORKS.iter().zip(1..) {
            let attached = pod.network_status(network);
            assert_eq!(attached["interface"], format!("net{place}"));
            let address = attached["ips"][0]
                .as_str()
                .unwrap_or_else(|| panic!("no address in {attached}"));
            taken.push((pod.node().to_owned(), *network, address.to_owned()));
        }
    }
    taken.sort();
    let all = taken.len();
    taken.dedup();
    assert_eq!(taken.len(), all, "an address was given twice");
    // The pod has the state in its status.
    for index in [0, count - 1] {
        matches_its_status(ns, &format!("p{index}"));
    }
}

/// Compares interfaces and addresses in the pod with its status.
fn matches_its_status(ns: &TestNamespace<'_>, name: &str) {
    let pod = ns.ready(name);
    for network in NETWORKS {
        let attached = pod.network_status(network);
        let (interface, address) = (attached["interface"].as_str(), attached["ips"][0].as_str());
        let shown = ns.exec(
            name,
            &["ip", "-4", "addr", "show", "dev", interface.unwrap_or_default()],
        );
        assert!(
            shown.contains(&format!(" {}/16 ", address.unwrap_or_default())),
            "{attached}\n{shown}"
        );
    }
}

/// Kills the daemons of both nodes, and deletes their pods, because the kubelet's back-off delays each restart of a
/// container longer.
fn kill_daemons(stage: &Stage) {
    for node in NODES {
        for pid in stage.daemon_pids(node, "multus-daemon") {
            stage.kill_9(pid);
        }
    }
    // The API server may be busy with the storm.
    let _ = stage.try_kubectl(&[
        "-n",
        crate::support::OPERATOR_NAMESPACE,
        "delete",
        "pods",
        "--selector=app=multus",
        "--force",
        "--grace-period=0",
        "--wait=false",
    ]);
}

/// Leases, records and cache files on a node of sandboxes that do not run there.
fn strays(stage: &Stage, node: &str) -> Vec<String> {
    let running = stage.node(
        node,
        &["ctr", "--namespace", "k8s.io", "tasks", "list", "--quiet"],
    );
    let runs = |text: &str| running.lines().any(|id| text.contains(id));
    let HostState {
        scratch,
        results,
        leases,
        ..
    } = stage.host_state(node);
    let named = scratch.into_iter().chain(results).filter(|file| !runs(file));
    // A lease that was released meanwhile is ignored.
    let leased = leases.into_iter().filter(|file| {
        let holder = stage.node(node, &["sh", "-c", &format!("cat {file} 2>/dev/null || true")]);
        !holder.is_empty() && !runs(&holder)
    });
    named.chain(leased).collect()
}

#[test]
fn storm_of_pods_leaks_nothing_despite_kills_and_an_outage_of_the_api_server() {
    let Some(stage) = Stage::enter() else { return };
    let ns = networks(&stage, "e2e-storm");
    let before = NODES.map(|node| stage.host_state(node));
    let count = wanted();
    ns.apply(&pods(count, &NODES));
    let begun = Instant::now();
    let mut killed = (begun, 0);
    all_attached(&stage, &ns, count, || {
        if killed.0.elapsed() >= KILL_EVERY && begun.elapsed() < KILLS_END {
            kill_daemons(&stage);
            killed = (Instant::now(), killed.1 + 1);
        }
    });
    println!(
        "{count} pods Ready after {:.0?}, in which the daemons were killed {} times",
        begun.elapsed(),
        killed.1
    );
    stage.available_on_all_nodes(&["multus"]);

    ns.kubectl(&["delete", "pods", "--all", "--wait=false", "--grace-period=1"]);
    // Like elected controllers that cannot renew their Lease, these exit too. A controller that continues may miss that
    // an object was deleted and created again, and then never removes the objects that the first one owned.
    for program in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        stage.cluster.crash("control", program).unwrap();
    }
    stage.pass(OUTAGE);
    stage.cluster.up(&mut Quiet).unwrap();
    for (node, before) in NODES.iter().zip(&before) {
        stage.wait_equal(
            &format!("links, namespaces, leases, records and cache files of {node} as before"),
            before,
            || stage.host_state(node),
        );
    }
    stage.available();
}

#[test]
fn pods_start_with_their_networks_during_a_roll_out_of_multus() {
    let Some(stage) = Stage::enter() else { return };
    let ns = networks(&stage, "e2e-roll");
    let usual = stage.network_addons_config()["spec"].clone();
    let count = wanted();
    ns.apply(&pods(count, &NODES));
    stage.wait("the first pods are attached", || {
        ns.kubectl(&["get", "pods", "-o", "json"])
            .contains("network-status")
            .then_some(())
    });
    let pods_before: Vec<_> = stage
        .daemonset_pods("multus")
        .iter()
        .map(|pod| pod["metadata"]["uid"].clone())
        .collect();
    // Both nodes, with another template.
    let mut changed = usual.clone();
    changed["placementConfiguration"] =
        json!({ "workloads": { "nodeSelector": { "kubernetes.io/os": "linux" } } });
    stage.configure(&changed);
    all_attached(&stage, &ns, count, || {});
    stage.wait("other pods of multus serve", || {
        let now = stage.daemonset_pods("multus");
        (now.len() == NODES.len()
            && now
                .iter()
                .all(|pod| cluster::is_ready(pod) && !pods_before.contains(&pod["metadata"]["uid"])))
        .then_some(())
    });
    let generation = || stage.daemonset("multus")["metadata"]["generation"].clone();
    let changed = generation();
    stage.configure(&usual);
    stage.wait("the former configuration is applied", || {
        (generation() != changed).then_some(())
    });
    ns.delete_pods();
    stage.available_on_all_nodes(&["multus"]);
}

#[test]
fn node_after_a_power_cut_keeps_no_leases() {
    let Some(stage) = Stage::enter() else { return };
    // Not the operator's node: other checks require that the operator never ends by itself.
    let operators = stage.operator_node();
    let node = NODES.into_iter().find(|node| *node != operators).unwrap();
    let ns = networks(&stage, "e2e-power");
    let count = 6;
    ns.apply(&pods(count, &[node]));
    all_attached(&stage, &ns, count, || {});
    let macs = |name: &str| {
        ns.ready(name).network_status("a")["mac"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let old = macs("p0");

    stage.cluster.cut_power(node).unwrap();
    stage.cluster.up(&mut Quiet).unwrap();
    stage.node(node, &["sh", "-euc", BRIDGE]);
    stage.available_on_all_nodes(&["multus"]);
    stage.wait("the pods are attached anew", || (macs("p0") != old).then_some(()));
    all_attached(&stage, &ns, count, || {});
    ns.delete_pods();
    stage.wait_for("nothing on the node is of a sandbox that is gone", || {
        let strays = strays(&stage, node);
        if strays.is_empty() {
            Ok(())
        } else {
            Err(strays.join("\n"))
        }
    });
}
