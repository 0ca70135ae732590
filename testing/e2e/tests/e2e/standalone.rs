//! Multus with its own manifests, without the operator (multus.md §12.1, §12.3, §16).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::pods::{TestNamespace, bridge_network, network, pod};
use crate::support::{HostState, NODES, Stage};

const NAMESPACE: &str = "kube-system";
const DAEMONSET: &str = "daemonset/kube-multus-ds";
const THIN: &str = "thin.yaml";
const THICK: &str = "thick.yaml";
const APPROVER: &str = "cert-approver.yaml";
const WEBHOOK: &str = "nad-webhook.yaml";
/// Directories of the kubelets' and of multus' certificates on the nodes.
const KUBELET: &str = "/etc/kubernetes";
const CERTIFICATES: &str = "/etc/cni/multus/certs";
/// The image in the published manifests.
const PLACEHOLDER: &str = "registry.example/weft:v0.1.0";

fn path(manifest: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/multus")
        .join(manifest)
}

/// As described in docs/multus.md and docs/network-definitions.md.
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
    stage.wait(&format!("{resource} is rolled out"), || {
        let is_done = stage.kubectl.is_rolled_out(NAMESPACE, resource);
        is_done.ok()?.then_some(())
    });
}

/// Deletes the objects, and waits for their pods: the next test may check the nodes.
const DELETE: [&str; 3] = ["delete", "--ignore-not-found", "--cascade=foreground"];

/// Deletes an object. A failure would hide the test's own.
fn delete(stage: &Stage, object: &str) {
    let _ = stage.try_kubectl(&[&DELETE[..], &["-n", NAMESPACE, object]].concat());
}

/// The objects of a manifest, and the objects that they create. A drop removes them.
struct Deployed<'a> {
    stage: &'a Stage,
    manifest: &'static str,
    made: &'static [&'static str],
}

impl Drop for Deployed<'_> {
    fn drop(&mut self) {
        let file = path(self.manifest).display().to_string();
        let _ = self.stage.try_kubectl(&[&DELETE[..], &["-f", &file]].concat());
        for object in self.made {
            delete(self.stage, object);
        }
    }
}

/// Multus as deployed by users, instead of the operator's. A drop restores the operator's.
struct Alone<'a>(&'a Stage);

impl<'a> Alone<'a> {
    fn enter(stage: &'a Stage) -> Self {
        stage.remove_multus();
        Self(stage)
    }

    /// Deploys multus and waits until it attaches pods on all nodes.
    fn deploy(&self, manifest: &str) {
        apply(self.0, manifest);
        self.attaches();
    }

    fn attaches(&self) {
        roll_out(self.0, DAEMONSET);
        for node in NODES {
            self.0.wait(&format!("multus configures {node}"), || {
                (!self.0.multus_configuration(node).is_empty()).then_some(())
            });
        }
    }

    /// Deploys the daemon as described in docs/multus.md, with a certificate for each node.
    fn deploy_with_certificates(&self) {
        let file = path(THICK).display().to_string();
        let text = self
            .0
            .kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &file]);
        let text = text.replace(PLACEHOLDER, &self.0.image());
        let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let mut objects: Vec<Value> = objects.map(Result::unwrap).collect();
        for object in &mut objects {
            match object["kind"].as_str().unwrap() {
                "ConfigMap" => {
                    let text = &mut object["data"]["daemon-config.json"];
                    let mut config: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
                    config["perNodeCertificate"] = json!({
                        "enabled": true, "certDir": CERTIFICATES, "certDuration": "24h",
                        "bootstrapKubeconfig": format!("{KUBELET}/kubelet.kubeconfig"),
                    });
                    *text = json!(config.to_string());
                }
                "DaemonSet" => {
                    let pod = &mut object["spec"]["template"]["spec"];
                    for (name, path) in [("kubelet-identity", KUBELET), ("certificates", CERTIFICATES)] {
                        let mounts = pod["containers"][0]["volumeMounts"].as_array_mut().unwrap();
                        mounts.push(json!({ "name": name, "mountPath": path }));
                        let host = json!({ "path": path, "type": "DirectoryOrCreate" });
                        let volumes = pod["volumes"].as_array_mut().unwrap();
                        volumes.push(json!({ "name": name, "hostPath": host }));
                    }
                }
                _ => {}
            }
        }
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let applied = self.0.kubectl.apply(&list.to_string());
        applied.unwrap_or_else(|error| panic!("{error}"));
        self.attaches();
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // The definition of networks is kept, because it contains the networks of all users.
        for object in [
            DAEMONSET,
            "configmap/multus-cni-config",
            "configmap/multus-daemon-config",
            "serviceaccount/multus",
            "clusterrole/multus",
            "clusterrolebinding/multus",
        ] {
            delete(self.0, object);
        }
        for node in NODES {
            for file in ["00-multus.conf", "00-multus.conflist", "multus.d"] {
                self.0
                    .node(node, &["rm", "-rf", &format!("/etc/cni/net.d/{file}")]);
            }
            self.0.node(node, &["rm", "-rf", CERTIFICATES]);
        }
        self.0.add_multus();
        if !std::thread::panicking() {
            self.0.available_on_all_nodes(&["multus"]);
        }
    }
}

