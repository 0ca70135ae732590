//! The allowed and the forbidden requests of each account.

use stage::Rights;

/// Accounts with pods on every node: a compromised node must not lead to others.
pub(super) const NODES: [Rights; 5] = [
    Rights {
        account: "multus",
        may: &[
            "get network-attachment-definitions.k8s.cni.cncf.io",
            "watch network-attachment-definitions.k8s.cni.cncf.io",
            "watch pods",
            "update pods/status",
            "create events",
            "get resourceclaims.resource.k8s.io",
            // Both reads show multus that it is removed from the node.
            "get daemonsets.apps multus",
            "get nodes",
        ],
        may_not: &[
            "create network-attachment-definitions.k8s.cni.cncf.io",
            "update network-attachment-definitions.k8s.cni.cncf.io",
            "patch network-attachment-definitions.k8s.cni.cncf.io",
            "delete network-attachment-definitions.k8s.cni.cncf.io",
            "update ipamclaims.k8s.cni.cncf.io",
            "update pods",
            "patch pods",
            "create pods",
            "create pods/exec",
            "get secrets",
            "list nodes",
            "update nodes",
            "patch nodes/status",
            "get daemonsets.apps another",
            "update daemonsets.apps multus",
        ],
    },
    Rights {
        account: "dynamic-networks-controller",
        may: &[
            "get network-attachment-definitions.k8s.cni.cncf.io",
            "watch pods",
            "update pods/status",
        ],
        may_not: &[
            "update network-attachment-definitions.k8s.cni.cncf.io",
            "delete network-attachment-definitions.k8s.cni.cncf.io",
            "update pods",
            "patch pods",
            "get secrets",
        ],
    },
    Rights {
        account: "bridge-marker",
        may: &["get nodes", "patch nodes/status"],
        may_not: &[
            "update nodes",
            "patch nodes",
            "update nodes/status",
            "list nodes",
            "get pods",
            "get secrets",
        ],
    },
    Rights {
        account: "ovs-cni-marker",
        may: &["get nodes", "patch nodes/status"],
        may_not: &[
            "update nodes",
            "patch nodes",
            "update nodes/status",
            "list nodes",
            "get pods",
            "get secrets",
        ],
    },
    Rights {
        account: "macvtap-cni",
        may: &[],
        may_not: &[
            "get nodes",
            "list pods",
            "get configmaps",
            "get secrets",
            "patch nodes/status",
        ],
    },
];

/// The MAC pool: its pods are on one node, and it only reads other namespaces.
pub(super) const POOL: &str = "kubemacpool-sa";
pub(super) const POOL_EVERYWHERE: [&str; 5] = [
    "watch pods",
    "watch namespaces",
    "create events",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
    "watch mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
];
pub(super) const POOL_AT_HOME: [&str; 5] = [
    "create secrets",
    "update secrets kubemacpool-service",
    "update secrets kubemacpool-mutator-ca",
    "watch secrets kubemacpool-service",
    "watch configmaps kubemacpool-mac-range-config",
];
pub(super) const POOL_NOWHERE: [&str; 9] = [
    "list secrets",
    "create secrets",
    "update secrets kubemacpool-service",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "list mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "list validatingwebhookconfigurations.admissionregistration.k8s.io",
    "list configmaps",
    "update pods",
    "get customresourcedefinitions.apiextensions.k8s.io",
];
pub(super) const POOL_NOT_EVEN_AT_HOME: [&str; 5] = [
    "list secrets",
    "get secrets webhook-server-cert",
    "update secrets webhook-server-cert",
    "list configmaps",
    "delete configmaps kubemacpool-mac-range-config",
];

/// The operator: rights that an attacker does not gain if no image of upstream is deployed.
pub(super) const OPERATOR: &str = "cluster-network-addons-operator";
pub(super) const OPERATOR_NOWHERE: [&str; 17] = [
    "list secrets",
    "create secrets",
    "update secrets",
    "list configmaps",
    "update pods",
    "update nodes",
    "update nodes/status",
    "patch nodes",
    "delete services",
    "create deployments.apps",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io another",
    "delete mutatingwebhookconfigurations.admissionregistration.k8s.io another",
    "update customresourcedefinitions.apiextensions.k8s.io another",
    "bind clusterroles.rbac.authorization.k8s.io cluster-admin",
    "update clusterroles.rbac.authorization.k8s.io cluster-admin",
    "delete clusterrolebindings.rbac.authorization.k8s.io cluster-admin",
    "escalate clusterroles.rbac.authorization.k8s.io multus",
];
pub(super) const OPERATOR_NOT_EVEN_AT_HOME: [&str; 3] =
    ["list secrets", "get secrets another", "update secrets another"];

