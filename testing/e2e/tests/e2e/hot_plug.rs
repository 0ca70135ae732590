//! Networks that are attached to and detached from running pods.

use serde_json::{Value, json};

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{HostState, NODES, Stage};

const CONTROLLER: &str = "dynamic-networks-controller-ds";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Output file of the first pod's ping.
const LOG: &str = "/tmp/ping";

/// The controller of dynamic networks, until the drop.
struct Enabled<'a>(&'a Stage);

impl<'a> Enabled<'a> {
    fn on(stage: &'a Stage) -> Self {
        let settings = json!({ "hostCRISocketPath": "/run/containerd/containerd.sock" });
        let path = "/spec/multusDynamicNetworks";
        stage.patch_config(&json!([{ "op": "add", "path": path, "value": settings }]));
        let enabled = Self(stage);
        stage.available_on_all_nodes(&[CONTROLLER]);
        enabled
    }

    /// UID and restarts of its pods.
    fn lives(&self) -> Vec<(String, u64)> {
        let of = |pod: &Value| {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let container = &pod["status"]["containerStatuses"][0];
            (uid, container["restartCount"].as_u64().unwrap_or_default())
        };
        let mut lives: Vec<_> = self.0.daemonset_pods(CONTROLLER).iter().map(of).collect();
        lives.sort();
        lives
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        // A failure would hide the test's own.
        let patch = json!([{ "op": "remove", "path": "/spec/multusDynamicNetworks" }]).to_string();
        let _ = self.0.try_kubectl(&[
            "patch",
            "networkaddonsconfig",
            "cluster",
            "--type=json",
            "-p",
            &patch,
        ]);
        if !std::thread::panicking() {
            self.0.wait_gone("daemonset", CONTROLLER);
        }
    }
}

/// Two pods, one on each node, and their requested networks.
struct Pair<'a> {
    stage: &'a Stage,
    ns: TestNamespace<'a>,
}

/// Their names.
const NAMES: [&str; 2] = ["p0", "p1"];

/// The element of a network, with the address of one of the pods.
fn element(network: &str, interface: &str, subnet: u8, index: usize) -> Value {
    json!({ "name": network, "interface": interface, "ips": [format!("10.77.{subnet}.{}/24", index + 1)] })
}

fn without_more(index: usize) -> Value {
    json!([element("lan", "net1", 11, index)])
}

fn with_more(index: usize) -> Value {
    json!([
        element("lan", "net1", 11, index),
        element("more", "net2", 12, index)
    ])
}

impl<'a> Pair<'a> {
    /// The permanent network of both pods.
    fn start(stage: &'a Stage) -> Self {
        let ns = TestNamespace::create(stage, "e2e-hot-plug");
        ns.apply(&bridge_network("lan", "br1"));
        let mut more = bridge_network("more", "br1");
        more["spec"]["config"] = json!(
            json!({
                "cniVersion": "1.0.0", "name": "e2e-more", "type": "cnv-bridge", "bridge": "br1",
                "capabilities": { "ips": true }, "ipam": { "type": "host-local", "subnet": "10.77.12.0/24", "gateway": "10.77.12.254" },
            })
            .to_string()
        );
        ns.apply(&more);
        for (index, name) in NAMES.iter().enumerate() {
            ns.apply(&pod(name, Some(NODES[index]), &without_more(index)));
        }
        let pair = Self { stage, ns };
        pair.wait_for(&["eth0", "net1"]);
        pair
    }

    fn ask(&self, networks: fn(usize) -> Value) {
        for (index, name) in NAMES.iter().enumerate() {
            let annotation = format!("{NETWORKS}={}", networks(index));
            self.ns
                .kubectl(&["annotate", "pod", name, "--overwrite", &annotation]);
        }
    }

    /// Waits until both statuses list these interfaces, the default one first, and checks the interfaces in the pods.
    fn wait_for(&self, expected: &[&str]) {
        for name in NAMES {
            self.stage
                .wait_equal(&format!("interfaces of {name}"), &json!(expected), || {
                    let statuses = self.ns.ready(name).network_statuses();
                    statuses
                        .iter()
                        .map(|status| status["interface"].clone())
                        .collect()
                });
            let links = self.ns.exec(name, &["ls", "/sys/class/net"]);
            let mut links: Vec<_> = links.split_whitespace().filter(|link| *link != "lo").collect();
            links.sort_unstable();
            assert_eq!(links, expected, "{name}");
        }
    }

    fn default_routes(&self) -> [Vec<String>; 2] {
        NAMES.map(|name| {
            let routes = self.ns.exec(name, &["ip", "route"]);
            let default = routes.lines().filter(|line| line.starts_with("default "));
            default.map(str::to_owned).collect()
        })
    }

    fn host_states(&self) -> [HostState; 2] {
        NODES.map(|node| self.stage.host_state(node))
    }

