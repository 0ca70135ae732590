//! Kinds by the names that kubectl takes, and where the API server serves them.

/// Kinds that are in namespaces: name, API and resource.
const IN_NAMESPACES: [(&str, &str, &str); 15] = [
    ("certificate", "/apis/cert-manager.io/v1", "certificates"),
    ("configmap", "/api/v1", "configmaps"),
    ("daemonset", "/apis/apps/v1", "daemonsets"),
    ("deployment", "/apis/apps/v1", "deployments"),
    ("issuer", "/apis/cert-manager.io/v1", "issuers"),
    (
        "network-attachment-definition",
        "/apis/k8s.cni.cncf.io/v1",
        "network-attachment-definitions",
    ),
    ("networkpolicy", "/apis/networking.k8s.io/v1", "networkpolicies"),
    ("poddisruptionbudget", "/apis/policy/v1", "poddisruptionbudgets"),
    (
        "prometheusrule",
        "/apis/monitoring.coreos.com/v1",
        "prometheusrules",
    ),
    ("role", "/apis/rbac.authorization.k8s.io/v1", "roles"),
    (
        "rolebinding",
        "/apis/rbac.authorization.k8s.io/v1",
        "rolebindings",
    ),
    ("secret", "/api/v1", "secrets"),
    ("service", "/api/v1", "services"),
    (
        "servicemonitor",
        "/apis/monitoring.coreos.com/v1",
        "servicemonitors",
    ),
    ("serviceaccount", "/api/v1", "serviceaccounts"),
];
/// Kinds that are in none.
const IN_NONE: [(&str, &str, &str); 9] = [
    (
        "clusterrole",
        "/apis/rbac.authorization.k8s.io/v1",
        "clusterroles",
    ),
    (
        "clusterrolebinding",
        "/apis/rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
    ),
    (
        "crd",
        "/apis/apiextensions.k8s.io/v1",
        "customresourcedefinitions",
    ),
    (
        "customresourcedefinition",
        "/apis/apiextensions.k8s.io/v1",
        "customresourcedefinitions",
    ),
    (
        "mutatingwebhookconfiguration",
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
    ),
    ("namespace", "/api/v1", "namespaces"),
    ("nmstate", "/apis/nmstate.io/v1", "nmstates"),
    (
        "networkaddonsconfig",
        "/apis/networkaddonsoperator.network.kubevirt.io/v1",
        "networkaddonsconfigs",
    ),
    (
        "securitycontextconstraints",
        "/apis/security.openshift.io/v1",
        "securitycontextconstraints",
    ),
];

/// Where an object is served; without a name, all of its kind. What is in no namespace needs none.
pub(crate) fn path(kind: &str, namespace: &str, name: &str) -> String {
    let of = |kinds: &[(&str, &'static str, &'static str)]| {
        let found = kinds
            .iter()
            .find(|(known, _, _)| known.eq_ignore_ascii_case(kind));
        found.map(|(_, api, resource)| (*api, *resource))
    };
    let kind = match (of(&IN_NAMESPACES), of(&IN_NONE)) {
        (Some((api, resource)), _) => format!("{api}/namespaces/{namespace}/{resource}"),
        (None, Some((api, resource))) => format!("{api}/{resource}"),
        (None, None) => panic!("kind.rs does not know {kind}"),
    };
    if name.is_empty() {
        kind
    } else {
        format!("{kind}/{name}")
    }
}
