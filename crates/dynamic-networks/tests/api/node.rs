//! A node in a directory: a runtime, a daemon, a controller with the rights that it has in a cluster, and pods.

use crate::fake::{self, Daemon, Sandboxes, Served};
use crate::way::Way;
use axum::http::Method;
use cluster::ApiServer;
use dynamic_networks::config::{Config, Timeouts};
use serde_json::{Value, json};
use stage::{Admin, Task, until};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
pub(crate) const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The rights of the controller, as they are deployed.
const ROLE: &str = include_str!("../../../operator/src/components/multus_dynamic_networks/native-role.yaml");
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const DEFINITIONS: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/network-attachment-definitions.k8s.cni.cncf.io";

/// The API server of this test run, with the NAD definition and the controller's role.
pub(crate) fn api() -> &'static Admin {
    static READY: OnceLock<Admin> = OnceLock::new();
    READY.get_or_init(|| {
        let admin = Admin::of(ApiServer::shared().unwrap());
        admin.apply(&json!(api::net_attach_def::crd().unwrap()));
        admin.wait_for("the definition", DEFINITIONS, |found| {
            let conditions = found?["status"]["conditions"].as_array()?;
            let is_served =
                |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
            conditions.iter().any(is_served).then_some(())
        });
        admin.kubectl().apply(ROLE).unwrap();
        // The same without the right to write.
        let role = admin
            .get(&format!("{ROLES}/dynamic-networks-controller"))
            .unwrap();
        let mut rules = role["rules"].clone();
        rules
            .as_array_mut()
            .unwrap()
            .retain(|rule| rule["resources"] != json!(["pods/status"]));
        let reader = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "reader"}, "rules": rules});
        admin.create(ROLES, &reader);
        admin
    })
}

/// A node, and the namespace of its pods, both of one name.
pub(crate) struct Node {
    running: Option<Task>,
    dir: tempfile::TempDir,
    pub(crate) name: String,
    pub(crate) timeouts: Timeouts,
    /// Between the controller and the API server.
    pub(crate) way: Way,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) daemon: Arc<Mutex<Daemon>>,
    served: Option<Served>,
    runtime: Option<Served>,
}

impl Node {
    /// A node with a running controller.
    pub(crate) fn started() -> Self {
        let mut node = Self::new("dynamic-networks-controller");
        node.start();
        node
    }

    /// A node whose controller will have this role.
    pub(crate) fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dynamic{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        api().namespace(&name, &[]);
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": name}]});
        api().create(BINDINGS, &binding);
        let sandboxes = Sandboxes::default();
        let runtime = fake::runtime(&dir.path().join("cri.sock"), Arc::clone(&sandboxes));
        let mut node = Self {
            running: None,
            dir,
            name,
            timeouts: Timeouts::default(),
            way: Way::default(),
            sandboxes,
            daemon: Arc::default(),
            served: None,
            runtime: Some(runtime),
        };
        node.start_daemon();
        for network in ["a", "b", "c"] {
            node.nad(network, &json!({"cniVersion": "0.3.1", "type": network}));
        }
        node
    }

    pub(crate) fn start_daemon(&mut self) {
        self.served = Some(fake::daemon(&self.path("multus.sock"), Arc::clone(&self.daemon)));
    }

    pub(crate) fn stop_daemon(&mut self) {
        self.served = None;
    }

    pub(crate) fn stop_runtime(&mut self) {
        self.runtime = None;
    }

    pub(crate) fn start(&mut self) {
        self.start_with(self.path("multus.sock"));
    }

    /// A controller with another path to the daemon's socket.
    pub(crate) fn start_with(&mut self, multus_socket: PathBuf) {
        let config = Config {
            cri_socket: self.path("cri.sock"),
            multus_socket,
            timeouts: self.timeouts,
        };
        let account = format!("system:serviceaccount:{}:controller", self.name);
        let (name, health, way) = (self.name.clone(), self.path("health.sock"), self.way.clone());
        self.running = Some(Task::start(async move |shutdown| {
            let client = way.client(stage::config(api().kubeconfig(), Some(&account)).await);
            let served = dynamic_networks::serve(config, client, &name, &health, shutdown);
            served.await.unwrap();
        }));
        until("the controller is ready", || self.probe("/readyz"));
    }

