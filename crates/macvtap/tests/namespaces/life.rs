//! Starts and stops of kubelet, and changes of lower devices.

use crate::kubelet::Kubelet;
use crate::node::{Node, until};

const TWO: &str =
    r#"[{"name": "a", "lowerDevice": "lower-a"}, {"name": "b", "lowerDevice": "lower-b", "capacity": 3}]"#;
const NAMES: [&str; 2] = ["macvtap.network.kubevirt.io/a", "macvtap.network.kubevirt.io/b"];
const SOCKETS: [&str; 3] = [
    "kubelet.sock",
    "macvtap.network.kubevirt.io_a",
    "macvtap.network.kubevirt.io_b",
];

#[test]
fn resources_register_and_sigterm_removes_the_sockets() {
    // cni-plugins#69 (SIGTERM), cni-plugins#68 (the list)
    Node::run("registration", async |node| {
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let plugin = node.plugin(TWO);
        let first = kubelet.registered().await;
        assert_eq!(first.version, "v1beta1");
        assert_eq!(first.endpoint, first.resource_name.replace('/', "_"));
        let mut names = kubelet.resources(1).await;
        names.push(first.resource_name);
        names.sort();
        assert_eq!(names, NAMES);
        assert_eq!(node.sockets(), SOCKETS);
        let mut watch = kubelet.watch("a").await;
        assert_eq!(watch.count().await, 0);
        plugin.stop().await;
        assert_eq!(node.sockets(), ["kubelet.sock"]);
        assert_eq!(watch.next().await, None, "kubelet is notified of the end");
    });
}

#[test]
fn devices_follow_the_lower_device() {
    // cni-plugins#67
    Node::run("lists of devices", async |mut node| {
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let lower = node.lower("lower-a");
        let plugin = node.plugin(TWO);
        kubelet.resources(2).await;
        let mut watch = kubelet.watch("a").await;
        let all = watch.next().await.unwrap().devices;
        assert_eq!((all[0].id.as_str(), all[99].id.as_str()), ("aMvp0", "aMvp99"));
        assert_eq!(all.len(), 100);
        node.socket.delete_link(&lower).unwrap();
        assert_eq!(watch.count().await, 0);
        // Links that are no lower device cause no report.
        node.lower("other");
        node.lower("lower-a");
        assert_eq!(watch.count().await, 100);
        let mut other = kubelet.watch("b").await;
        assert_eq!(other.count().await, 0);
        node.lower("lower-b");
        assert_eq!(other.count().await, 3);
        plugin.stop().await;
    });
}

#[test]
fn kubelet_that_starts_later_or_again_gets_all_resources() {
    // cni-plugins#69 (kubelet's socket)
    Node::run("restarts of kubelet", async |node| {
        let plugin = node.plugin(TWO);
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        assert_eq!(kubelet.resources(2).await, NAMES);
        drop(kubelet);
        // A restarted kubelet removes its socket and the plugins', and listens again.
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        assert_eq!(kubelet.resources(2).await, NAMES);
        until("sockets", || node.sockets() == SOCKETS).await;
        assert_eq!(kubelet.watch("b").await.count().await, 0);
        drop(kubelet);
        std::fs::remove_file(node.kubelet_dir().join("kubelet.sock")).unwrap();
        until("sockets", || node.sockets().is_empty()).await;
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        assert_eq!(kubelet.resources(2).await, NAMES);
        plugin.stop().await;
    });
}

#[test]
fn deleted_socket_is_created_again_and_registers() {
    Node::run("deleted sockets", async |node| {
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let plugin = node.plugin(TWO);
        assert_eq!(kubelet.resources(2).await, NAMES);
        until("sockets", || node.sockets() == SOCKETS).await;
        std::fs::remove_file(kubelet.socket("b")).unwrap();
        assert_eq!(kubelet.registered().await.resource_name, NAMES[1]);
        assert_eq!(node.sockets(), SOCKETS);
        plugin.stop().await;
    });
}

#[test]
fn kubelets_directory_that_is_created_later_is_used() {
    Node::run("missing directory", async |node| {
        std::fs::remove_dir(node.kubelet_dir()).unwrap();
        let plugin = node.plugin(TWO);
        // The plugin has found the directory missing before.
        tokio::task::yield_now().await;
        std::fs::create_dir(node.kubelet_dir()).unwrap();
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        assert_eq!(kubelet.resources(2).await, NAMES);
        plugin.stop().await;
    });
}