    /// Waits until both nodes have their earlier state.
    fn wait_for_states(&self, expected: &[HostState; 2]) {
        for (node, expected) in NODES.iter().zip(expected) {
            self.stage.wait_equal(&format!("{node} as before"), expected, || {
                self.stage.host_state(node)
            });
        }
    }

    /// The dynamic network in the pods.
    fn check_more(&self) {
        for (index, name) in NAMES.iter().enumerate() {
            let entry = self.ns.ready(name).network_status("more");
            assert_eq!(entry["ips"], json!([format!("10.77.12.{}", index + 1)]));
            let mac = self.ns.exec(name, &["cat", "/sys/class/net/net2/address"]);
            assert_eq!(entry["mac"], mac.trim());
            let text = "added interface net2 to network: more(ips: [";
            self.ns.wait_for_event(name, "AddedInterface", text);
        }
        let ping = ["ping", "-c", "3", "-W", "60", "-I", "net2", "10.77.12.2"];
        let reached = self.ns.exec("p0", &ping);
        assert!(reached.contains("3 packets received"), "{reached}");
    }

    fn kill_daemons(&self) {
        for node in NODES {
            let pids = self.stage.daemon_pids(node, "multus-daemon");
            assert!(!pids.is_empty(), "a daemon runs on {node}");
            for pid in pids {
                self.stage.kill_9(pid);
            }
        }
    }
}

/// A ping from the first pod to the second over the permanent network.
struct Ping<'a> {
    pair: &'a Pair<'a>,
    pid: String,
}

impl<'a> Ping<'a> {
    fn start(pair: &'a Pair<'a>) -> Self {
        let script = format!("ping -I net1 10.77.11.2 >{LOG} 2>&1 & echo $!");
        let pid = pair.ns.exec("p0", &["sh", "-c", &script]).trim().to_owned();
        let ping = Self { pair, pid };
        ping.goes_on();
        ping
    }

    fn log(&self) -> String {
        self.pair.ns.exec("p0", &["cat", LOG])
    }

    fn answers(&self) -> usize {
        self.log().matches("bytes from").count()
    }

    fn goes_on(&self) {
        let seen = self.answers();
        self.pair.stage.wait("another answer over net1", || {
            (self.answers() > seen).then_some(())
        });
    }

    /// Sent and received packets.
    fn end(self) -> (u64, u64) {
        self.pair.ns.exec("p0", &["kill", "-INT", &self.pid]);
        self.pair.stage.wait("the ping's count", || counted(&self.log()))
    }
}

fn counted(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().find(|line| line.contains("packets transmitted"))?;
    let mut numbers = line
        .split(|c: char| !c.is_ascii_digit())
        .filter(|text| !text.is_empty());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[test]
fn networks_are_attached_and_detached_without_loss_on_another() {
    // multus#77, multus#78, multus#92
    let Some(stage) = Stage::enter() else { return };
    let enabled = Enabled::on(&stage);
    let before = NODES.map(|node| stage.host_state(node));
    let pair = Pair::start(&stage);
    let without = pair.host_states();
    let routes = pair.default_routes();
    let lives = enabled.lives();
    assert_eq!(lives.len(), NODES.len());
    let ping = Ping::start(&pair);

    pair.ask(with_more);
    pair.wait_for(&["eth0", "net1", "net2"]);
    pair.check_more();
    for (without, with) in without.iter().zip(&pair.host_states()) {
        assert_eq!(with.veths.len(), without.veths.len() + 1);
        assert_eq!(with.leases.len(), without.leases.len() + 1, "{:?}", with.leases);
        assert_eq!(with.scratch, without.scratch, "the sandbox has one record");
    }

    // Only the daemon is killed.
    pair.kill_daemons();
    pair.ask(without_more);
    pair.wait_for(&["eth0", "net1"]);
    for name in NAMES {
        let text = "removed interface net2 from network: more";
        pair.ns.wait_for_event(name, "RemovedInterface", text);
    }
    pair.wait_for_states(&without);

    // The network is attached again, and ends with the pod.
    pair.ask(with_more);
    pair.wait_for(&["eth0", "net1", "net2"]);
    assert_eq!(pair.default_routes(), routes, "the default route is what it was");
    stage.available_on_all_nodes(&["multus", CONTROLLER]);
    assert_eq!(enabled.lives(), lives, "the controller lives on");

    // Traffic on net1 was not affected. The last answer may still be pending.
    ping.goes_on();
    let (sent, received) = ping.end();
    assert!(
        sent > 5 && received + 1 >= sent,
        "{received} answers to {sent}: {}",
        pair.ns.exec("p0", &["tail", "-n", "40", LOG])
    );

    pair.ns.delete_pods();
    pair.wait_for_states(&before);
}
