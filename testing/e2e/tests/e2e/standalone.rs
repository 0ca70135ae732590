//! Multus by its own manifests, without the operator (multus.md §12.1, §12.3, §16).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{NODES, Stage};

const NAMESPACE: &str = "kube-system";
const DAEMONSET: &str = "daemonset/kube-multus-ds";
const WEBHOOK: &str = "nad-webhook.yaml";
/// The image in the manifests as they are published.
const PLACEHOLDER: &str = "registry.example/weft:v0.1.0";

fn path(manifest: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/multus")
        .join(manifest)
}

/// As docs/multus.md and docs/network-definitions.md say.
fn apply(stage: &Stage, manifest: &str) {
    let text = fs::read_to_string(path(manifest)).unwrap();
    assert!(text.contains(PLACEHOLDER), "{manifest}");
    let text = text.replace(PLACEHOLDER, &stage.image());
    stage
        .kubectl
        .apply(&text)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn roll_out(stage: &Stage, resource: &str) {
    stage.kubectl(&["-n", NAMESPACE, "rollout", "status", resource, "--timeout=300s"]);
}

/// The admission webhook of networks, gone when this is dropped.
struct Webhook<'a>(&'a Stage);

impl Drop for Webhook<'_> {
    fn drop(&mut self) {
        let file = path(WEBHOOK).display().to_string();
        // With its pod: the next test may count what is on the nodes.
        let delete = [
            "delete",
            "-f",
            &file,
            "--ignore-not-found",
            "--cascade=foreground",
        ];
        let _ = self.0.try_kubectl(&delete);
        // What it made itself.
        for secret in ["weft-nad-webhook", "weft-nad-webhook-ca"] {
            let _ = self
                .0
                .try_kubectl(&["-n", NAMESPACE, "delete", "secret", secret, "--ignore-not-found"]);
        }
    }
}

/// Multus as users deploy it themselves, instead of the operator's, which comes back when this is dropped.
struct Alone<'a>(&'a Stage);

impl<'a> Alone<'a> {
    fn enter(stage: &'a Stage) -> Self {
        stage.patch_config(&json!([{ "op": "remove", "path": "/spec/multus" }]));
        let alone = Self(stage);
        for node in NODES {
            stage.wait(&format!("the operator's multus is gone from {node}"), || {
                alone.configuration(node).is_empty().then_some(())
            });
        }
        alone
    }

    /// Multus' files among the node's CNI configurations.
    fn configuration(&self, node: &str) -> String {
        self.0
            .node(node, &["find", "/etc/cni/net.d", "-name", "00-multus.conf*"])
    }

    /// Deploys multus and waits until it attaches on all nodes.
    fn deploy(&self, manifest: &str) {
        apply(self.0, manifest);
        roll_out(self.0, DAEMONSET);
        for node in NODES {
            self.0.wait(&format!("{manifest} configures {node}"), || {
                (!self.configuration(node).is_empty()).then_some(())
            });
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // The definition of networks stays, with everybody's networks.
        for object in [
            DAEMONSET,
            "configmap/multus-cni-config",
            "configmap/multus-daemon-config",
            "serviceaccount/multus",
            "clusterrole/multus",
            "clusterrolebinding/multus",
        ] {
            let delete = ["-n", NAMESPACE, "delete", object, "--ignore-not-found"];
            let _ = self
                .0
                .try_kubectl(&[&delete[..], &["--cascade=foreground"]].concat());
        }
        for node in NODES {
            for file in ["00-multus.conf", "00-multus.conflist", "multus.d"] {
                self.0
                    .node(node, &["rm", "-rf", &format!("/etc/cni/net.d/{file}")]);
            }
        }
        self.0
            .patch_config(&json!([{ "op": "add", "path": "/spec/multus", "value": {} }]));
        if !std::thread::panicking() {
            self.0.available_on_all_nodes(&["multus"]);
        }
    }
}

/// A pod on each node, Ready and with an address of the network, which ping each other.
fn attach(ns: &TestNamespace<'_>, names: [&str; 2], addresses: [&str; 2]) {
    for ((name, address), node) in names.iter().zip(addresses).zip(NODES) {
        let networks = json!([{ "name": "lan", "ips": [format!("{address}/24")] }]);
        ns.apply(&pod(name, Some(node), &networks));
    }
    for (name, address) in names.iter().zip(addresses) {
        let ready = ns.ready(name);
        assert_eq!(ready.network_statuses().len(), 2, "{name}");
        assert_eq!(ready.network_status("lan")["ips"], json!([address]), "{name}");
    }
    ns.exec(
        names[0],
        &["ping", "-c", "3", "-W", "10", "-I", "net1", addresses[1]],
    );
}

#[test]
fn without_the_operator_thin_mode_gives_way_to_the_daemon_under_running_pods() {
    let Some(stage) = Stage::enter() else { return };
    let alone = Alone::enter(&stage);
    let ns = TestNamespace::create(&stage, "e2e-standalone");
    ns.apply(&bridge_network("lan", "br1"));
    let before = NODES.map(|node| stage.host_state(node));

    alone.deploy("thin.yaml");
    attach(&ns, ["thin-0", "thin-1"], ["10.77.8.1", "10.77.8.2"]);
    alone.deploy("thick.yaml");
    attach(&ns, ["thick-0", "thick-1"], ["10.77.8.3", "10.77.8.4"]);
    // What one attached stays, and the other one detaches it.
    ns.exec(
        "thin-0",
        &["ping", "-c", "3", "-W", "10", "-I", "net1", "10.77.8.4"],
    );
    ns.delete_pods();
    for (node, before) in NODES.iter().zip(&before) {
        stage.wait_equal(
            &format!("links, namespaces and files of {node} as before"),
            before,
            || stage.host_state(node),
        );
    }
}

#[test]
fn what_is_wrong_with_a_network_is_said_when_it_is_made() {
    let Some(stage) = Stage::enter() else { return };
    apply(&stage, WEBHOOK);
    let _webhook = Webhook(&stage);
    roll_out(&stage, "deployment/weft-nad-webhook");
    let ns = TestNamespace::create(&stage, "e2e-nad-webhook");
    let network = |config: &str| -> Value {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "lan", "namespace": "e2e-nad-webhook" }, "spec": { "config": config },
        })
    };
    let broken = network(r#"{"cniVersion": "1.0.0", "type": "bridge", "bridge": "br1""#);
    // Until it serves, nothing is refused: the webhook's failure policy.
    let refused = stage.wait("a broken definition is refused", || {
        let made = stage.kubectl.apply(&broken.to_string());
        if made.is_ok() {
            ns.kubectl(&["delete", "network-attachment-definitions", "lan"]);
        }
        made.err()
    });
    println!("{refused}");
    assert!(refused.to_string().contains("spec.config"), "{refused}");
    let wrong = network(
        r#"{"cniVersion": "1.0.0", "type": "bridge", "bridge": "br1", "ipam": {"type": "host-local", "subnet": "10.1.0.0/33"}}"#,
    );
    let refused = stage.kubectl.apply(&wrong.to_string()).unwrap_err().to_string();
    assert!(refused.contains("10.1.0.0/33"), "{refused}");
    ns.apply(&bridge_network("lan", "br1"));
}
