//! The rights of a node's certificate, which multus uses where the installation issues certificates to nodes. The requests
//! use a certificate of the cluster's authority.

use stage::{Account, Admin, Rights, Server, put_out_prey};

use crate::certificates::certify;

/// The group of these certificates.
const GROUP: &str = "system:multus";
const NODE: Rights = Rights {
    account: "system:multus:n1",
    may: &[
        // As the account `multus`.
        "get network-attachment-definitions.k8s.cni.cncf.io",
        "watch pods",
        "update pods/status",
        "create events",
        // Its own certificate.
        "create certificatesigningrequests.certificates.k8s.io",
        "get certificatesigningrequests.certificates.k8s.io",
    ],
    may_not: &[
        "update certificatesigningrequests.certificates.k8s.io/approval",
        "update certificatesigningrequests.certificates.k8s.io/status",
        "delete certificatesigningrequests.certificates.k8s.io",
        "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        "sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        "create network-attachment-definitions.k8s.cni.cncf.io",
        "update network-attachment-definitions.k8s.cni.cncf.io",
        "delete network-attachment-definitions.k8s.cni.cncf.io",
        "patch pods",
        "delete pods",
        "list nodes",
        "patch nodes/status",
        "get configmaps",
        "update daemonsets.apps multus",
    ],
};

/// Applies the role of multus, and its bindings to certificates.
fn install(admin: &Admin) {
    for file in [
        include_str!("../../../operator/src/components/multus/native-role.yaml"),
        include_str!("../../../../deploy/multus/cert-approver.yaml"),
    ] {
        admin.kubectl().apply(file).unwrap();
    }
}

#[test]
fn certificate_of_a_node_approves_none_and_takes_nothing() {
    let server = Server::take(install);
    put_out_prey(&server);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("certificate.pem");
    certify(server.api(), &file, GROUP, NODE.account);
    let account = Account::of_certificate(&server, &file, NODE.account);
    NODE.check(&account);
    account.assert_takes_nothing();
}