    /// Ends the controller as SIGTERM does, and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.running = None;
    }

    /// Sends SIGTERM to the controller.
    pub(crate) fn interrupt(&self) {
        self.running.as_ref().unwrap().interrupt();
    }

    /// Ends the controller as SIGKILL does.
    pub(crate) fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The answer to a probe.
    pub(crate) fn probe(&self, path: &str) -> Result<(), String> {
        use std::io::{Read as _, Write as _};
        let mut stream = std::os::unix::net::UnixStream::connect(self.path("health.sock"))
            .map_err(|error| error.to_string())?;
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: dummy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .map_err(|error| error.to_string())?;
        if answer.starts_with("HTTP/1.1 200 ") {
            Ok(())
        } else {
            Err(answer)
        }
    }

    fn nads(&self) -> String {
        let name = &self.name;
        format!("/apis/k8s.cni.cncf.io/v1/namespaces/{name}/network-attachment-definitions")
    }

    pub(crate) fn nad(&self, name: &str, config: &Value) {
        let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": self.name}, "spec": {"config": config.to_string()}});
        api().create(&self.nads(), &nad);
    }

    pub(crate) fn delete_nad(&self, name: &str) {
        api().delete(&format!("{}/{name}", self.nads()));
    }

    /// A running pod of this node with a sandbox. It requests `networks` and has the attachments of `has`: network and
    /// interface. Returns its UID.
    pub(crate) fn pod(&self, name: &str, networks: &str, has: &[(&str, &str)]) -> String {
        let status = self.status_of(has);
        let uid = self.pod_with(name, &json!({NETWORKS: networks, STATUS: status}), &json!({}));
        let sandbox = format!("sandbox-{name}");
        let item = fake::sandbox(&sandbox, 0, 1);
        self.sandboxes.lock().unwrap().insert(uid.clone(), vec![item]);
        for (network, ifname) in has {
            let place = (sandbox.clone(), (*ifname).to_owned());
            let mut daemon = self.daemon.lock().unwrap();
            daemon.plugged.insert(place, self.network(network));
        }
        self.run_pod(name);
        uid
    }

    /// A pod that does not run yet.
    pub(crate) fn pod_with(&self, name: &str, annotations: &Value, spec: &Value) -> String {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name, "annotations": annotations, "labels": {"app": "test"}},
            "spec": {"nodeName": self.name, "containers": [{"name": "c", "image": "none"}],
                "terminationGracePeriodSeconds": 0}});
        let more = spec.as_object().cloned().unwrap();
        pod["spec"].as_object_mut().unwrap().extend(more);
        let created = api().create(&self.pods(), &pod);
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.name)
    }

    pub(crate) fn pod_path(&self, name: &str) -> String {
        format!("{}/{name}", self.pods())
    }

    pub(crate) fn run_pod(&self, name: &str) {
        api().report(&self.pod_path(name), &json!({"phase": "Running"}));
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        api().delete(&self.pod_path(name));
    }

    pub(crate) fn annotate(&self, name: &str, key: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        api().patch(&self.pod_path(name), &patch).accepted();
    }

    /// Changes a pod's request; `None` removes the annotation.
    pub(crate) fn ask(&self, name: &str, networks: Option<&str>) {
        self.annotate(name, NETWORKS, networks);
    }

    pub(crate) fn touch(&self, name: &str, label: &str) {
        let patch = json!({"metadata": {"labels": {"touched": label}}});
        api().patch(&self.pod_path(name), &patch).accepted();
    }

    pub(crate) fn status_of(&self, has: &[(&str, &str)]) -> String {
        let default = json!({"name": "cluster-net", "interface": "eth0", "default": true, "dns": {}});
        let of = |(network, interface): &(&str, &str)| json!({"name": self.network(network), "interface": interface, "dns": {}});
        let entries: Vec<Value> = std::iter::once(default).chain(has.iter().map(of)).collect();
        json!(entries).to_string()
    }

    pub(crate) fn network(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    pub(crate) fn get(&self, pod: &str) -> Value {
        api().get(&self.pod_path(pod)).expect("a pod")
    }

    pub(crate) fn entries(&self, pod: &str) -> Vec<Value> {
        let pod = self.get(pod);
        let text = pod["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]");
        serde_json::from_str(text).unwrap()
    }

    /// The networks in a pod's status beside the cluster's: `network interface`.
    pub(crate) fn has(&self, pod: &str) -> Vec<String> {
        let prefix = format!("{}/", self.name);
        let entries = self.entries(pod);
        let others = entries.iter().filter(|entry| entry["default"] != true);
        others
            .map(|entry| {
                let name = entry["name"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches(&prefix)
                    .to_owned();
                format!("{name} {}", entry["interface"].as_str().unwrap())
            })
            .collect()
    }

    /// Waits until the status and the daemon list exactly these attachments of the pod.
    pub(crate) fn wait_for(&self, pod: &str, expected: &[&str]) {
        until("the status", || {
            let (has, mut plugged) = (self.has(pod), self.plugged(pod));
            let mut sorted = has.clone();
            sorted.sort();
            plugged.sort();
            if has == expected && sorted == plugged {
                Ok(())
            } else {
                Err(format!(
                    "status {has:?}, plugged {plugged:?}, and {:?}",
                    self.calls()
                ))
            }
        });
        let first = &self.entries(pod)[0];
        assert_eq!(
            first["name"], "cluster-net",
            "the default network stays, and stays first"
        );
    }

    /// The daemon's attachments of a pod: `network interface`.
    pub(crate) fn plugged(&self, pod: &str) -> Vec<String> {
        let (prefix, of_pod) = (format!("{}/", self.name), format!("sandbox-{pod}"));
        let daemon = self.daemon.lock().unwrap();
        let plugged = daemon.plugged.iter();
        plugged
            .filter(|((sandbox, _), _)| *sandbox == of_pod)
            .map(|((_, ifname), network)| format!("{} {ifname}", network.trim_start_matches(&prefix)))
            .collect()
    }

    /// The daemon's requests: `VERB interface plugin`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let of = |call: &Value| {
            let env = &call["env"];
            format!(
                "{} {} {}",
                text(&env["CNI_COMMAND"]),
                text(&env["CNI_IFNAME"]),
                text(&call["config"]["type"])
            )
        };
        self.daemon.lock().unwrap().calls.iter().map(of).collect()
    }

    pub(crate) fn wait_for_calls(&self, expected: &[&str]) {
        until("the calls", || {
            let calls = self.calls();
            if calls.starts_with(&strings(expected)) {
                Ok(())
            } else {
                Err(format!("{calls:?}"))
            }
        });
    }

    /// From now on the daemon does not answer to this, such as `ADD net1`.
    pub(crate) fn hold(&self, what: &str) {
        let daemon = self.daemon.lock().unwrap();
        daemon.held.send_modify(|held| _ = held.insert(what.to_owned()));
    }

    pub(crate) fn release(&self) {
        self.daemon.lock().unwrap().held.send_replace(BTreeSet::new());
    }

    pub(crate) fn answer(&self, what: &str, status: u16, text: &str) {
        let answer = (status, text.to_owned());
        self.daemon.lock().unwrap().answers.insert(what.into(), answer);
    }

    pub(crate) fn answer_as_usual(&self) {
        self.daemon.lock().unwrap().answers.clear();
    }

    /// Reason, count and text of the events about a pod, as soon as there are this many different ones.
    pub(crate) fn events(&self, pod: &str, count: usize) -> Vec<String> {
        until("events", || {
            let mut events = api().list(&format!("/api/v1/namespaces/{}/events", self.name));
            events.retain(|event| event["involvedObject"]["name"] == pod);
            let of = |event: &Value| {
                assert_eq!(event["source"]["component"], "pod-networks-updates");
                format!(
                    "{} {} {}",
                    event["reason"].as_str().unwrap(),
                    event["count"],
                    event["message"].as_str().unwrap()
                )
            };
            let mut found: Vec<String> = events.iter().map(of).collect();
            found.sort();
            if found.len() >= count {
                Ok(found)
            } else {
                Err(format!("{found:?}, and {:?}", self.calls()))
            }
        })
    }

    /// Whether this is a write of a pod's status.
    pub(crate) fn is_status(method: &Method, path: &str) -> bool {
        *method == Method::PUT && path.ends_with("/status")
    }
}

pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Drop for Node {
    /// Releases everything that would delay the controller's end.
    fn drop(&mut self) {
        self.way.is_good();
        kube_kit::lock(&self.daemon).held.send_replace(BTreeSet::new());
        self.running = None;
    }
}