/// Creates a pod on each node with an address of the network. The pods are Ready and ping each other.
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
    ns.ping(names[0], addresses[1]);
}

#[test]
fn daemon_replaces_thin_mode_under_running_pods_without_the_operator() {
    let Some(stage) = Stage::enter() else { return };
    let alone = Alone::enter(&stage);
    let ns = TestNamespace::create(&stage, "e2e-standalone");
    ns.apply(&bridge_network("lan", "br1"));
    let before = NODES.map(|node| stage.host_state(node));

    alone.deploy(THIN);
    attach(&ns, ["thin-0", "thin-1"], ["10.77.8.1", "10.77.8.2"]);
    alone.deploy(THICK);
    for node in NODES {
        // It sorts before the file of thin mode.
        let files = stage.multus_configuration(node);
        assert!(
            files.lines().any(|file| file.ends_with("/00-multus.conf")),
            "{files}"
        );
    }
    attach(&ns, ["thick-0", "thick-1"], ["10.77.8.3", "10.77.8.4"]);
    // Attachments of one program are kept, and the other program detaches them.
    ns.ping("thin-0", "10.77.8.4");
    ns.delete_pods();
    for (node, before) in NODES.iter().zip(&before) {
        // The new multus detaches sandboxes whose DEL found no daemon, so that fewer attachments may remain.
        stage.wait_equal(
            &format!("no more links, namespaces and files on {node} than before"),
            &HostState::default(),
            || stage.host_state(node).beyond(before),
        );
    }
}

#[test]
fn node_uses_a_certificate_that_the_cluster_signed() {
    // multus.md §7.8
    let Some(stage) = Stage::enter() else { return };
    let alone = Alone::enter(&stage);
    apply(&stage, APPROVER);
    let _approver = Deployed {
        stage: &stage,
        manifest: APPROVER,
        made: &[],
    };
    alone.deploy_with_certificates();
    let ns = TestNamespace::create(&stage, "e2e-certificates");
    ns.apply(&bridge_network("lan", "br1"));
    attach(&ns, ["p0", "p1"], ["10.77.13.1", "10.77.13.2"]);
    let audit = stage.audit();
    for node in NODES {
        let user = format!("system:multus:{node}");
        let is_written = audit.iter().any(|event| {
            event["user"]["username"] == user.as_str()
                && event["objectRef"]["namespace"] == "e2e-certificates"
                && event["objectRef"]["subresource"] == "status"
                && event["responseStatus"]["code"] == 200
        });
        assert!(is_written, "no status of a pod was written by {user}");
    }
}

#[test]
fn invalid_network_is_refused_at_its_creation() {
    let Some(stage) = Stage::enter() else { return };
    apply(&stage, WEBHOOK);
    let _webhook = Deployed {
        stage: &stage,
        manifest: WEBHOOK,
        made: &["secret/weft-nad-webhook", "secret/weft-nad-webhook-ca"],
    };
    roll_out(&stage, "deployment/weft-nad-webhook");
    let ns = TestNamespace::create(&stage, "e2e-nad-webhook");
    let broken = network(
        "lan",
        r#"{"cniVersion": "1.0.0", "type": "bridge", "bridge": "br1""#,
    );
    // Until the webhook serves, nothing is refused, because of its failure policy.
    let refused = stage.wait("a broken definition is refused", || {
        let made = ns.try_apply(&broken);
        if made.is_ok() {
            ns.kubectl(&["delete", "network-attachment-definitions", "lan"]);
        }
        made.err()
    });
    assert!(refused.contains("spec.config"), "{refused}");
    let wrong = json!({
        "cniVersion": "1.0.0", "type": "bridge", "bridge": "br1",
        "ipam": { "type": "host-local", "subnet": "10.1.0.0/33" },
    });
    let refused = ns.try_apply(&network("lan", &wrong.to_string())).unwrap_err();
    assert!(refused.contains("10.1.0.0/33"), "{refused}");
    ns.apply(&bridge_network("lan", "br1"));
}
