//! Nodes whose addresses have no subnet, as in some clouds: for the daemon, they share no segment.

use std::fs;

use serde_json::Value;

use crate::pod_network::{CONFIG, DAEMON, HOST_PORT, Lines, NODES, Own, PORT, SUBNET, SUBNET_LENGTH, plain};

/// The link of the nodes' network.
const LINK: &str = "eth0";
const TUNNEL: &str = "weft.vxlan";
/// MTU of the nodes' network, and of its pods.
const MTU: u64 = 1500;
/// MTU of pods while a node is behind the tunnel: 50 bytes less.
const MTU_OF_TUNNEL: u64 = 1450;
/// Bytes of a file that fills many packets of the greatest size.
const SIZE: u64 = 4 << 20;
/// Metric of the route to the nodes' network that replaces the kernel's.
const METRIC: &str = "100";

/// The nodes leave their common segment: their pods use the tunnel, also when the daemons are killed. Then they return.
/// A connection that is open all the time loses nothing.
pub(crate) fn pods_keep_their_connections(own: &Own, server: &str) {
    let host = own.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.hostIP}"]);
    let lines = Lines::start(own, server);
    for node in NODES {
        leave_segment(own, node);
    }
    all_use(own, TUNNEL, MTU_OF_TUNNEL);
    let [here, _] = NODES;
    own.0
        .kubectl()
        .apply(&plain("tunnelled", here).to_string())
        .unwrap();
    own.pod_is_ready("tunnelled");
    let mtus = ["tunnelled", "server", "client"].map(|pod| mtu(own, pod));
    assert_eq!(mtus, [MTU_OF_TUNNEL, MTU, MTU], "running pods keep their MTU");
    let tunnelled = own.pod_ip("tunnelled");
    own.kubectl(&["exec", "client", "--", "ping", "-c", "3", "-W", "5", &tunnelled]);
    for node in NODES {
        own.kill(node, DAEMON);
    }
    own.daemons_are_rolled_out();
    all_use(own, TUNNEL, MTU_OF_TUNNEL);
    for (what, address, port) in [
        ("pod to pod through the tunnel", server, PORT),
        ("pod to port of a host elsewhere", host.as_str(), HOST_PORT),
    ] {
        own.page_comes(what, "client", address, port);
    }
    large_file_comes(own, server);

    for node in NODES {
        return_to_segment(own, node);
    }
    all_use(own, LINK, MTU);
    own.wait("the end of the tunnel", || {
        let links = NODES.map(|node| own.node(node, &["ip", "-o", "link", "show", "type", "vxlan"]));
        links.iter().all(String::is_empty).then_some(())
    });
    own.page_comes("pod to pod on one segment again", "client", server, PORT);
    own.kubectl(&["delete", "pod", "tunnelled"]);
    println!("measured: {} lines while nodes moved", lines.end(own));
}

/// Replaces the node's address by the same one without a subnet.
fn leave_segment(own: &Own, node: &str) {
    let address = address(own, node);
    let script = format!(
        "ip address add {address}/32 dev {LINK}\n\
         ip route add {SUBNET} dev {LINK} src {address} metric {METRIC}\n\
         ip address delete {address}/{SUBNET_LENGTH} dev {LINK}"
    );
    own.node(node, &["sh", "-ec", &script]);
}

fn return_to_segment(own: &Own, node: &str) {
    let address = address(own, node);
    let script = format!(
        "ip address add {address}/{SUBNET_LENGTH} dev {LINK}\n\
         ip address delete {address}/32 dev {LINK}\n\
         ip route delete {SUBNET} dev {LINK} metric {METRIC}"
    );
    own.node(node, &["sh", "-ec", &script]);
}

fn address(own: &Own, node: &str) -> String {
    let internal = "--output=jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    own.kubectl(&["get", "node", node, internal])
}

/// Waits until each node's route to the pods of the other one leads through a device, and new pods get an MTU. The control
/// plane also forwards packets of pods: an answer alone proves no route.
fn all_use(own: &Own, device: &str, mtu: u64) {
    own.wait(&format!("routes through {device}"), || {
        let uses = |node: &str| {
            let routes = own.node(node, &["ip", "route", "show", "proto", "87", "type", "unicast"]);
            let mut lines = routes.lines();
            let leads = |line: &str| line.split_whitespace().any(|word| word == device);
            lines.next().is_some_and(leads)
                && lines.next().is_none()
                && mtu_of_new_pods(own, node) == Some(mtu)
        };
        NODES.into_iter().all(uses).then_some(())
    });
}

fn mtu_of_new_pods(own: &Own, node: &str) -> Option<u64> {
    let text = fs::read(own.0.node_file(node, CONFIG).unwrap()).ok()?;
    let config: Value = serde_json::from_slice(&text).ok()?;
    config["plugins"][0]["mtu"].as_u64()
}

fn mtu(own: &Own, pod: &str) -> u64 {
    let mtu = own.kubectl(&["exec", pod, "--", "cat", "/sys/class/net/eth0/mtu"]);
    mtu.trim().parse().unwrap()
}

/// The client reads a file of the server. The server's packets exceed the MTU of the tunnel until its node sends
/// "fragmentation needed".
fn large_file_comes(own: &Own, server: &str) {
    let [of_server, _] = NODES;
    let write = format!("dd if=/dev/zero of=/tmp/large bs={SIZE} count=1 2>/dev/null");
    own.kubectl(&["exec", "server", "--", "sh", "-c", &write]);
    let before = sent(own, of_server);
    let read = format!("timeout 60 wget -q -O - http://{server}:{PORT}/large | wc -c");
    let size = own.kubectl(&["exec", "client", "--", "sh", "-c", &read]);
    assert_eq!(size.trim(), SIZE.to_string());
    assert!(sent(own, of_server) - before >= SIZE, "the file took another way");
}

/// Bytes that a node sent through the tunnel.
fn sent(own: &Own, node: &str) -> u64 {
    let counter = format!("/sys/class/net/{TUNNEL}/statistics/tx_bytes");
    own.node(node, &["cat", &counter]).trim().parse().unwrap()
}
