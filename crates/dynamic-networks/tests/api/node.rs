//! A node in a directory: a runtime, a daemon, a controller with the rights that it has in a cluster, and pods.

use crate::fake::{self, Daemon, Sandboxes, Served};
use cluster::{ApiServer, wait};
use dynamic_networks::config::Config;
use kube_kit::shutdown::Shutdown;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The API server of this test run, with the NAD definition and the controller's role.
pub(crate) fn api() -> &'static ApiServer {
    static READY: OnceLock<&'static ApiServer> = OnceLock::new();
    READY.get_or_init(|| {
        let api = ApiServer::shared().unwrap();
        let crd = serde_json::to_string(&api::net_attach_def::crd().unwrap()).unwrap();
        api.kubectl().apply(&crd).unwrap();
        let args = ["wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io"];
        api.kubectl().run(args).unwrap();
        // operands.md §2, object 2; and the same without the right to write
        for (name, verbs) in [
            ("dynamic-networks-controller", json!(["get", "list", "update", "watch"])),
            ("reader", json!(["get", "list", "watch"])),
        ] {
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": name}, "rules": [
                    {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"],
                        "verbs": ["get", "list", "watch"]},
                    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": verbs},
                    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]}]});
            api.kubectl().apply(&role.to_string()).unwrap();
        }
        api
    })
}

