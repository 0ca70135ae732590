//! Devices of the macvtap device plugin in pods, used like by a guest: frames through `/dev/tapN`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use cluster::Quiet;
use serde_json::{Value, json};

use crate::components::Components;
use crate::pods::{TestNamespace, network, pod};
use crate::support::{NODES, OPERATOR_NAMESPACE, Stage};

/// The lower device on each node.
const UPLINK: &str = "mvt-up";
const RESOURCE: &str = "macvtap.network.kubevirt.io/guests";
const CAPACITY: &str = "8";
const CONFIGURATION: &str = "e2e-macvtap";
const DAEMON_SET: &str = "macvtap-cni";
/// Links that are created and removed on one node, so that its next links have other numbers than those of the other
/// node. The nodes of the cluster share `/dev`, where devices have the numbers of their links.
const SHIFT: &str =
    "for i in $(seq 60); do ip link add shift type veth peer name shift2; ip link delete shift; done";

/// An Ethernet type for local experiments (IEEE 802).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
/// Length of the virtio header before each frame: `macvtap` uses it by default.
const VIRTIO_HEADER: usize = 10;
/// Minimum length of a frame without its checksum.
const FRAME: usize = 60;
/// Interval between two frames of a guest that waits for an answer.
const INTERVAL: Duration = Duration::from_secs(1);

/// The device of a pod, as used by a guest.
struct Guest {
    mac: [u8; 6],
    device: File,
}

impl Guest {
    fn of(ns: &TestNamespace<'_>, pod: &str) -> Self {
        let read = |file: &str| ns.exec(pod, &["cat", &format!("/sys/class/net/net1/{file}")]);
        let bytes = read("address");
        let bytes = bytes
            .trim()
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap());
        let path = format!("/dev/tap{}", read("ifindex").trim());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap());
        Self {
            mac: bytes.collect::<Vec<_>>().try_into().unwrap(),
            device: options
                .open(&path)
                .unwrap_or_else(|error| panic!("{path}: {error}")),
        }
    }

    /// Sends a frame and waits until another guest receives it.
    fn reaches(&mut self, other: &mut Self) -> bool {
        let mut frame = vec![0; VIRTIO_HEADER];
        frame.extend(other.mac);
        frame.extend(self.mac);
        frame.extend(EXPERIMENT);
        frame.resize(VIRTIO_HEADER + FRAME, 0);
        self.device.write_all(&frame).unwrap();
        let until = Instant::now() + INTERVAL;
        let mut received = [0; 2048];
        while Instant::now() < until {
            match other.device.read(&mut received) {
                Ok(length) if received[..length].get(VIRTIO_HEADER..) == Some(&frame[VIRTIO_HEADER..]) => {
                    return true;
                }
                // Frames of others, or no frame yet.
                _ => std::thread::yield_now(),
            }
        }
        false
    }
}

fn configuration() -> Value {
    let resources = json!([{ "name": "guests", "lowerDevice": UPLINK, "mode": "bridge", "capacity": 8 }]);
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": CONFIGURATION, "namespace": OPERATOR_NAMESPACE },
        "data": { "DP_MACVTAP_CONF": resources.to_string() },
    })
}

fn guests() -> Value {
    let mut network = network(
        "guests",
        r#"{ "cniVersion": "1.0.0", "name": "guests", "type": "macvtap" }"#,
    );
    network["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/resourceName": RESOURCE });
    network
}

fn guest(name: &str, node: &str) -> Value {
    let mut guest = pod(name, Some(node), &json!([{ "name": "guests" }]));
    guest["spec"]["containers"][0]["resources"] = json!({ "limits": { RESOURCE: "1" } });
    guest
}

/// Waits until a node offers all its devices.
fn offers_all(stage: &Stage, node: &str) {
    stage.wait_equal(&format!("devices of {node}"), &json!(CAPACITY), || {
        stage.json(&["get", "node", node])["status"]["allocatable"][RESOURCE].clone()
    });
}

#[test]
fn guests_are_connected_across_nodes_after_restarts() {
    let Some(stage) = Stage::enter() else { return };
    let [here, there] = NODES;
    stage.node(there, &["sh", "-euc", SHIFT]);
    let _uplinks = NODES.map(|node| stage.uplink(node, UPLINK));
    stage.kubectl.apply(&configuration().to_string()).unwrap();
    let spec = json!({ "macvtap": { "devicePluginConfig": CONFIGURATION } });
    let _macvtap = Components::deploy(&stage, &spec, &[DAEMON_SET]);
    for node in NODES {
        offers_all(&stage, node);
    }
    let ns = TestNamespace::create(&stage, "e2e-macvtap");
    ns.apply(&guests());
    ns.apply(&guest("here", here));
    ns.apply(&guest("there", there));
    for name in ["here", "there"] {
        ns.ready(name);
    }
    let mut pair = ["here", "there"].map(|name| Guest::of(&ns, name));
    let mut meet = |when: &str| {
        let [one, other] = &mut pair;
        stage.wait(&format!("guests reach each other {when}"), || {
            (one.reaches(other) && other.reaches(one)).then_some(())
        });
    };
    meet("at first");

    stage.disturb();
    stage.kubectl(&[
        "-n",
        OPERATOR_NAMESPACE,
        "delete",
        "pods",
        "--selector",
        "name=macvtap-cni",
    ]);
    stage.available_on_all_nodes(&[DAEMON_SET]);
    meet("after a restart of the device plugin");

    stage.disturb();
    stage.cluster.crash(here, "kubelet").unwrap();
    stage.cluster.up(&mut Quiet).unwrap();
    for node in NODES {
        offers_all(&stage, node);
    }
    meet("after a restart of kubelet");
    ns.apply(&guest("later", here));
    ns.ready("later");
    let mut later = Guest::of(&ns, "later");
    let [_, other] = &mut pair;
    stage.wait("a guest that came later is reached", || {
        later.reaches(other).then_some(())
    });

    // The device of a removed link cannot be read.
    drop((pair, later));
    ns.delete_pods();
    for node in NODES {
        stage.wait_equal(&format!("macvtaps of {node}"), &String::new(), || {
            stage.node(node, &["ip", "-o", "link", "show", "type", "macvtap"])
        });
    }
    stage.kubectl(&["-n", OPERATOR_NAMESPACE, "delete", "configmap", CONFIGURATION]);
}
