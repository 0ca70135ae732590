//! The environment of node state tests: the add-ons operator deploys node state, and `eth1` of every node gets its
//! address, its name server and a route from a simulated network.
//!
//! ```text
//! control  spare0 192.0.2.254: DHCP, name server, router
//!            ├── eth1 of node01   by NetworkManager
//!            └── eth1 of node02   by NetworkManager
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use cluster::NameServer;
use serde_json::{Deserializer, Value, json};

use crate::support::{NODES, OPERATOR_NAMESPACE, Stage};

/// Router, DHCP server and name server of the network of `eth1`.
pub(crate) const ROUTER: &str = "192.0.2.254";
/// An unused address of the network.
pub(crate) const NOBODY: &str = "192.0.2.66";

/// Label of enactments with the name of their policy.
const POLICY_LABEL: &str = "nmstate.io/policy";

const DHCP: &str = "ip address replace 192.0.2.254/24 dev spare0
cat >/tmp/udhcpd.conf <<END
start 192.0.2.100
end 192.0.2.150
interface spare0
lease_file /tmp/udhcpd.leases
option subnet 255.255.255.0
option router 192.0.2.254
option dns 192.0.2.254
option lease 3600
END
touch /tmp/udhcpd.leases
exec setpriv --pdeathsig KILL busybox udhcpd -f /tmp/udhcpd.conf";

/// Removes the bridge of all other tests, and hands `eth1` to NetworkManager, like an installer.
const PREPARE: &str = "ip link delete br1 2>/dev/null || :
nmcli connection add type ethernet ifname eth1 con-name eth1 ipv4.method auto ipv4.dhcp-client-id mac ipv6.method disabled
nmcli --wait 60 connection up eth1";

/// Removes NetworkManager's configuration, and restores the bridge of all other tests.
const RESTORE: &str = "for uuid in $(nmcli --terse --fields UUID connection show); do
    nmcli connection delete $uuid || :
done
for link in br1 br9; do
    ip link delete $link 2>/dev/null || :
done
ip address flush dev eth1
ip route replace default via 10.10.0.1 dev eth0
ip link add br1 type bridge
ip link set eth1 master br1 up
ip link set br1 up";

/// Node state on the cluster. A drop removes it.
pub(crate) struct NodeNetwork<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) names: NameServer,
    _dhcp: Running,
}

impl<'a> NodeNetwork<'a> {
    /// Prepares the nodes, deploys node state, and waits until every node has reported.
    pub(crate) fn deploy(stage: &'a Stage) -> Self {
        let dhcp = stage.cluster.node_command("control", ["sh", "-euc", DHCP]);
        let network = Self {
            stage,
            _dhcp: Running::start(dhcp.expect("the control plane")),
            names: NameServer::start(&stage.cluster, "control").expect("a name server"),
        };
        for node in NODES {
            network.clean(node);
            stage.node(node, &["sh", "-euc", PREPARE]);
        }
        stage.configure(&specification(true));
        network.stage.wait("NMState to be Available", || {
            let state = stage.kubectl.get(["nmstate", "nmstate"]).ok()??;
            condition(&state, "Available", "True").map(drop)
        });
        stage.available_on_all_nodes(&["nmstate-handler"]);
        for node in NODES {
            stage.wait(&format!("the report of {node}"), || {
                network.interface(node, "eth1").map(drop)
            });
        }
        network
    }