struct Running {
    shutdown: Shutdown,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// A node, and the namespace of its pods, both of one name.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    pub(crate) name: String,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) daemon: Arc<Mutex<Daemon>>,
    served: Option<Served>,
    runtime: Option<Served>,
    running: Option<Running>,
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
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "controller", "namespace": name}});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": name}]});
        for object in [namespace, account, binding] {
            api().kubectl().apply(&object.to_string()).unwrap();
        }
        let sandboxes = Sandboxes::default();
        let runtime = fake::runtime(&dir.path().join("cri.sock"), Arc::clone(&sandboxes));
        let mut node = Self {
            dir,
            name,
            sandboxes,
            daemon: Arc::default(),
            served: None,
            runtime: Some(runtime),
            running: None,
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
        let config = Config {
            cri_socket: self.path("cri.sock"),
            multus_socket: self.path("multus.sock"),
        };
        let (kubeconfig, name, health) = (self.kubeconfig(), self.name.clone(), self.health());
        let shutdown = Shutdown::new();
        let ends = shutdown.clone();
        let thread = std::thread::spawn(move || {
            let main = async {
                let client = kube_kit::client::client_from("controller", Some(&kubeconfig)).await?;
                dynamic_networks::serve(config, client, &name, &health, ends).await
            };
            kube_kit::process::run(main).unwrap()
        });
        self.running = Some(Running { shutdown, thread });
        wait::until("the controller is ready", DEADLINE, || self.probe("/readyz")).unwrap();
    }

    pub(crate) fn stop(&mut self) {
        let Running { shutdown, thread } = self.running.take().unwrap();
        shutdown.trigger();
        thread.join().unwrap().unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn health(&self) -> PathBuf {
        self.path("health.sock")
    }

    /// What a probe is answered.
    pub(crate) fn probe(&self, path: &str) -> Result<(), String> {
        use std::io::{Read as _, Write as _};
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.health()).map_err(|error| error.to_string())?;
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

    fn kubeconfig(&self) -> PathBuf {
        let kubectl = api().kubectl();
        let token = kubectl
            .run(["create", "token", "controller", "--namespace", &self.name])
            .unwrap();
        let mut config = kubectl.json(["config", "view", "--raw"]).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        let path = self.path("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    pub(crate) fn nad(&self, name: &str, config: &Value) {
        let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": self.name}, "spec": {"config": config.to_string()}});
        api().kubectl().apply(&nad.to_string()).unwrap();
    }

    pub(crate) fn delete_nad(&self, name: &str) {
        api()
            .kubectl()
            .delete(["network-attachment-definitions", name, "--namespace", &self.name])
            .unwrap();
    }

    /// A running pod of this node with a sandbox, that asks for `networks` and has these: network and interface. Returns
    /// its UID.
    pub(crate) fn pod(&self, name: &str, networks: &str, has: &[(&str, &str)]) -> String {
        let status = self.status_of(has);
        let uid = self.pod_with(name, &json!({NETWORKS: networks, STATUS: status}), &json!({}));
        let item = fake::sandbox(&format!("sandbox-{name}"), 0, 1);
        self.sandboxes.lock().unwrap().insert(uid.clone(), vec![item]);
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
        api().kubectl().apply(&pod.to_string()).unwrap();
        self.get(name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) fn run_pod(&self, name: &str) {
        self.patch(name, "status", &json!({"status": {"phase": "Running"}}));
    }

    fn patch(&self, name: &str, subresource: &str, patch: &Value) {
        let flag = format!("--subresource={subresource}");
        let patch = patch.to_string();
        let mut args = vec![
            "patch",
            "pod",
            name,
            "--namespace",
            &self.name,
            "--type=merge",
            "--patch",
            &patch,
        ];
        if !subresource.is_empty() {
            args.push(&flag);
        }
        api().kubectl().run(args).unwrap();
    }

    /// Changes what a pod asks for; `None` takes the annotation away.
    pub(crate) fn ask(&self, name: &str, networks: Option<&str>) {
        self.patch(
            name,
            "",
            &json!({"metadata": {"annotations": {NETWORKS: networks}}}),
        );
    }

    pub(crate) fn touch(&self, name: &str, label: &str) {
        self.patch(name, "", &json!({"metadata": {"labels": {"touched": label}}}));
    }

    fn status_of(&self, has: &[(&str, &str)]) -> String {
        let default = json!({"name": "cluster-net", "interface": "eth0", "default": true, "dns": {}});
        let of = |(network, interface): &(&str, &str)| json!({"name": self.network(network), "interface": interface, "dns": {}});
        let entries: Vec<Value> = std::iter::once(default).chain(has.iter().map(of)).collect();
        json!(entries).to_string()
    }

    fn network(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    pub(crate) fn get(&self, pod: &str) -> Value {
        api()
            .kubectl()
            .get(["pod", pod, "--namespace", &self.name])
            .unwrap()
            .expect("a pod")
    }

    pub(crate) fn entries(&self, pod: &str) -> Vec<Value> {
        let pod = self.get(pod);
        let text = pod["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]");
        serde_json::from_str(text).unwrap()
    }

    /// What a pod's status lists beside the cluster's network: `network interface`.
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

    pub(crate) fn wait_for(&self, pod: &str, expected: &[&str]) {
        wait::until("the status", DEADLINE, || {
            let has = self.has(pod);
            if has == expected {
                Ok(())
            } else {
                Err(format!("{has:?}, and {:?}", self.calls()))
            }
        })
        .unwrap();
        let first = &self.entries(pod)[0];
        assert_eq!(
            first["name"], "cluster-net",
            "the default network stays, and stays first"
        );
    }

    /// What the daemon was asked: `VERB interface plugin`.
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
        wait::until("the calls", DEADLINE, || {
            let calls = self.calls();
            if calls.starts_with(&strings(expected)) {
                Ok(())
            } else {
                Err(format!("{calls:?}"))
            }
        })
        .unwrap();
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
        let selector = format!("involvedObject.name={pod}");
        let args = [
            "get",
            "events",
            "--namespace",
            &self.name,
            "--field-selector",
            &selector,
        ];
        wait::until("events", DEADLINE, || {
            let events = api().kubectl().json(args).map_err(|error| error.to_string())?;
            let of = |event: &Value| {
                assert_eq!(event["source"]["component"], "pod-networks-updates");
                format!(
                    "{} {} {}",
                    event["reason"].as_str().unwrap(),
                    event["count"],
                    event["message"].as_str().unwrap()
                )
            };
            let mut found: Vec<String> = events["items"].as_array().unwrap().iter().map(of).collect();
            found.sort();
            if found.len() >= count {
                Ok(found)
            } else {
                Err(format!("{found:?}"))
            }
        })
        .unwrap()
    }
}

pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown.trigger();
            let _ = running.thread.join();
        }
    }
}
