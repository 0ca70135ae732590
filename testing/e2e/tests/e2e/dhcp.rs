//! Pods with addresses from a DHCP server of the network.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use cluster::{DNSMASQ_PROGRAM, Home, Packages, Quiet};
use serde_json::{Value, json};

use crate::components::Components;
use crate::pods::{ReadyPod, TestNamespace, network, pod};
use crate::support::{NODES, Stage};

/// Address of the server on the second bridge.
const ADDRESS: &str = "10.82.0.1/24";
const RANGE: &str = "10.82.0.10,10.82.0.99,255.255.255.0,10m";
const DAEMON_SET: &str = "kube-cni-linux-bridge-plugin";
/// The daemon's subcommand.
const DAEMON: &str = "dhcp-daemon";

/// Debian's dnsmasq on the bridge `br1` of a node. A drop restores both.
struct Server<'a> {
    stage: &'a Stage,
    node: &'a str,
    folder: PathBuf,
    process: Child,
}

impl<'a> Server<'a> {
    fn start(stage: &'a Stage, node: &'a str) -> Self {
        let programs = Packages::ensure_dnsmasq(&Home::from_env().unwrap(), &mut Quiet).unwrap();
        stage.node(node, &["ip", "address", "replace", ADDRESS, "dev", "br1"]);
        let folder = std::env::temp_dir().join(format!("weft-dhcp-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let server = programs.file(DNSMASQ_PROGRAM);
        let mut command = stage.cluster.network_command(node, [server]).unwrap();
        let process = command
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--port=0",
                "--user=root",
            ])
            .args([
                "--interface=br1",
                "--bind-interfaces",
                "--no-ping",
                "--dhcp-authoritative",
            ])
            .args(["--log-dhcp", "--pid-file="])
            .arg(format!("--log-facility={}", log_in(&folder).display()))
            .arg(format!("--dhcp-leasefile={}", folder.join("leases").display()))
            .arg(format!("--dhcp-range={RANGE}"))
            .envs(programs.variables())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self {
            stage,
            node,
            folder,
            process,
        };
        started.logged("DHCP, IP range");
        started
    }

    /// Waits until the server's log contains a text.
    fn logged(&self, text: &str) {
        self.stage.wait_for(&format!("the DHCP server logs {text}"), || {
            let log = fs::read_to_string(log_in(&self.folder)).unwrap_or_default();
            if log.contains(text) { Ok(()) } else { Err(log) }
        });
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
        self.stage
            .node(self.node, &["ip", "address", "delete", ADDRESS, "dev", "br1"]);
    }
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn leased() -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": "leased", "type": "cnv-bridge", "bridge": "br1", "ipam": { "type": "dhcp" },
    });
    network("leased", &config.to_string())
}

/// The address of a pod in its network status.
fn address(pod: &ReadyPod) -> Ipv4Addr {
    let status = pod.network_status("leased");
    let address = status["ips"][0].as_str().unwrap_or_else(|| panic!("{status:#}"));
    address.parse().unwrap()
}

/// Process ids of the daemon on a node, whose pod has a separate network.
fn daemons(stage: &Stage, node: &str) -> Vec<u32> {
    let mut pids = stage.weft_pids(node);
    pids.retain(|pid| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(DAEMON))
    });
    pids
}

#[test]
fn new_daemon_releases_leases_of_pods_on_both_nodes() {
    let Some(stage) = Stage::enter() else { return };
    let [here, there] = NODES;
    let server = Server::start(&stage, there);
    let _daemon = Components::deploy(&stage, &json!({ "linuxBridge": { "dhcp": true } }), &[DAEMON_SET]);
    let ns = TestNamespace::create(&stage, "e2e-dhcp");
    ns.apply(&leased());
    for (name, node) in [("p0", here), ("p1", there)] {
        ns.apply(&pod(name, Some(node), &json!([{ "name": "leased" }])));
    }
    let addresses = ["p0", "p1"].map(|name| address(&ns.ready(name)));
    for address in addresses {
        let octets = address.octets();
        assert!(
            octets[..3] == [10, 82, 0] && (10..=99).contains(&octets[3]),
            "{address}"
        );
    }
    let ping = ns.ping("p0", &addresses[1].to_string());
    assert!(ping.contains(" 0% packet loss"), "{ping}");

    let before = daemons(&stage, here);
    assert_eq!(before.len(), 1, "{before:?}");
    stage.kill_9(before[0]);
    stage.wait("another daemon runs", || {
        let now = daemons(&stage, here);
        (now.len() == 1 && now != before).then_some(())
    });
    stage.available_on_all_nodes(&[DAEMON_SET]);
    // The new daemon read the earlier lease.
    ns.delete_pods();
    for address in addresses {
        server.logged(&format!("DHCPRELEASE(br1) {address}"));
    }
}
