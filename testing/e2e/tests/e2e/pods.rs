//! Namespaces, networks and pods of single tests.

use serde_json::{Value, json};

use crate::support::Stage;

/// A namespace of a test. A drop deletes it.
pub struct TestNamespace<'a> {
    stage: &'a Stage,
    name: &'static str,
}

const DELETE_PODS: [&str; 5] = ["delete", "pods", "--all", "--wait", "--grace-period=1"];

/// The command of a container that exits at once on SIGTERM: the first process of a container ignores signals without a
/// handler.
const SLEEP: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"];

/// A pod that is Ready.
pub struct ReadyPod {
    pub name: String,
    object: Value,
}

impl<'a> TestNamespace<'a> {
    pub fn create(stage: &'a Stage, name: &'static str) -> Self {
        // An interrupted run may have left the namespace.
        let _ = stage.try_kubectl(&["delete", "namespace", name, "--ignore-not-found", "--wait"]);
        stage.kubectl(&["create", "namespace", name]);
        stage.wait("the namespace has its service account", || {
            stage
                .try_kubectl(&["-n", name, "get", "serviceaccount", "default"])
                .ok()
        });
        Self { stage, name }
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        self.stage.kubectl(&[&["-n", self.name], args].concat())
    }

    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.stage.try_kubectl(&[&["-n", self.name], args].concat())
    }

    pub fn apply(&self, object: &Value) {
        self.try_apply(object).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn try_apply(&self, object: &Value) -> Result<(), String> {
        let mut object = object.clone();
        let place = |object: &mut Value| object["metadata"]["namespace"] = json!(self.name);
        match object.get_mut("items").and_then(Value::as_array_mut) {
            Some(items) => items.iter_mut().for_each(place),
            None => place(&mut object),
        }
        let applied = self.stage.kubectl.apply(&object.to_string());
        applied.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until a pod is Ready.
    pub fn ready(&self, name: &str) -> ReadyPod {
        let object = self
            .stage
            .wait(&format!("pod {}/{name} is Ready", self.name), || {
                let pod = self
                    .stage
                    .kubectl
                    .get(["-n", self.name, "pod", name])
                    .ok()
                    .flatten()?;
                cluster::is_ready(&pod).then_some(pod)
            });
        ReadyPod {
            name: name.to_owned(),
            object,
        }
    }

    pub fn exec(&self, pod: &str, argv: &[&str]) -> String {
        self.kubectl(&[&["exec", pod, "--"], argv].concat())
    }

    /// Makes a pod connect to an address on its first secondary network.
    pub fn ping(&self, pod: &str, address: &str) -> String {
        self.exec(pod, &["ping", "-c", "3", "-W", "10", "-I", "net1", address])
    }

    /// Waits for an event of a pod whose message contains a text, and returns the message.
    pub fn wait_for_event(&self, pod: &str, reason: &str, text: &str) -> String {
        self.stage
            .wait(&format!("event {reason} of pod {pod} says \"{text}\""), || {
                let events = self
                    .stage
                    .kubectl
                    .json(["-n", self.name, "get", "events", "-o", "json"])
                    .ok()?;
                let events = events["items"].as_array()?.clone();
                events.into_iter().find_map(|event| {
                    let message = event["message"].as_str()?;
                    let matches = event["involvedObject"]["name"] == pod
                        && event["reason"] == reason
                        && message.contains(text);
                    matches.then(|| message.to_owned())
                })
            })
    }

    pub fn delete_pods(&self) {
        self.kubectl(&DELETE_PODS);
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        // The deletion waits for pods, because the next test may check the nodes. The end of the namespace would take
        // seconds more. A failure would hide the test's own.
        let _ = self.try_kubectl(&[&DELETE_PODS[..], &["--timeout=180s"]].concat());
        let _ = self
            .stage
            .try_kubectl(&["delete", "namespace", self.name, "--wait=false"]);
    }
}

impl ReadyPod {
    pub fn node(&self) -> &str {
        self.object["spec"]["nodeName"].as_str().unwrap()
    }

    pub fn has_network_status(&self) -> bool {
        self.object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].is_string()
    }

    pub fn network_statuses(&self) -> Vec<Value> {
        let annotation = &self.object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
        let text = annotation
            .as_str()
            .unwrap_or_else(|| panic!("pod {} has no network-status", self.name));
        serde_json::from_str(text).unwrap()
    }

    /// The status of a network in the pod's namespace.
    pub fn network_status(&self, network: &str) -> Value {
        let full = format!(
            "{}/{network}",
            self.object["metadata"]["namespace"].as_str().unwrap()
        );
        let statuses = self.network_statuses();
        let found = statuses.iter().find(|status| status["name"] == full.as_str());
        found
            .unwrap_or_else(|| panic!("{full} is not in {statuses:#?}"))
            .clone()
    }
}

/// A NetworkAttachmentDefinition on a bridge. Pods choose their addresses.
pub fn bridge_network(name: &str, bridge: &str) -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "cnv-bridge", "bridge": bridge,
        "capabilities": { "ips": true }, "ipam": { "type": "static" },
    });
    network(name, &config.to_string())
}

/// A NetworkAttachmentDefinition.
pub fn network(name: &str, config: &str) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name }, "spec": { "config": config },
    })
}

/// A sleeping pod, on a node or on any node, with a selection of networks.
pub fn pod(name: &str, node: Option<&str>, networks: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": networks.to_string() } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": cluster::image::BUSYBOX, "imagePullPolicy": "IfNotPresent",
                "command": SLEEP,
            }],
        },
    });
    if let Some(node) = node {
        pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    }
    pod
}
