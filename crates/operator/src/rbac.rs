//! Rights of the operator (operator §11). The API server lets the operator grant to operands only rights that the
//! operator holds, and the operator holds only bounded rights: neither `escalate`, nor `bind` of roles except its own.
//!
//! Existing objects have names, so changes are allowed by name. Creations cannot be limited by name, and lists and
//! watches select by label: these are allowed for a whole kind.

use serde_json::{Value, json};

/// One rule: groups, resources, names and verbs, each separated by blanks; `-` is the core group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
    verbs: &'static str,
}

const fn rule(groups: &'static str, resources: &'static str, verbs: &'static str) -> Rule {
    named(groups, resources, "", verbs)
}

const fn named(
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
    verbs: &'static str,
) -> Rule {
    Rule {
        groups,
        resources,
        names,
        verbs,
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const NETWORK_ADDONS: &str = "networkaddonsoperator.network.kubevirt.io";
const NETWORKS: &str = "k8s.cni.cncf.io";
const SCC: &str = "security.openshift.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const DEFINITIONS: &str = "apiextensions.k8s.io";
const MONITORING: &str = "monitoring.coreos.com";
const CERT_MANAGER: &str = "cert-manager.io";

// Names of all rendered objects, in every flavour and on every platform. A name stays here as long as the inventory of
// an installation may have the object, because the operator could not delete it otherwise.

const CONSTRAINTS: &str = "linux-bridge bridge-marker macvtap-cni multus ovs-cni-marker";
const CLUSTER_ROLES: &str = "multus multus-scc-use dynamic-networks-controller linux-bridge-scc-use bridge-marker-cr \
                             bridge-marker-scc-use kubemacpool-manager-role ovs-cni-marker-cr ovs-cni-marker-scc-use \
                             macvtap-cni-scc-use secondary kubevirt-ipam-controller-manager-role";
const CLUSTER_ROLE_BINDINGS: &str = "multus dynamic-networks-controller bridge-marker-crb \
                                     kubemacpool-manager-rolebinding ovs-cni-marker-crb secondary \
                                     kubevirt-ipam-controller-manager-rolebinding \
                                     cluster-network-addons-nmstate-operator";
const ROLES: &str = "kubemacpool-manager-role kubemacpool-prometheus cluster-network-addons-operator-monitoring \
                     kubevirt-ipam-controller-leader-election-role";
const ROLE_BINDINGS: &str = "kubemacpool-manager-rolebinding kubemacpool-prometheus \
                             cluster-network-addons-operator-monitoring \
                             kubevirt-ipam-controller-leader-election-rolebinding multus-scc-use \
                             linux-bridge-scc-use bridge-marker-scc-use ovs-cni-marker-scc-use macvtap-cni-scc-use \
                             cluster-network-addons-nmstate-operator-namespace";
const WEBHOOKS: &str = "kubemacpool-mutator kubevirt-ipam-controller-mutating-webhook-configuration";

// Names of the leftovers of earlier operators (operator §9.2, §9.3).

const OLD_CONSTRAINTS: &str = "passt-binding-cni";
const OLD_CLUSTER_ROLES: &str = "nmstate-handler kubevirt-ipam-claims-manager-role";
const OLD_CLUSTER_ROLE_BINDINGS: &str = "nmstate-handler kubevirt-ipam-claims-manager-rolebinding";
const OLD_ROLES: &str = "nmstate-handler kubevirt-ipam-claims-leader-election-role";
const OLD_ROLE_BINDINGS: &str = "nmstate-handler kubevirt-ipam-claims-leader-election-rolebinding";
const OLD_WEBHOOKS: &str = "nmstate kubevirt-ipam-claims-mutating-webhook-configuration";

/// The roles of the node state operator. They are part of the manifests, because the operator can grant only rights
/// that the operator holds.
const NODE_STATE_ROLES: &str =
    "cluster-network-addons-nmstate-operator cluster-network-addons-nmstate-operator-namespace";

/// Rules of the whole cluster: the operator's own requests, then the rights that it grants.
const CLUSTER: [Rule; 38] = [
    rule("operator.openshift.io", "networks", "list watch"),
    rule(SCC, "securitycontextconstraints", "get list watch create"),
    named(
        SCC,
        "securitycontextconstraints",
        CONSTRAINTS,
        "update delete use",
    ),
    named(SCC, "securitycontextconstraints", OLD_CONSTRAINTS, "delete"),
    rule(DEFINITIONS, "customresourcedefinitions", "get list watch create"),
    named(
        DEFINITIONS,
        "customresourcedefinitions",
        "network-attachment-definitions.k8s.cni.cncf.io ipamclaims.k8s.cni.cncf.io nmstates.nmstate.io",
        "update",
    ),
    rule(NETWORK_ADDONS, "networkaddonsconfigs", "list watch"),
    rule(NETWORK_ADDONS, "networkaddonsconfigs/status", "patch"),
    rule(NETWORK_ADDONS, "networkaddonsconfigs/finalizers", "update"),
    rule(RBAC, "clusterroles clusterrolebindings", "get list watch create"),
    named(RBAC, "clusterroles", CLUSTER_ROLES, "bind update delete"),
    named(RBAC, "clusterroles", NODE_STATE_ROLES, "bind"),
    named(RBAC, "clusterroles", OLD_CLUSTER_ROLES, "delete"),
    named(
        RBAC,
        "clusterrolebindings",
        CLUSTER_ROLE_BINDINGS,
        "update delete",
    ),
    named(RBAC, "clusterrolebindings", OLD_CLUSTER_ROLE_BINDINGS, "delete"),
    rule(
        ADMISSION,
        "mutatingwebhookconfigurations",
        "get list watch create",
    ),
    named(
        ADMISSION,
        "mutatingwebhookconfigurations",
        WEBHOOKS,
        "update delete",
    ),
    named(ADMISSION, "mutatingwebhookconfigurations", OLD_WEBHOOKS, "delete"),
    rule("nmstate.io", "nmstates", "get list watch create"),
    named("nmstate.io", "nmstates", "nmstate", "update delete"),
    named(
        NETWORKS,
        "network-attachment-definitions",
        "primary-udn-kubevirt-binding",
        "delete",
    ),
    rule("-", "namespaces", "get list watch"),
    rule("-", "events", "create patch"),
    rule("authentication.k8s.io", "tokenreviews", "create"),
    rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    rule("events.k8s.io", "events", "create patch"),
    rule(NETWORKS, "network-attachment-definitions", "get list watch"),
    rule(NETWORKS, "ipamclaims", "get list watch create update delete"),
    rule(NETWORKS, "ipamclaims/status", "update"),
    MULTUS_DEVICES,
    MULTUS_DAEMON_SET,
    rule("-", "pods", "get list watch"),
    rule("-", "pods/status", "update"),
    rule("-", "nodes", "get"),
    rule("-", "nodes/status", "patch"),
    rule("kubevirt.io", "virtualmachines", "get list watch update"),
    rule("kubevirt.io", "virtualmachineinstances", "get list watch"),
    rule(
        "kubevirt.io",
        "virtualmachines/finalizers virtualmachineinstances/finalizers",
        "update",
    ),
];

/// Full access to networks of pods: only if multus may be deployed, which is the default.
const MULTUS: Rule = rule(NETWORKS, "*", "*");

/// Reading the devices of pods' resource claims; only if multus may be deployed.
const MULTUS_DEVICES: Rule = rule("resource.k8s.io", "resourceclaims resourceslices", "get list");

/// Reading multus' own DaemonSet: its deletion shows multus that it is removed from a node. Only if multus may be
/// deployed.
const MULTUS_DAEMON_SET: Rule = named("apps", "daemonsets", "multus", "get");

/// Rules of the whole cluster that the operator only grants to upstream's images.
const ESTABLISHED: [Rule; 8] = [
    rule("-", "events", "update"),
    rule("events.k8s.io", "events", "update"),
    rule("-", "pods pods/status", "get update list watch"),
    rule("-", "nodes nodes/status", "get update patch"),
    rule("-", "configmaps", "get delete list watch"),
    rule("-", "secrets", "list watch create update"),
    rule(
        ADMISSION,
        "validatingwebhookconfigurations mutatingwebhookconfigurations",
        "list watch",
    ),
    rule(ADMISSION, "mutatingwebhookconfigurations", "update"),
];

const NAMESPACE: [Rule; 18] = [
    rule(
        "apps",
        "daemonsets deployments",
        "get list watch create update delete",
    ),
    rule("-", "configmaps", "get list watch create update patch delete"),
    rule(
        "-",
        "services serviceaccounts",
        "get list watch create update delete",
    ),
    rule("-", "endpoints", "get list watch"),
    rule("-", "namespaces", "get update patch"),
    rule("-", "secrets", "create"),
    named(
        "-",
        "secrets",
        "kubevirt-ipam-controller-webhook-ca webhook-server-cert",
        "get list watch update delete",
    ),
    named(
        "-",
        "secrets",
        "kubemacpool-service kubemacpool-mutator-ca",
        "list watch update",
    ),
    rule(RBAC, "roles rolebindings", "get list watch create"),
    named(RBAC, "roles", ROLES, "update delete"),
    named(RBAC, "roles", OLD_ROLES, "delete"),
    named(RBAC, "rolebindings", ROLE_BINDINGS, "update delete"),
    named(RBAC, "rolebindings", OLD_ROLE_BINDINGS, "delete"),
    rule(
        MONITORING,
        "prometheusrules servicemonitors",
        "get list watch create update delete",
    ),
    rule(
        "policy",
        "poddisruptionbudgets",
        "get list watch create update delete",
    ),
    rule(
        "coordination.k8s.io",
        "leases",
        "get list watch create update patch delete",
    ),
    rule(
        CERT_MANAGER,
        "certificates issuers",
        "get list watch create update delete",
    ),
    rule(
        "networking.k8s.io",
        "networkpolicies",
        "get list watch create update delete",
    ),
];

/// Rules of the cluster role. Some are for multus alone.
pub fn cluster_rules(allow_multus: bool) -> Vec<Rule> {
    let held = |rule: &Rule| allow_multus || ![MULTUS_DEVICES, MULTUS_DAEMON_SET].contains(rule);
    CLUSTER.into_iter().filter(held).collect()
}

/// Additional rules of the cluster role for upstream's images.
pub fn upstream_rules(allow_multus: bool) -> Vec<Rule> {
    let multus = allow_multus.then_some(MULTUS);
    ESTABLISHED.into_iter().chain(multus).collect()
}

/// Rules of the role in the namespace of the operands.
pub fn namespace_rules() -> Vec<Rule> {
    NAMESPACE.to_vec()
}

impl Rule {
    /// The rule in the form of a role's manifest.
    pub fn to_value(self) -> Value {
        let list = |text: &str| -> Vec<String> {
            text.split_whitespace()
                .map(|word| {
                    if word == "-" {
                        String::new()
                    } else {
                        word.to_owned()
                    }
                })
                .collect()
        };
        let mut rule = json!({
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        });
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(list(self.names));
        }
        rule
    }
}
