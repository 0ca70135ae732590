//! Namespaces that must not disturb each other: networks of other namespaces, where the configuration isolates namespaces,
//! and networks that hang.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::components::Components;
use crate::pods::{TestNamespace, bridge_network, network, pod};
use crate::support::{NODES, Stage};

/// Annotation of multus' pods.
const ANNOTATION: &str = "networkaddonsoperator.network.kubevirt.io/multus-isolation";

// operands#36
#[test]
fn network_of_another_namespace_is_refused_until_isolation_ends() {
    let Some(stage) = Stage::enter() else { return };
    let [own, other, shared] =
        ["e2e-own", "e2e-other", "e2e-shared"].map(|name| TestNamespace::create(&stage, name));
    for namespace in [&own, &other, &shared] {
        namespace.apply(&bridge_network("lan", "br1"));
    }
    let is_isolated = || {
        let set = stage.daemonset("multus");
        !set["spec"]["template"]["metadata"]["annotations"][ANNOTATION].is_null()
    };

    let spec = json!({ "multus": { "namespaceIsolation": true, "globalNamespaces": ["e2e-shared"] } });
    let isolated = Components::deploy(&stage, &spec, &[]);
    stage.wait("multus with isolation", || is_isolated().then_some(()));
    stage.available_on_all_nodes(&["multus"]);
    let element =
        |namespace: &str, address: &str| json!({ "name": "lan", "namespace": namespace, "ips": [address] });
    let allowed = json!([
        element("e2e-own", "10.77.21.1/24"),
        element("e2e-shared", "10.77.22.1/24"),
    ]);
    own.apply(&pod("allowed", None, &allowed));
    let refused = json!([element("e2e-other", "10.77.23.1/24")]);
    own.apply(&pod("refused", None, &refused));
    own.ready("allowed");
    own.wait_for_event(
        "refused",
        "FailedCreatePodSandBox",
        "pod is in namespace e2e-own but refers to target namespace e2e-other",
    );

    drop(isolated);
    stage.wait("multus without isolation", || (!is_isolated()).then_some(()));
    stage.available_on_all_nodes(&["multus"]);
    own.ready("refused");
}

/// Number of pods with networks that hang, on all nodes together.
const HANGING: usize = 20;
/// Directory of each node with the files that their networks name.
const FOLDER: &str = "/var/lib/weft-e2e-hang";
/// A FIFO without a writer, in that directory.
const PIPE: &str = "pipe";
/// A network whose leases are locked.
const HELD: &str = "e2e-held";

/// The directory of a node. A drop removes it.
struct Folder(PathBuf);

impl Folder {
    fn create(stage: &Stage, node: &str) -> Self {
        let path = stage.cluster.node_file(node, FOLDER).unwrap();
        // An interrupted run may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join(HELD)).unwrap();
        stage.node(node, &["mkfifo", &format!("{FOLDER}/{PIPE}")]);
        Self(path)
    }

    /// Locks the leases of the network until the file is closed.
    fn lock(&self) -> File {
        let file = File::create(self.0.join(HELD).join("lock")).unwrap();
        file.lock().unwrap();
        file
    }

    /// Puts a regular file in the place of the FIFO.
    fn mend(&self) {
        let path = self.0.join(PIPE);
        fs::remove_file(&path).unwrap();
        fs::write(path, "nameserver 192.0.2.53\n").unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure would hide the test's own.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A network on the bridge with leases in the directory, and with more settings of its addresses.
fn leased(name: &str, subnet: &str, more: &Value) -> Value {
    let mut ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": subnet }]], "dataDir": FOLDER });
    for (key, value) in more.as_object().into_iter().flatten() {
        ipam[key] = value.clone();
    }
    let config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "cnv-bridge", "bridge": "br1", "ipam": ipam,
    });
    network(name, &config.to_string())
}

// cni-plugins#72
#[test]
fn pods_start_while_networks_of_another_namespace_hang() {
    let Some(stage) = Stage::enter() else { return };
    let folders = NODES.map(|node| Folder::create(&stage, node));
    let [hanging, other] = ["e2e-hanging", "e2e-undisturbed"].map(|name| TestNamespace::create(&stage, name));
    other.apply(&bridge_network("lan", "br1"));
    let alone = pods_start(&other);
    let locks = folders.each_ref().map(Folder::lock);
    let resolv_conf = json!({ "resolvConf": format!("{FOLDER}/{PIPE}") });
    hanging.apply(&leased("e2e-pipe", "10.86.0.0/16", &resolv_conf));
    hanging.apply(&leased(HELD, "10.87.0.0/16", &json!({})));
    let pods = (0..HANGING).map(|index| {
        // Both networks on each node.
        let network = if index % 4 < 2 { "e2e-pipe" } else { HELD };
        let node = NODES[index % NODES.len()];
        pod(&name(index), Some(node), &json!([{ "name": network }]))
    });
    let pods: Vec<_> = pods.collect();
    hanging.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }));
    for text in ["not a regular file", "another process holds the lock"] {
        stage.wait(&format!("an event says \"{text}\""), || {
            let events = hanging.try_kubectl(&["get", "events", "-o", "json"]).ok()?;
            events.contains(text).then_some(())
        });
    }

    let beside = pods_start(&other);
    println!(
        "measured: pods of another namespace start in {} ms beside {HANGING} hanging ones, in {} ms before",
        beside.as_millis(),
        alone.as_millis()
    );
    let pods: Value = serde_json::from_str(&hanging.kubectl(&["get", "pods", "-o", "json"])).unwrap();
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), HANGING);
    assert!(!pods.iter().any(cluster::is_ready), "{pods:#?}");

    // Nothing of the hindered pods is lost.
    drop(locks);
    folders.iter().for_each(Folder::mend);
    for index in 0..HANGING {
        hanging.ready(&name(index));
    }
}

fn name(index: usize) -> String {
    format!("p{index}")
}

/// Starts a pod with a network on each node, deletes them, and returns the time until both are ready.
fn pods_start(namespace: &TestNamespace<'_>) -> Duration {
    let began = Instant::now();
    for (index, node) in NODES.iter().enumerate() {
        let address = format!("10.88.0.{}/24", index + 1);
        let networks = json!([{ "name": "lan", "ips": [address] }]);
        namespace.apply(&pod(&name(index), Some(node), &networks));
    }
    for index in 0..NODES.len() {
        assert!(namespace.ready(&name(index)).has_network_status());
    }
    let took = began.elapsed();
    namespace.delete_pods();
    took
}
