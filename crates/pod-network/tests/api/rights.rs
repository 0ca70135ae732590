//! The rights of the daemon's account, whose pods run on every node. The requests use the account's token.

use stage::{Account, Rights, Server, put_out_prey};

use crate::host::install;

const DAEMON: Rights = Rights {
    account: "weft-pod-network",
    may: &["list nodes", "watch nodes"],
    may_not: &[
        "get nodes",
        "patch nodes/status",
        "delete nodes",
        "list pods",
        "list services",
        "list namespaces",
        "get configmaps",
        "create events",
        "create leases.coordination.k8s.io",
        "update daemonsets.apps weft-pod-network",
        "get network-attachment-definitions.k8s.cni.cncf.io",
    ],
};
/// Events about nodes are in `default`.
const IN_DEFAULT: [&str; 2] = ["create events", "patch events"];

#[test]
fn daemon_reads_nodes_and_takes_nothing() {
    let server = Server::take(install);
    put_out_prey(&server);
    let account = Account::of(&server, "kube-system", DAEMON.account);
    account.wait_until_let(&IN_DEFAULT, Some("default"));
    DAEMON.check(&account);
    account.assert_takes_nothing();
}
