//! The shared environment of all tests: the cluster, its nodes, and their state.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{Cluster, Kubectl, run, wait};
use serde_json::{Value, json};

use e2e::availability;
pub use e2e::{NODES, OPERATOR, OPERATOR_NAMESPACE};

use crate::log::Log;
use crate::record::Record;

/// Deadline of waits. Generous, because machines differ by a factor of ten.
const DEADLINE: Duration = Duration::from_secs(300);

const CR: [&str; 3] = ["get", "networkaddonsconfig", "cluster"];

/// The cluster with the product, used by one test at a time.
pub struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) kubectl: Kubectl,
    image: String,
    record: Record,
    _turn: MutexGuard<'static, ()>,
}

/// State of attachments on a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HostState {
    pub veths: BTreeSet<String>,
    pub namespaces: BTreeSet<String>,
    pub scratch: BTreeSet<String>,
    pub results: BTreeSet<String>,
    pub leases: BTreeSet<String>,
    pub records: BTreeSet<String>,
    /// Lines of the ruleset with an attachment.
    pub rules: BTreeSet<String>,
}

impl HostState {
    /// Returns the items of this state that the earlier one lacks.
    pub fn beyond(&self, before: &Self) -> Self {
        let more =
            |now: &BTreeSet<String>, before: &BTreeSet<String>| now.difference(before).cloned().collect();
        Self {
            veths: more(&self.veths, &before.veths),
            namespaces: more(&self.namespaces, &before.namespaces),
            scratch: more(&self.scratch, &before.scratch),
            results: more(&self.results, &before.results),
            leases: more(&self.leases, &before.leases),
            records: more(&self.records, &before.records),
            rules: more(&self.rules, &before.rules),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.has_no_restarts();
            let found = availability::violations(self.record.end());
            assert!(found.is_empty(), "{}\n{}", found.join("\n"), self.evidence());
        }
    }
}