/// Rights that only upstream's images need: the binding that may be deleted.
pub(super) const ESTABLISHED: &str = "cluster-network-addons-operator-established";

/// The other components, and node state, whose operator deploys the accounts of its programs.
pub(super) const OTHERS: [Rights; 7] = [
    Rights {
        account: "secondary",
        may: &["watch virtualmachineinstances.kubevirt.io"],
        may_not: &[
            "update virtualmachineinstances.kubevirt.io",
            "get virtualmachines.kubevirt.io",
            "list pods",
            "get configmaps",
            "create events",
        ],
    },
    Rights {
        account: "kubevirt-ipam-controller-manager",
        may: &[
            "watch virtualmachines.kubevirt.io",
            "update virtualmachines.kubevirt.io/finalizers",
            "create ipamclaims.k8s.cni.cncf.io",
            // Claims of networks that were unplugged.
            "delete ipamclaims.k8s.cni.cncf.io",
            // Claims of networks with a range of their own.
            "update ipamclaims.k8s.cni.cncf.io/status",
            "watch network-attachment-definitions.k8s.cni.cncf.io",
            "create events",
        ],
        may_not: &[
            "list pods",
            "update pods",
            "patch pods/status",
            "update virtualmachines.kubevirt.io",
            "update leases.coordination.k8s.io another",
            "create network-attachment-definitions.k8s.cni.cncf.io",
            "update network-attachment-definitions.k8s.cni.cncf.io",
            "list configmaps",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ],
    },
    Rights {
        account: "nmstate-operator",
        may: &[
            "create clusterroles.rbac.authorization.k8s.io",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "update customresourcedefinitions.apiextensions.k8s.io nodenetworkstates.nmstate.io",
        ],
        may_not: &[
            "bind clusterroles.rbac.authorization.k8s.io cluster-admin",
            "escalate clusterroles.rbac.authorization.k8s.io nmstate-handler",
            "create daemonsets.apps",
            "create deployments.apps",
            "create serviceaccounts",
            "update customresourcedefinitions.apiextensions.k8s.io another",
            "delete customresourcedefinitions.apiextensions.k8s.io nodenetworkstates.nmstate.io",
            "create nodenetworkconfigurationpolicies.nmstate.io",
        ],
    },
    Rights {
        account: "nmstate-handler",
        may: &[
            "list nodes",
            "create nodenetworkstates.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io/status",
            "delete nodenetworkconfigurationenactments.nmstate.io",
        ],
        may_not: &[
            "create nodenetworkconfigurationpolicies.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io",
            "delete nodenetworkstates.nmstate.io",
            "patch nodes/status",
            "list pods",
            "create events",
            "get mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
        ],
    },
    Rights {
        account: "nmstate-webhook",
        may: &[],
        may_not: &[
            "list nodenetworkconfigurationpolicies.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io/status",
            "get mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
            "list nodes",
        ],
    },
    Rights {
        account: "nmstate-cert-manager",
        may: &["update mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate"],
        may_not: &[
            "create secrets",
            "create mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
            "list nodes",
        ],
    },
    Rights {
        account: "nmstate-metrics",
        may: &["watch nodenetworkstates.nmstate.io"],
        may_not: &[
            "update nodenetworkstates.nmstate.io",
            "update nodenetworkstates.nmstate.io/status",
            "list nodes",
        ],
    },
];

/// The account of the CNI plugins, which exists only on OpenShift. Its only right is bound in the operator's namespace.
pub(super) const PLUGINS: &str = "linux-bridge";
pub(super) const PLUGINS_AT_HOME: [&str; 1] =
    ["use securitycontextconstraints.security.openshift.io linux-bridge"];
pub(super) const PLUGINS_NOWHERE: [&str; 8] = [
    "use securitycontextconstraints.security.openshift.io privileged",
    "use securitycontextconstraints.security.openshift.io multus",
    "get securitycontextconstraints.security.openshift.io linux-bridge",
    "get nodes",
    "list pods",
    "get configmaps",
    "get network-attachment-definitions.k8s.cni.cncf.io",
    "create events",
];

