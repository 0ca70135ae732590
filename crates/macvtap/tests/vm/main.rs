//! Suitable links, on a kernel with bonds. `cargo xtask test vm` runs this in a virtual machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed; helpers are part of the tests"
)]

#[path = "../namespaces/kubelet.rs"]
#[allow(dead_code, reason = "it serves another program as well")]
mod kubelet;
#[path = "../namespaces/node.rs"]
#[allow(dead_code, reason = "it serves another program as well")]
mod node;

use kubelet::Kubelet;
use node::{Node, until};

#[test]
fn bond_becomes_a_resource_and_other_links_do_not() {
    // cni-plugins#68 (empty config)
    // The first process of the machine sets the variable.
    if std::env::var_os("WEFT_VM").is_none() {
        println!("skipped: bonds need the virtual machine of `cargo xtask test vm`");
        return;
    }
    Node::run("bonds", async |mut node| {
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let plugin = node.plugin("[]");
        node.lower("veth");
        for (name, kind) in [("dummy7", "dummy"), ("bond7", "bond"), ("bond8", "bond")] {
            node.socket.create_bare(name, kind, "CONFIG_BONDING").unwrap();
        }
        let expected = ["bond7", "bond8"].map(|name| format!("macvtap.network.kubevirt.io/{name}"));
        assert_eq!(kubelet.resources(2).await, expected);
        assert_eq!(kubelet.watch("bond7").await.count().await, 100);
        node.socket.delete_link_by_name("bond7").unwrap();
        let left = ["kubelet.sock", "macvtap.network.kubevirt.io_bond8"];
        until("sockets", || node.sockets() == left).await;
        plugin.stop().await;
    });
}