impl Stage {
    /// Waits for this test's turn, and returns the environment. Without a cluster, prints the reason and returns
    /// `None`.
    pub fn enter() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(image) = std::env::var(e2e::IMAGE_VARIABLE) else {
            println!("skipped: no cluster with the product on it; run `cargo xtask test e2e`");
            return None;
        };
        let cluster = Cluster::from_env().expect("the cluster");
        let kubectl = cluster.kubectl();
        let stage = Self {
            record: Record::start(&kubectl),
            cluster,
            kubectl,
            image,
            _turn: turn,
        };
        stage.wait("the record of the configuration begins", || {
            stage.record.has_begun().then_some(())
        });
        stage.available();
        stage.wait_for("the workloads of earlier tests are gone or rolled out", || {
            stage.settled()
        });
        Some(stage)
    }

    /// Fails with the objects of the operator's namespace that end, whose owner is gone, or whose roll-out is in
    /// progress: a configuration is Available before the pods of an earlier one have left their nodes.
    fn settled(&self) -> Result<(), String> {
        let kinds = "deployments,replicasets,daemonsets,pods";
        let list = self
            .kubectl
            .json(["-n", OPERATOR_NAMESPACE, "get", kinds])
            .map_err(|error| error.to_string())?;
        let objects = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let exists = |uid: &Value| objects.iter().any(|object| object["metadata"]["uid"] == *uid);
        let is_unsettled = |object: &&Value| {
            let metadata = &object["metadata"];
            let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
            let is_orphaned = owners.any(|owner| owner["apiVersion"] == "apps/v1" && !exists(&owner["uid"]));
            let is_rolling = match object["kind"].as_str() {
                Some(kind @ ("DaemonSet" | "Deployment")) => availability::unfinished(kind, object).is_some(),
                _ => false,
            };
            metadata["deletionTimestamp"].is_string() || is_orphaned || is_rolling
        };
        let unsettled: Vec<_> = objects
            .iter()
            .filter(is_unsettled)
            .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]))
            .collect();
        if unsettled.is_empty() {
            Ok(())
        } else {
            Err(unsettled.join("\n"))
        }
    }

    /// Waits until a workload of the operator's namespace is gone.
    pub fn wait_gone(&self, kind: &str, name: &str) {
        self.wait(&format!("{kind} {name} is gone"), || {
            let left = self.kubectl.get(["-n", OPERATOR_NAMESPACE, kind, name]);
            left.ok()?.is_none().then_some(())
        });
    }

    /// Checks that the operator has not ended by itself.
    fn has_no_restarts(&self) {
        let selector = format!("name={OPERATOR}");
        let pods = self.json(&["-n", OPERATOR_NAMESPACE, "get", "pods", "--selector", &selector]);
        for pod in pods["items"].as_array().into_iter().flatten() {
            for container in pod["status"]["containerStatuses"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert_eq!(container["restartCount"], 0, "{}\n{}", container, self.evidence());
            }
        }
    }

    /// The node of the operator.
    pub fn operator_node(&self) -> String {
        let selector = format!("name={OPERATOR}");
        let path = "jsonpath={.items[0].spec.nodeName}";
        self.kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "get",
            "pods",
            "--selector",
            &selector,
            "-o",
            path,
        ])
    }

    /// The image under test.
    pub fn image(&self) -> String {
        self.image.clone()
    }

    /// SHA-256 of the image's `weft-cni`, in hex.
    pub fn image_binary_digest(&self) -> String {
        let binary = std::env::var(e2e::CNI_BINARY_VARIABLE).expect("path of weft-cni");
        let output = run::output(Command::new("sha256sum").arg(binary)).unwrap();
        output.split_whitespace().next().unwrap().to_owned()
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.kubectl.run(args).map_err(|error| error.to_string())
    }

    pub fn json(&self, args: &[&str]) -> Value {
        self.kubectl.json(args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a command in a node's namespaces.
    pub fn node(&self, node: &str, argv: &[&str]) -> String {
        let mut command = self.cluster.node_command(node, argv).expect("a node");
        run::output(&mut command).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for a condition. After the deadline, prints evidence of the cluster.
    pub fn wait<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let outcome = wait::until_some(what, DEADLINE, &mut condition, || self.evidence());
        outcome.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until an observation equals the expected value. After the deadline, prints both.
    pub fn wait_equal<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        expected: &T,
        mut observe: impl FnMut() -> T,
    ) {
        let mut last = None;
        let outcome = wait::until_some(
            what,
            DEADLINE,
            || {
                let now = observe();
                let equal = now == *expected;
                last = Some(now);
                equal.then_some(())
            },
            || self.evidence(),
        );
        if let Err(error) = outcome {
            panic!("expected {expected:#?}\nfound {last:#?}\n{error}");
        }
    }

    /// Waits for a condition that describes its failure.
    pub fn wait_for(&self, what: &str, mut condition: impl FnMut() -> Result<(), String>) {
        if let Err(error) = wait::until(what, DEADLINE, &mut condition) {
            panic!("{error}\n{}", self.evidence());
        }
    }

    /// Waits for a duration, if time itself is tested.
    pub fn pass(&self, span: Duration) {
        let start = std::time::Instant::now();
        self.wait("time has passed", || (start.elapsed() >= span).then_some(()));
    }

    fn evidence(&self) -> String {
        let show = |args: &[&str]| self.try_kubectl(args).unwrap_or_else(|error| error);
        let logs = |app: &str| {
            show(&[
                "-n",
                OPERATOR_NAMESPACE,
                "logs",
                "-l",
                app,
                "--tail=40",
                "--prefix",
                "--all-containers",
            ])
        };
        format!(
            "-- pods\n{}\n-- events\n{}\n-- status\n{}\n-- operator\n{}\n-- multus\n{}",
            show(&["get", "pods", "-A", "-o", "wide"]),
            show(&["get", "events", "-A", "--sort-by=.lastTimestamp"])
                .lines()
                .rev()
                .take(40)
                .collect::<Vec<_>>()
                .join("\n"),
            show(&[CR[0], CR[1], CR[2], "-o", "jsonpath={.status}"]),
            logs(&format!("name={OPERATOR}")),
            logs("app=multus"),
        )
    }

    pub fn network_addons_config(&self) -> Value {
        self.json(&CR)
    }

    pub fn condition(&self, kind: &str) -> Option<Value> {
        let config = self.network_addons_config();
        let conditions = config["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == kind)
    }

    pub fn patch_config(&self, patch: &Value) {
        self.kubectl(&["patch", CR[1], CR[2], "--type=json", "-p", &patch.to_string()]);
    }

    /// Creates the configuration, or changes its specification.
    pub fn configure(&self, spec: &Value) {
        let config = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": CR[2] }, "spec": spec,
        });
        self.kubectl
            .apply(&config.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Follows the log of a DaemonSet's pod on a node.
    pub fn follow_log(&self, daemonset: &str, node: &str) -> Log {
        let pods = self.daemonset_pods(daemonset);
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
        let name = pod.and_then(|pod| pod["metadata"]["name"].as_str());
        Log::follow(
            &self.kubectl,
            OPERATOR_NAMESPACE,
            name.expect("a pod on the node"),
        )
    }

    /// The operator's record of the applied configuration.
    pub fn applied_configuration(&self) -> Option<Value> {
        let name = "cluster-networks-addons-operator-applied-cluster";
        self.kubectl
            .get(["-n", OPERATOR_NAMESPACE, "configmap", name])
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Multus' files in a node's directory of CNI configurations, one per line.
    pub fn multus_configuration(&self, node: &str) -> String {
        self.node(node, &["find", "/etc/cni/net.d", "-name", "00-multus.conf*"])
    }

    /// Makes the operator remove multus, and waits until it has left all nodes.
    pub fn remove_multus(&self) {
        self.patch_config(&json!([{ "op": "remove", "path": "/spec/multus" }]));
        for node in NODES {
            self.wait(&format!("multus has left {node}"), || {
                let left = self.multus_configuration(node).is_empty();
                (left && self.daemon_pids(node, "multus-daemon").is_empty()).then_some(())
            });
        }
    }

    /// Makes the operator deploy multus.
    pub fn add_multus(&self) {
        self.patch_config(&json!([{ "op": "add", "path": "/spec/multus", "value": {} }]));
    }

    /// Waits until the configuration is Available and its workloads match the specification.
    pub fn available(&self) {
        self.wait("the CR is Available, not Degraded and not Progressing", || {
            let is = |kind: &str, status: &str| self.condition(kind).is_some_and(|c| c["status"] == status);
            (is("Available", "True") && is("Degraded", "False") && is("Progressing", "False")).then_some(())
        });
    }

    /// Waits until the configuration is Available and the newest versions of these workloads run on all nodes: a status
    /// may still be that of the previous configuration.
    pub fn available_on_all_nodes(&self, names: &[&str]) {
        for name in names {
            self.wait(&format!("DaemonSet {name} runs on all nodes"), || {
                let set = self
                    .kubectl
                    .get(["-n", OPERATOR_NAMESPACE, "daemonset", name])
                    .ok()??;
                let number = |field: &str| set["status"][field].as_u64();
                let seen = set["metadata"]["generation"] == set["status"]["observedGeneration"];
                let all = [
                    "desiredNumberScheduled",
                    "updatedNumberScheduled",
                    "numberAvailable",
                ];
                (seen && all.map(number) == [Some(NODES.len() as u64); 3]).then_some(())
            });
        }
        self.available();
    }

    pub fn daemonset(&self, name: &str) -> Value {
        self.json(&["-n", OPERATOR_NAMESPACE, "get", "daemonset", name])
    }

    /// Pods of a DaemonSet.
    pub fn daemonset_pods(&self, name: &str) -> Vec<Value> {
        let pods = self.json(&["-n", OPERATOR_NAMESPACE, "get", "pods"]);
        let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.retain(|pod| pod["metadata"]["ownerReferences"][0]["name"] == name);
        pods
    }

    /// The host's process ids of the operator.
    pub fn operator_pids(&self) -> Vec<u32> {
        let is_operator = |pid: &u32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            let mut words = command.split('\0');
            words.next().is_some_and(|program| program.ends_with("weft")) && words.next() == Some("operator")
        };
        let pids = NODES.iter().flat_map(|node| self.cluster.processes(node));
        pids.filter_map(|pid| u32::try_from(pid).ok())
            .filter(is_operator)
            .collect()
    }

    /// Kills the operator, and deletes its pod, because the kubelet's back-off delays each restart of a container
    /// longer.
    pub fn kill_operator(&self, pid: u32) {
        self.kill_9(pid);
        let selector = format!("name={OPERATOR}");
        self.kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "delete",
            "pods",
            "--selector",
            &selector,
            "--force",
            "--grace-period=0",
        ]);
        self.wait("the killed process is gone", || {
            (!self.operator_pids().contains(&pid)).then_some(())
        });
    }

    pub fn daemonset_uid(&self, name: &str) -> Option<String> {
        let found = self
            .kubectl
            .get(["-n", OPERATOR_NAMESPACE, "daemonset", name])
            .unwrap();
        found.and_then(|set| set["metadata"]["uid"].as_str().map(str::to_owned))
    }

    /// The current state of attachments on a node.
    pub fn host_state(&self, node: &str) -> HostState {
        let lines = |argv: &[&str]| -> BTreeSet<String> {
            let output = self
                .cluster
                .node_command(node, argv)
                .and_then(|mut command| run::output(&mut command));
            output
                .unwrap_or_default()
                .lines()
                .map(str::to_owned)
                .filter(|line| !line.is_empty())
                .collect()
        };
        let files =
            |folder: &str| lines(&["find", folder, "-maxdepth", "1", "-type", "f", "!", "-name", ".*"]);
        let listed = lines(&["ip", "-o", "link", "show", "type", "veth"]);
        HostState {
            veths: listed
                .iter()
                .filter_map(|line| line.split(": ").nth(1).map(str::to_owned))
                .collect(),
            namespaces: lines(&["find", "/run/netns", "-mindepth", "1", "-maxdepth", "1"]),
            scratch: files("/var/lib/cni/multus"),
            results: files("/var/lib/cni/multus/results"),
            leases: lines(&["find", "/var/lib/cni/networks", "-type", "f", "-name", "*.*.*.*"]),
            records: lines(&["find", "/run/cni/weft", "-type", "f"]),
            rules: lines(&["nft", "list", "ruleset"])
                .into_iter()
                .filter(|line| line.contains("\"macspoofchk-") || line.contains(", id: "))
                .collect(),
        }
    }

    /// The host's process ids of a weft daemon on a node.
    pub fn daemon_pids(&self, node: &str, daemon: &str) -> Vec<u32> {
        let node_ns = self.node(node, &["stat", "-Lc", "%i", "/proc/self/ns/net"]);
        let node_ns: u64 = node_ns.trim().parse().unwrap();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                let root = format!("/proc/{pid}");
                let command = fs::read(format!("{root}/cmdline")).unwrap_or_default();
                let ours = String::from_utf8_lossy(&command)
                    .split('\0')
                    .any(|argument| argument.ends_with(daemon));
                let ns = fs::metadata(Path::new(&root).join("ns/net"))
                    .map(|meta| meta.ino())
                    .ok();
                ours && ns == Some(node_ns)
            })
            .collect()
    }

    /// The host's process ids of the image's daemons on a node, under any name.
    pub fn weft_pids(&self, node: &str) -> Vec<u32> {
        let is_weft = |pid: &u32| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            program.file_name().is_some_and(|name| name == "weft")
        };
        let pids = self.cluster.processes(node).into_iter();
        pids.filter_map(|pid| u32::try_from(pid).ok())
            .filter(is_weft)
            .collect()
    }

    /// Records that the test damages a part now, so that availability may end at any moment.
    pub fn disturb(&self) {
        self.record.disturb();
    }

    pub fn kill_9(&self, pid: u32) {
        self.disturb();
        // It may have ended already.
        let _ = run::output(Command::new("kill").args(["-9", &pid.to_string()]));
    }

    /// A bridge on one node. A drop removes it.
    pub fn temporary_bridge<'a>(&'a self, node: &'a str, name: &'a str) -> TemporaryLink<'a> {
        self.node(node, &["ip", "link", "add", name, "type", "bridge"]);
        self.node(node, &["ip", "link", "set", name, "up"]);
        TemporaryLink(self, node, name)
    }

    /// A link of one node to the spare network of all nodes. A drop removes it. Its other end is on `br1`.
    pub fn uplink<'a>(&'a self, node: &'a str, name: &'a str) -> TemporaryLink<'a> {
        let script = format!(
            "ip link show {name} >/dev/null 2>&1 || ip link add {name} type veth peer name {name}-far\n\
             ip link set {name}-far master br1 up\nip link set {name} up"
        );
        self.node(node, &["sh", "-euc", &script]);
        TemporaryLink(self, node, name)
    }

    /// The operator's requests so far, except watches.
    pub fn operator_requests(&self) -> Vec<Value> {
        operator_requests(&self.audit())
    }

    /// The audit log's events so far.
    pub fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.cluster.audit_log()).unwrap();
        log.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits until the operator sends no request except watches for a while.
    pub fn settle(&self) {
        let mut last = (0, std::time::Instant::now());
        self.wait("the operator's requests cease", || {
            let count = self.operator_requests().len();
            if count != last.0 {
                last = (count, std::time::Instant::now());
            }
            (last.1.elapsed() > Duration::from_secs(5)).then_some(())
        });
    }

    /// The operator's requests in a time span, except watches.
    pub fn observe(&self, span: Duration) -> Vec<Value> {
        let before = self.operator_requests().len();
        self.pass(span);
        self.operator_requests().split_off(before)
    }
}

fn operator_requests(events: &[Value]) -> Vec<Value> {
    let user = format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}");
    let wanted = |event: &&Value| event["user"]["username"] == user.as_str() && event["verb"] != "watch";
    events.iter().filter(wanted).cloned().collect()
}

/// A link on one node. A drop removes it.
pub struct TemporaryLink<'a>(&'a Stage, &'a str, &'a str);

impl Drop for TemporaryLink<'_> {
    fn drop(&mut self) {
        // A failure would hide the test's own.
        if let Ok(mut command) = self
            .0
            .cluster
            .node_command(self.1, ["ip", "link", "delete", self.2])
        {
            let _ = run::output(&mut command);
        }
    }
}

/// Returns true if there is one pod, on this node, and it is Ready.
pub fn only_on(pods: &[Value], node: &str) -> bool {
    let [pod] = pods else { return false };
    pod["spec"]["nodeName"] == node && cluster::is_ready(pod)
}
