//! Kinds that somebody else defines, without anybody who does something about them.

use cluster::{ApiServer, Kubectl};
use serde_json::{Value, json};

/// Definitions that go when the test is over: others count on their absence.
pub(crate) struct Stubs(Vec<String>);

impl Stubs {
    /// No kind yet.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// The kinds of cert-manager that we use.
    pub(crate) fn cert_manager(&mut self) {
        self.define("cert-manager.io", "Certificate", "certificates", "Namespaced");
        self.define("cert-manager.io", "Issuer", "issuers", "Namespaced");
    }

    /// The kinds of the Prometheus operator that we use.
    pub(crate) fn monitoring(&mut self) {
        let group = "monitoring.coreos.com";
        self.define(group, "ServiceMonitor", "servicemonitors", "Namespaced");
        self.define(group, "PrometheusRule", "prometheusrules", "Namespaced");
    }

    /// What tells OpenShift 4 from other clusters.
    pub(crate) fn openshift(&mut self) {
        self.define("operator.openshift.io", "Network", "networks", "Cluster");
        self.constraints();
    }

    /// Security context constraints.
    pub(crate) fn constraints(&mut self) {
        let (kind, plural) = ("SecurityContextConstraints", "securitycontextconstraints");
        self.define("security.openshift.io", kind, plural, "Cluster");
    }

    /// The wish for node state.
    pub(crate) fn node_state(&mut self) {
        self.define("nmstate.io", "NMState", "nmstates", "Cluster");
    }

    fn define(&mut self, group: &str, kind: &str, plural: &str, scope: &str) {
        let definition = definition(group, kind, plural, scope);
        kubectl().apply(&definition.to_string()).expect("a definition");
        self.0.push(format!("{plural}.{group}"));
    }

    /// Takes all kinds away again.
    pub(crate) fn undefine(&mut self) {
        for name in self.0.drain(..) {
            kubectl().delete(["crd", &name]).expect("deleted");
        }
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        for name in &self.0 {
            // What is left over makes the next test fail; here it would hide why this one did.
            let _ = kubectl().delete(["crd", name]);
        }
    }
}

fn kubectl() -> &'static Kubectl {
    ApiServer::shared().expect("an API server").kubectl()
}

/// A definition that accepts anything.
fn definition(group: &str, kind: &str, plural: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}