    /// Creates or changes a policy.
    pub(crate) fn apply_policy(&self, name: &str, spec: &Value) {
        let policy = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
            "metadata": { "name": name }, "spec": spec,
        });
        // Admission refuses changes of a policy in progress.
        self.stage
            .kubectl
            .apply(&policy.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn policy(&self, name: &str) -> Option<Value> {
        self.stage.kubectl.get(["nncp", name]).ok()?
    }

    pub(crate) fn enactment(&self, node: &str, policy: &str) -> Option<Value> {
        let name = format!("{node}.{policy}");
        self.stage.kubectl.get(["nnce", &name]).ok()?
    }

    /// Waits until the newest version of a policy is Available, with this message.
    pub(crate) fn available(&self, policy: &str, text: &str) {
        self.stage
            .wait_for(&format!("policy {policy} to be Available"), || {
                let policy = self.policy(policy).unwrap_or_default();
                let available = condition(&policy, "Available", "True");
                match available {
                    Some(found) if found["message"] == text => Ok(()),
                    _ => Err(format!("{:#}\n{}", policy["status"], self.evidence())),
                }
            });
    }

    /// Waits until a condition of the enactment is True, and returns it.
    pub(crate) fn enacted(&self, node: &str, policy: &str, kind: &str) -> Value {
        self.stage.wait(&format!("{kind} of {policy} on {node}"), || {
            let enactment = self.enactment(node, policy)?;
            let policy = self.policy(policy)?;
            let current = enactment["status"]["policyGeneration"] == policy["metadata"]["generation"];
            let found = condition(&enactment, kind, "True");
            found.filter(|_| current).cloned()
        })
    }

    /// Removes a policy and waits until its enactments are gone: then no handler works on it any more.
    pub(crate) fn remove_policy(&self, name: &str) {
        self.stage
            .kubectl(&["delete", "nncp", name, "--ignore-not-found"]);
        for node in NODES {
            self.stage
                .wait(&format!("the enactment of {name} on {node} to be gone"), || {
                    let name = format!("{node}.{name}");
                    let found = self.stage.kubectl.get(["nnce", &name]);
                    found.ok()?.is_none().then_some(())
                });
        }
    }

    /// The report of a node.
    pub(crate) fn report(&self, node: &str) -> Option<Value> {
        let state = self.stage.kubectl.get(["nns", node]).ok()??;
        Some(state["status"]["currentState"].clone())
    }

    /// An interface in the report of a node.
    pub(crate) fn interface(&self, node: &str, name: &str) -> Option<Value> {
        let report = self.report(node)?;
        let mut interfaces = report["interfaces"].as_array()?.iter();
        interfaces.find(|interface| interface["name"] == name).cloned()
    }

    /// Runs a script on a node.
    pub(crate) fn script(&self, node: &str, script: &str) -> String {
        self.stage.node(node, &["sh", "-euc", script])
    }

    /// Runs a script on a node that may fail.
    pub(crate) fn try_script(&self, node: &str, script: &str) -> Option<String> {
        let command = self.stage.cluster.node_command(node, ["sh", "-euc", script]);
        cluster::run::output(&mut command.ok()?).ok()
    }

    /// The host's process number of a node's handler.
    pub(crate) fn handler(&self, node: &str) -> u32 {
        self.stage.wait(&format!("the handler of {node}"), || {
            let pids = self.stage.cluster.processes(node).into_iter();
            let mut pids = pids.filter_map(|pid| u32::try_from(pid).ok());
            pids.find(|pid| is_handler(*pid))
        })
    }

    /// Kills a node's handler, and deletes its pod, because the kubelet's back-off delays each restart of a container
    /// longer.
    pub(crate) fn kill_handler(&self, node: &str) {
        self.kill(node, self.handler(node));
    }

    /// Like [`Self::kill_handler`], with a known process.
    pub(crate) fn kill(&self, node: &str, handler: u32) {
        self.stage.kill_9(handler);
        let pod = self.handler_pod(node);
        let delete = ["delete", "pod", &pod, "--force", "--grace-period=0"];
        self.stage
            .kubectl(&[&["-n", OPERATOR_NAMESPACE], &delete[..]].concat());
    }

    /// Ends a node's handler like the kubelet. Its pod is replaced.
    pub(crate) fn stop_handler(&self, node: &str) {
        self.stage.disturb();
        let pid = self.handler(node);
        let pod = self.handler_pod(node);
        let delete = ["-n", OPERATOR_NAMESPACE, "delete", "pod", &pod, "--wait=false"];
        self.stage.kubectl(&delete);
        self.stage
            .wait("the handler to end", || (!is_handler(pid)).then_some(()));
    }

    /// Kills a node's NetworkManager. A new one is started.
    pub(crate) fn crash_manager(&self, node: &str) {
        let crashed = self.stage.cluster.crash_network_manager(node);
        crashed.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Blocks connections of the node's programs to the service of the API server. Pods still reach it, and so does the
    /// kubelet, which uses its address.
    pub(crate) fn cut_off(&'a self, node: &'a str) -> CutOff<'a> {
        let address = ["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"];
        let address = self.stage.kubectl(&address);
        let script = format!(
            "nft add table ip cut
            nft 'add chain ip cut output {{ type filter hook output priority raw; }}'
            nft add rule ip cut output ip daddr {} counter drop",
            address.trim()
        );
        let cut = CutOff { network: self, node };
        self.script(node, &script);
        cut
    }

    /// The output of a node's NetworkManager.
    pub(crate) fn manager_log(&self, node: &str) -> String {
        let name = format!("{node}-NetworkManager.log");
        let logs = self.stage.cluster.logs();
        let log = logs.iter().find(|log| log.ends_with(&name)).expect("its log");
        fs::read_to_string(log).unwrap_or_default()
    }

    /// Waits until the new handler of a node has prepared roll-back of its first change: a kill before that fails the
    /// change itself.
    pub(crate) fn wait_probing(&self, node: &str) {
        self.stage.wait(&format!("the probes of {node}"), || {
            let log = self.handler_log(node);
            log.contains("Running 'ping' probe").then_some(())
        });
    }

    /// The log of a node's handler.
    pub(crate) fn handler_log(&self, node: &str) -> String {
        let pod = self.handler_pod(node);
        self.stage.kubectl(&["-n", OPERATOR_NAMESPACE, "logs", &pod])
    }

    /// Name of the pod of a node's handler.
    fn handler_pod(&self, node: &str) -> String {
        self.stage.wait(&format!("the handler's pod of {node}"), || {
            let pods = self.stage.daemonset_pods("nmstate-handler");
            let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node)?;
            pod["metadata"]["name"].as_str().map(str::to_owned)
        })
    }

    /// Removes node state except the objects of users, and waits until no workload remains.
    pub(crate) fn undeploy(&self) {
        self.stage.configure(&specification(false));
        self.stage
            .wait_equal("no workload of it", &Vec::<String>::new(), || {
                let args = ["-n", OPERATOR_NAMESPACE, "get", "daemonsets,deployments,pods"];
                let found = self.stage.json(&args);
                let items = found["items"].as_array().into_iter().flatten();
                let names = items.filter_map(|item| item["metadata"]["name"].as_str());
                let ours = names.filter(|name| name.starts_with("nmstate-"));
                ours.map(str::to_owned).collect()
            });
    }

    /// Evidence about handlers.
    fn evidence(&self) -> String {
        let show = |args: &[&str]| self.stage.try_kubectl(args).unwrap_or_else(|error| error);
        let logs = [
            "logs",
            "--selector=component=kubernetes-nmstate-handler",
            "--tail=40",
            "--prefix",
        ];
        format!(
            "-- enactments\n{}\n-- handlers\n{}",
            show(&["get", "nnce", "-o", "yaml"]),
            show(&[&["-n", OPERATOR_NAMESPACE], &logs[..]].concat()),
        )
    }

    fn clean(&self, node: &str) {
        self.script(node, RESTORE);
    }
}

