//! The rights of the operator's account, and of the accounts that it deploys. The requests use the accounts' tokens.

use kube_kit::object::SERVICE_ACCOUNT;
use stage::{Account, Rights, put_out_prey};

use crate::stage::Stage;

/// The operator holds `escalate` and `bind`, for the roles of its operands alone.
const OPERATOR: Rights = Rights {
    account: "cluster-network-operator",
    may: &[
        "patch daemonsets.apps multus",
        "patch clusterroles.rbac.authorization.k8s.io multus",
        "patch secrets ovn-cert",
        "sign signers.certificates.k8s.io network.openshift.io/signer",
    ],
    may_not: &[
        "escalate clusterroles.rbac.authorization.k8s.io cluster-admin",
        "bind clusterroles.rbac.authorization.k8s.io cluster-admin",
        "patch clusterroles.rbac.authorization.k8s.io cluster-admin",
        "delete clusterroles.rbac.authorization.k8s.io cluster-admin",
        "create clusterroles.rbac.authorization.k8s.io",
        "escalate roles.rbac.authorization.k8s.io another",
        "bind roles.rbac.authorization.k8s.io another",
        "patch roles.rbac.authorization.k8s.io another",
        "create clusterrolebindings.rbac.authorization.k8s.io",
        "patch clusterrolebindings.rbac.authorization.k8s.io cluster-admin",
        "delete clusterrolebindings.rbac.authorization.k8s.io cluster-admin",
        "patch rolebindings.rbac.authorization.k8s.io another",
        "get secrets another",
        "create secrets",
        "patch secrets another",
        "delete secrets ovn-cert",
        "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        "sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        "create daemonsets.apps",
        "patch daemonsets.apps another",
        "patch deployments.apps another",
        "delete deployments.apps another",
        "delete namespaces another",
        "delete configmaps another",
        "patch serviceaccounts another",
        "patch validatingwebhookconfigurations.admissionregistration.k8s.io another",
        "create mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "patch customresourcedefinitions.apiextensions.k8s.io another",
        "delete customresourcedefinitions.apiextensions.k8s.io network-attachment-definitions.k8s.cni.cncf.io",
        "patch machineconfigs.machineconfiguration.openshift.io another",
        "patch nodes/status",
        "delete pods",
    ],
};
const HOME: &str = "openshift-network-operator";

/// The accounts of the operands with Weft's programs, by their namespaces.
const OPERANDS: [(&str, Rights); 6] = [
    (
        "openshift-multus",
        Rights {
            account: "multus",
            may: &[
                "get network-attachment-definitions.k8s.cni.cncf.io",
                "watch pods",
                "update pods/status",
                "create events",
                "get nodes",
                "get daemonsets.apps multus",
            ],
            may_not: &[
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
        },
    ),
    (
        "openshift-multus",
        Rights {
            account: "multus-ac",
            may: &["update validatingwebhookconfigurations.admissionregistration.k8s.io weft-nad-webhook"],
            may_not: &[
                "update validatingwebhookconfigurations.admissionregistration.k8s.io another",
                "create validatingwebhookconfigurations.admissionregistration.k8s.io",
                "list mutatingwebhookconfigurations.admissionregistration.k8s.io",
                "list network-attachment-definitions.k8s.cni.cncf.io",
                "create secrets",
                "list pods",
                "get nodes",
            ],
        },
    ),
    (
        "openshift-multus",
        Rights {
            account: "multus-ancillary-tools",
            may: &[],
            may_not: &NOTHING,
        },
    ),
    (
        "openshift-network-diagnostics",
        Rights {
            account: "network-diagnostics",
            may: &[
                "list nodes",
                "list namespaces",
                "create events",
                "create tokenreviews.authentication.k8s.io",
            ],
            may_not: &[
                "list pods",
                "list services",
                "get configmaps",
                "patch nodes/status",
                "patch namespaces",
                "list podnetworkconnectivitychecks.controlplane.operator.openshift.io",
                "create podnetworkconnectivitychecks.controlplane.operator.openshift.io",
                "update podnetworkconnectivitychecks.controlplane.operator.openshift.io/status",
            ],
        },
    ),
    (
        "openshift-network-diagnostics",
        Rights {
            account: "network-check-target",
            may: &[],
            may_not: &NOTHING,
        },
    ),
    (
        "weft-pod-network",
        Rights {
            account: "pod-network",
            may: &["list nodes", "watch nodes"],
            may_not: &[
                "get nodes",
                "patch nodes/status",
                "list pods",
                "list services",
                "get configmaps",
                "create events",
            ],
        },
    ),
];

/// Forbidden to accounts that need no rights.
const NOTHING: [&str; 6] = [
    "get nodes",
    "list pods",
    "get configmaps",
    "create events",
    "patch nodes/status",
    "get network-attachment-definitions.k8s.cni.cncf.io",
];

/// The checks of connectivity, in their own namespace.
const CHECKS_NOT_EVEN_AT_HOME: [&str; 8] = [
    "create podnetworkconnectivitychecks.controlplane.operator.openshift.io",
    "patch podnetworkconnectivitychecks.controlplane.operator.openshift.io",
    "update podnetworkconnectivitychecks.controlplane.operator.openshift.io",
    "delete podnetworkconnectivitychecks.controlplane.operator.openshift.io",
    "create pods",
    "create pods/exec",
    "update secrets",
    "create roles.rbac.authorization.k8s.io",
];

#[test]
fn accounts_of_the_cluster_network_take_nothing() {
    let stage = Stage::start();
    put_out_prey(&stage);
    let operator = Account::of(&stage, HOME, OPERATOR.account);
    OPERATOR.check(&operator);
    operator.assert_takes_nothing();

    let _operator = stage.operator();
    stage.configure("Weft");
    for (namespace, rights) in &OPERANDS {
        let account = Account::of(&stage, namespace, rights.account);
        rights.check(&account);
        if rights.account == "network-diagnostics" {
            account.wait_until_let(&["list pods"], Some(namespace));
            account.assert_not_let(&CHECKS_NOT_EVEN_AT_HOME, Some(namespace));
        }
    }
    // Those of other programs too.
    stage.at_rest();
    for object in stage.list(&SERVICE_ACCOUNT.path(None)) {
        let text = |key: &str| object["metadata"][key].as_str().expect("a text");
        // The prey itself is in this namespace.
        if text("namespace") != "default" {
            Account::of(&stage, text("namespace"), text("name")).assert_takes_nothing();
        }
    }
}
