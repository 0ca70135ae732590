//! What the operator may do (operator §11). The API server lets it grant to operands only what it holds.

use serde_json::{Value, json};

/// One rule: groups, resources and verbs, separated by blanks; the core group is `-`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
    verbs: &'static str,
}

const fn rule(groups: &'static str, resources: &'static str, verbs: &'static str) -> Rule {
    Rule {
        groups,
        resources,
        names: "",
        verbs,
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const NETWORK_ADDONS: &str = "networkaddonsoperator.network.kubevirt.io";
const SCC: &str = "security.openshift.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// Rules of the established operator in the whole cluster: what it does itself, then what it holds in
/// order to grant it.
const CLUSTER: [Rule; 33] = [
    rule("operator.openshift.io", "networks", "list watch"),
    rule(SCC, "securitycontextconstraints", "get list create update"),
    Rule {
        groups: SCC,
        resources: "securitycontextconstraints",
        names: "linux-bridge bridge-marker macvtap-cni multus ovs-cni-marker",
        verbs: "use",
    },
    rule(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "get create update",
    ),
    rule(NETWORK_ADDONS, "networkaddonsconfigs", "list watch"),
    rule(NETWORK_ADDONS, "networkaddonsconfigs/status", "patch"),
    rule(NETWORK_ADDONS, "networkaddonsconfigs/finalizers", "update"),
    rule(
        "kubevirt.io",
        "virtualmachines/finalizers virtualmachineinstances/finalizers",
        "update",
    ),
    rule("apps", "deployments daemonsets", "list watch"),
    rule("-", "configmaps namespaces", "list watch get"),
    rule(RBAC, "clusterroles", "get create update bind delete"),
    rule(RBAC, "clusterrolebindings", "get create update delete"),
    rule("-", "events", "create patch"),
    rule(
        ADMISSION,
        "mutatingwebhookconfigurations",
        "get create update delete",
    ),
    rule("config.openshift.io", "infrastructures", "list watch"),
    rule("-", "services", "delete"),
    rule("k8s.cni.cncf.io", "ipamclaims", "get list watch create update"),
    rule(
        "k8s.cni.cncf.io",
        "network-attachment-definitions",
        "get list watch create update delete",
    ),
    rule("-", "events", "update"),
    rule("-", "pods pods/status", "get update list watch"),
    rule("events.k8s.io", "events", "create patch update"),
    rule("-", "nodes nodes/status", "get update patch"),
    rule("-", "configmaps", "get delete"),
    rule("-", "secrets", "list watch create update"),
    rule(
        ADMISSION,
        "validatingwebhookconfigurations mutatingwebhookconfigurations",
        "list watch",
    ),
    rule("-", "services", "get create update list watch"),
    rule("kubevirt.io", "virtualmachines", "get list watch update"),
    rule("authentication.k8s.io", "tokenreviews", "create"),
    rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    rule("apps", "deployments", "get create update"),
    rule("kubevirt.io", "virtualmachineinstances", "get list watch"),
    rule("-", "endpoints", "get list watch"),
    MULTUS,
];

/// Everything about networks of pods: only where multus may be deployed, which is everywhere by default.
pub const MULTUS: Rule = rule("k8s.cni.cncf.io", "*", "*");

/// Sight of the devices that pods have claims to; where [`MULTUS`] is.
pub const MULTUS_DEVICES: Rule = rule("resource.k8s.io", "resourceclaims resourceslices", "get list");

/// What ours may do more in the whole cluster: watch what it renders, and take security context
/// constraints away again, wish for node state, and grant multus sight of the devices of pods.
const CLUSTER_ADDITIONS: [Rule; 5] = [
    rule("apiextensions.k8s.io", "customresourcedefinitions", "list watch"),
    rule(RBAC, "clusterroles clusterrolebindings", "list watch"),
    rule(SCC, "securitycontextconstraints", "watch delete"),
    rule("nmstate.io", "nmstates", "get list watch create update delete"),
    MULTUS_DEVICES,
];

/// Rules of the established operator in its namespace.
const NAMESPACE: [Rule; 12] = [
    rule("apps", "daemonsets", "get create update delete"),
    rule("-", "configmaps", "get create update"),
    rule("-", "configmaps", "patch"),
    rule("apps", "deployments", "delete"),
    rule("-", "namespaces", "update get patch"),
    rule("-", "serviceaccounts", "get create update delete"),
    rule(
        "monitoring.coreos.com",
        "prometheusrules servicemonitors",
        "get create update delete",
    ),
    rule(RBAC, "roles rolebindings", "get create update delete"),
    rule("policy", "poddisruptionbudgets", "get delete"),
    rule(
        "coordination.k8s.io",
        "leases",
        "get list watch create update patch delete",
    ),
    rule(
        "cert-manager.io",
        "certificates issuers",
        "get create update delete",
    ),
    rule(
        "networking.k8s.io",
        "networkpolicies",
        "get list watch create update patch delete",
    ),
];

/// What ours may do more in its namespace: watch what it renders, and take away the certificates that it issued.
const NAMESPACE_ADDITIONS: [Rule; 5] = [
    rule(
        "monitoring.coreos.com",
        "prometheusrules servicemonitors",
        "list watch",
    ),
    rule("cert-manager.io", "certificates issuers", "list watch"),
    rule("-", "serviceaccounts", "list watch"),
    rule(RBAC, "roles rolebindings", "list watch"),
    Rule {
        groups: "-",
        resources: "secrets",
        names: "kubevirt-ipam-controller-webhook-ca webhook-server-cert",
        verbs: "get delete",
    },
];

/// Rules of the cluster role.
pub fn cluster_rules() -> Vec<Rule> {
    [&CLUSTER[..], &CLUSTER_ADDITIONS].concat()
}

/// Rules of the role in the operator's namespace.
pub fn namespace_rules() -> Vec<Rule> {
    [&NAMESPACE[..], &NAMESPACE_ADDITIONS].concat()
}

impl Rule {
    /// The rule as it stands in a role.
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