impl Drop for NodeNetwork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.evidence());
        }
        // The other tests need the bridge even after a failure.
        let _ = self.stage.try_kubectl(&["delete", "nncp", "--all"]);
        self.stage.configure(&specification(false));
        self.stage.wait("the handlers to be gone", || {
            let pids = NODES.iter().flat_map(|node| self.stage.cluster.processes(node));
            let mut pids = pids.filter_map(|pid| u32::try_from(pid).ok());
            (!pids.any(is_handler)).then_some(())
        });
        for kind in ["nnce", "nns"] {
            let _ = self.stage.try_kubectl(&["delete", kind, "--all"]);
        }
        for node in NODES {
            self.clean(node);
        }
        if !std::thread::panicking() {
            self.stage.available();
        }
    }
}

fn specification(nmstate: bool) -> Value {
    let mut spec = json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" });
    if nmstate {
        spec["nmstate"] = json!({});
    }
    spec
}

/// Returns true if a process is a handler: of node state's programs, only the handler has a node and no other role.
fn is_handler(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment = String::from_utf8_lossy(&environment);
    let is_set = |name: &str| environment.split('\0').any(|variable| variable.starts_with(name));
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_manager = String::from_utf8_lossy(&arguments).split('\0').next() == Some("manager");
    program.file_name().is_some_and(|name| name == "weft")
        && is_manager
        && is_set("NODE_NAME=")
        && !is_set("RUN_")
}

/// Returns a condition of an object, if it has this status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str, status: &str) -> Option<&'a Value> {
    let mut conditions = object["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == kind && condition["status"] == status)
}

/// A node without the API server, until the drop.
pub(crate) struct CutOff<'a> {
    network: &'a NodeNetwork<'a>,
    node: &'a str,
}

impl CutOff<'_> {
    /// Returns true if a blocked connection was attempted.
    pub(crate) fn was_felt(&self) -> bool {
        let rules = self.network.script(self.node, "nft list table ip cut");
        rules.contains("counter packets") && !rules.contains("counter packets 0 ")
    }
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.network.try_script(self.node, "nft delete table ip cut");
    }
}

/// A program that is killed by the drop.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a process"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All events of a policy's enactments.
pub(crate) struct History {
    kubectl: Child,
    /// Reads the versions while the test runs: kubectl stops at a full pipe.
    reader: Option<JoinHandle<Vec<Value>>>,
}

impl History {
    /// Starts the record.
    pub(crate) fn start(stage: &Stage, policy: &str) -> Self {
        let selector = format!("--selector={POLICY_LABEL}={policy}");
        let watch = ["get", "nnce", &selector, "--watch", "--output=json"];
        let mut command = stage.kubectl.command(watch);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut kubectl = command.spawn().expect("kubectl");
        let output = kubectl.stdout.take().expect("its output");
        let reader = thread::spawn(move || {
            let versions = Deserializer::from_reader(output).into_iter::<Value>();
            versions.map_while(Result::ok).collect()
        });
        Self {
            kubectl,
            reader: Some(reader),
        }
    }

    /// Ends the record, and returns each version of each enactment, in order.
    pub(crate) fn end(mut self) -> Vec<Value> {
        let _ = self.kubectl.kill();
        let reader = self.reader.take().expect("a reader");
        reader.join().expect("the versions")
    }
}

impl Drop for History {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// The maximum number of enactments that were Progressing at the same time.
pub(crate) fn most_at_once(history: &[Value]) -> usize {
    let mut now = BTreeSet::new();
    let mut most = 0;
    for enactment in history {
        let name = enactment["metadata"]["name"].to_string();
        if condition(enactment, "Progressing", "True").is_some() {
            now.insert(name);
        } else {
            now.remove(&name);
        }
        most = most.max(now.len());
    }
    most
}
