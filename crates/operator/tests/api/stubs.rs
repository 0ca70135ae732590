//! Kinds of other products, without their controllers.

use kube_kit::object::CUSTOM_RESOURCE_DEFINITION;
use serde_json::{Value, json};
use stage::{Admin, Method, until};

/// A kind whose objects may have any fields.
pub(crate) struct Stub {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    scope: &'static str,
}

/// The required kinds of cert-manager.
pub(crate) const CERT_MANAGER: &[Stub] = &[
    Stub::namespaced("cert-manager.io", "Certificate", "certificates"),
    Stub::namespaced("cert-manager.io", "Issuer", "issuers"),
];
/// The required kinds of the Prometheus operator.
pub(crate) const MONITORING: &[Stub] = &[
    Stub::namespaced("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
    Stub::namespaced("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
];
/// The kind that identifies OpenShift 4, and its security context constraints.
pub(crate) const OPENSHIFT: &[Stub] = &[
    Stub::cluster("operator.openshift.io", "Network", "networks"),
    Stub::cluster(
        "security.openshift.io",
        "SecurityContextConstraints",
        "securitycontextconstraints",
    ),
];
/// The kind `NMState`.
pub(crate) const NODE_STATE: &[Stub] = &[Stub::cluster("nmstate.io", "NMState", "nmstates")];
/// The `NMState` kind of releases without `v1`.
pub(crate) const FORMER_NODE_STATE: &[Stub] = &[Stub {
    version: "v1beta1",
    ..Stub::cluster("nmstate.io", "NMState", "nmstates")
}];

impl Stub {
    const fn namespaced(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            scope: "Namespaced",
            ..Self::cluster(group, kind, plural)
        }
    }

    const fn cluster(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version: "v1",
            kind,
            plural,
            scope: "Cluster",
        }
    }

    fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    fn definition(&self) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": self.name() },
            "spec": {
                "group": self.group, "scope": self.scope,
                "names": { "kind": self.kind, "plural": self.plural, "singular": self.kind.to_lowercase() },
                "versions": [{
                    "name": self.version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        })
    }
}

/// Creates kinds, and waits until they are served.
pub(crate) fn define(admin: &Admin, stubs: &[Stub]) {
    for stub in stubs {
        admin.create(&CUSTOM_RESOURCE_DEFINITION.path(None), &stub.definition());
    }
    wait_for_definitions(admin);
}

/// Waits until all definitions are served; a new one has no condition yet.
pub(crate) fn wait_for_definitions(admin: &Admin) {
    until("established definitions", || {
        let all = admin.list(&CUSTOM_RESOURCE_DEFINITION.path(None));
        let established = |object: &Value| {
            let conditions = object["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions
                .iter()
                .any(|c| c["type"] == "Established" && c["status"] == "True")
        };
        match all.iter().find(|object| !established(object)) {
            None => Ok(()),
            Some(object) => Err(format!("{object:#}")),
        }
    });
}

/// Deletes kinds, and waits until they are gone. The API server delays the deletion of a new definition for minutes
/// while it creates the storage, unless the definition changes.
pub(crate) fn undefine(admin: &Admin, stubs: &[Stub]) {
    let all = CUSTOM_RESOURCE_DEFINITION.path(None);
    let paths: Vec<_> = stubs
        .iter()
        .map(|stub| format!("{all}/{}", stub.name()))
        .collect();
    for path in &paths {
        admin.delete(path);
    }
    let mut nudges = 0;
    until("the end of definitions", || {
        let left: Vec<_> = paths.iter().filter(|path| admin.get(path).is_some()).collect();
        if left.is_empty() {
            return Ok(());
        }
        nudges += 1;
        let nudge = json!({ "metadata": { "annotations": { "nudge": nudges.to_string() } } });
        for path in &left {
            // The definition may be gone meanwhile.
            admin.send(Method::PATCH, path, Some(&nudge));
        }
        Err(format!("{left:?}"))
    });
}