/// Installations without the add-ons operator, in `kube-system`.
pub(super) const ALONE: [Rights; 2] = [
    Rights {
        account: "multus-cert-approver",
        may: &[
            "update certificatesigningrequests.certificates.k8s.io/approval",
            "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        ],
        may_not: &[
            "create certificatesigningrequests.certificates.k8s.io",
            "update certificatesigningrequests.certificates.k8s.io/status",
            "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet",
            "approve signers.certificates.k8s.io kubernetes.io/kubelet-serving",
            "sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
        ],
    },
    Rights {
        account: "weft-nad-webhook",
        may: &["update validatingwebhookconfigurations.admissionregistration.k8s.io weft-nad-webhook"],
        may_not: &[
            "update validatingwebhookconfigurations.admissionregistration.k8s.io another",
            "create validatingwebhookconfigurations.admissionregistration.k8s.io",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
            "list network-attachment-definitions.k8s.cni.cncf.io",
            "create secrets",
            "list pods",
        ],
    },
];

/// An account of files that are applied without an operator, or by hand.
pub(super) struct Standalone {
    pub files: &'static [&'static str],
    pub namespace: &'static str,
    /// In all namespaces.
    pub rights: Rights,
    pub at_home: &'static [&'static str],
    pub not_even_at_home: &'static [&'static str],
}

/// Multus without an operator: its `DaemonSet` has another name.
const fn multus_alone(files: &'static [&'static str]) -> Standalone {
    Standalone {
        files,
        namespace: "kube-system",
        rights: Rights {
            account: "multus",
            may: &[
                "watch network-attachment-definitions.k8s.cni.cncf.io",
                "watch pods",
                "update pods/status",
                "create events",
                "get daemonsets.apps kube-multus-ds",
            ],
            may_not: NODES[0].may_not,
        },
        at_home: &[],
        not_even_at_home: NODES[0].may_not,
    }
}

const fn pool_alone(files: &'static [&'static str]) -> Standalone {
    Standalone {
        files,
        namespace: "kubemacpool-system",
        rights: Rights {
            account: POOL,
            may: &POOL_EVERYWHERE,
            may_not: &POOL_NOWHERE,
        },
        at_home: &POOL_AT_HOME,
        not_even_at_home: &POOL_NOT_EVEN_AT_HOME,
    }
}

pub(super) const STANDALONE: [Standalone; 6] = [
    multus_alone(&[include_str!("../../../../../deploy/multus/thick.yaml")]),
    multus_alone(&[include_str!("../../../../../deploy/multus/thin.yaml")]),
    Standalone {
        files: &[
            include_str!("../../../../../deploy/multus/nad-webhook.yaml"),
            include_str!("../../../../../deploy/multus/nad-webhook-inject.yaml"),
        ],
        namespace: "kube-system",
        rights: Rights {
            account: "weft-nad-webhook",
            may: &[
                "list network-attachment-definitions.k8s.cni.cncf.io",
                "update validatingwebhookconfigurations.admissionregistration.k8s.io weft-nad-webhook",
            ],
            may_not: &[
                "create network-attachment-definitions.k8s.cni.cncf.io",
                "update network-attachment-definitions.k8s.cni.cncf.io",
                "update validatingwebhookconfigurations.admissionregistration.k8s.io another",
                "create mutatingwebhookconfigurations.admissionregistration.k8s.io",
                "update mutatingwebhookconfigurations.admissionregistration.k8s.io another",
                "list pods",
                "update pods",
                "list secrets",
            ],
        },
        at_home: &[],
        not_even_at_home: &["list secrets", "get secrets another", "update pods"],
    },
    pool_alone(&[include_str!("../../../../../deploy/kubemacpool.yaml")]),
    pool_alone(&[include_str!("../../../../../deploy/kubemacpool-replicas.yaml")]),
    Standalone {
        files: &[include_str!(
            "../../../../cluster-network/src/render/mtu_prober.yaml"
        )],
        namespace: "openshift-network-operator",
        rights: Rights {
            account: "mtu-prober",
            may: &[],
            may_not: &[
                "get nodes",
                "list pods",
                "list configmaps",
                "create configmaps",
                "get secrets",
                "create events",
            ],
        },
        at_home: &[
            "create configmaps",
            "patch configmaps mtu",
            "patch configmaps mtu-prober",
        ],
        not_even_at_home: &[
            "get configmaps another",
            "patch configmaps another",
            "get secrets",
        ],
    },
];
