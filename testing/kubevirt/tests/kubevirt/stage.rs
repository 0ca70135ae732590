//! The cluster with the product and KubeVirt, and a namespace for each test.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cluster::{Cluster, Kubectl, run, wait};
use e2e::{IMAGE_VARIABLE, OPERATOR_NAMESPACE};
use serde_json::{Value, json};

/// Deadline of waits. Generous, because machines differ by a factor of ten.
const DEADLINE: Duration = Duration::from_secs(300);
/// Networks of the test's namespace, on the bridge over the spare NICs of all nodes.
const NETWORKS: [&str; 2] = ["blue", "green"];

/// The environment of a test. A drop deletes the namespace, unless the test failed.
pub struct Stage {
    pub cluster: Cluster,
    pub kubectl: Kubectl,
    pub namespace: &'static str,
}

impl Stage {
    /// Returns the environment. Without a cluster, prints the reason and returns `None`.
    pub fn enter(namespace: &'static str) -> Option<Self> {
        if std::env::var(IMAGE_VARIABLE).is_err() {
            println!(
                "skipped: no cluster with KubeVirt and the product on it; run `cargo xtask test kubevirt`"
            );
            return None;
        }
        let cluster = Cluster::from_env().expect("the cluster");
        let stage = Self {
            kubectl: cluster.kubectl(),
            cluster,
            namespace,
        };
        stage.configure();
        stage.create_namespace();
        Some(stage)
    }

    /// Makes the operator deploy every component, if it does not already.
    fn configure(&self) {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/network-addons-config-all.yaml");
        let config = fs::read_to_string(file).unwrap();
        self.kubectl.apply(&config).unwrap();
        let of_deployment = ["replicas", "updatedReplicas", "availableReplicas"];
        let of_daemon_set = [
            "desiredNumberScheduled",
            "updatedNumberScheduled",
            "numberAvailable",
        ];
        for (kind, name, counts) in [
            ("deployment", "kubemacpool-mac-controller-manager", of_deployment),
            ("deployment", "kubevirt-ipam-controller-manager", of_deployment),
            ("deployment", "secondary-dns", of_deployment),
            ("daemonset", "dynamic-networks-controller-ds", of_daemon_set),
        ] {
            self.wait(&format!("{kind} {name} runs in its newest form"), || {
                let object = self.kubectl.get(["-n", OPERATOR_NAMESPACE, kind, name]);
                let object = object.ok()??;
                let status = &object["status"];
                let seen = object["metadata"]["generation"] == status["observedGeneration"];
                let numbers = counts.map(|field| status[field].as_u64().unwrap_or_default());
                (seen && numbers[0] > 0 && numbers == [numbers[0]; 3]).then_some(())
            });
        }
    }

    /// Deletes the namespace, and first its virtual machines, which would otherwise be started again.
    fn clear(&self) {
        let machines = ["--namespace", self.namespace, "vm", "--all"];
        self.kubectl.delete(machines).unwrap();
        self.kubectl.delete(["namespace", self.namespace]).unwrap();
    }

    fn create_namespace(&self) {
        // An interrupted run may have left the namespace.
        self.clear();
        self.kubectl.run(["create", "namespace", self.namespace]).unwrap();
        for name in NETWORKS {
            let config = json!({
                "cniVersion": "1.0.0", "name": name, "type": "cnv-bridge", "bridge": "br1",
                "capabilities": { "mac": true },
            });
            self.apply(&json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": { "name": name }, "spec": { "config": config.to_string() },
            }));
        }
    }

    /// Applies an object in the test's namespace.
    pub fn apply(&self, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["namespace"] = json!(self.namespace);
        self.kubectl.apply(&object.to_string()).unwrap();
    }

    /// Returns the API server's warnings for an object, which is not created.
    pub fn warnings(&self, object: &Value) -> String {
        let mut object = object.clone();
        object["metadata"]["namespace"] = json!(self.namespace);
        let mut command = self
            .kubectl
            .command(["create", "--dry-run=server", "--filename", "-"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(object.to_string().as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{warnings}");
        warnings
    }

    /// Runs kubectl in the test's namespace.
    pub fn run(&self, args: &[&str]) -> String {
        let args = [&["-n", self.namespace], args].concat();
        self.kubectl
            .run(args)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.evidence()))
    }

    /// An object of the test's namespace, if it exists.
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.kubectl.get(["-n", self.namespace, kind, name]).unwrap()
    }

    /// All objects of a kind in the test's namespace.
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.kubectl.json(["-n", self.namespace, "get", kind]).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Sends an object to a path of the API server, by `create` (POST) or `replace` (PUT).
    pub fn send(&self, verb: &str, path: &str, object: &Value) -> Result<String, String> {
        let mut command = self.kubectl.command([verb, "--raw", path, "--filename", "-"]);
        run::output_with_input(&mut command, object.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    /// Waits for a condition; at the deadline prints the state of the namespace.
    pub fn wait<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let outcome = wait::until_some(what, DEADLINE, &mut condition, || self.evidence());
        outcome.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until a condition has nothing to complain about any more.
    pub fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Result<T, String>) -> T {
        let outcome = wait::until(what, DEADLINE, &mut condition);
        outcome.unwrap_or_else(|error| panic!("{error}\n{}", self.evidence()))
    }

    /// Names of the host's ends of all attachments of all nodes.
    pub fn veths(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for node in self.cluster.nodes() {
            let list = ["ip", "-oneline", "link", "show", "type", "veth"];
            let mut command = self.cluster.node_command(node, list).unwrap();
            let output = run::output(&mut command).unwrap();
            let names = output.lines().filter_map(|line| line.split(": ").nth(1));
            found.extend(names.map(|name| format!("{node} {name}")));
        }
        found
    }

    pub fn evidence(&self) -> String {
        let show = |args: &[&str]| {
            let shown = self.kubectl.run(args).unwrap_or_else(|error| error.to_string());
            format!("-- kubectl {}\n{shown}\n", args.join(" "))
        };
        let mut text = show(&["-n", self.namespace, "get", "vm,vmi,vmim,pods", "-o", "wide"]);
        text.push_str(&show(&["-n", self.namespace, "get", "vmi", "-o", "yaml"]));
        text.push_str(&show(&[
            "-n",
            self.namespace,
            "get",
            "events",
            "--sort-by=.lastTimestamp",
        ]));
        for log in self.cluster.logs() {
            let name = log.display().to_string();
            if name.contains("control-virt-") {
                let output = std::fs::read_to_string(&log).unwrap_or_default();
                text.push_str(&format!("-- {name}{}\n", run::tail(&output)));
            }
        }
        text
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clear();
        }
    }
}
