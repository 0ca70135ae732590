//! Kinds of other products, without their controllers.

use cluster::{ApiServer, wait};
use kube_kit::object::CUSTOM_RESOURCE_DEFINITION;
use serde_json::{Value, json};
use stage::{Admin, DEADLINE, Method, until};

/// Definitions that are deleted at the end of the test: other tests rely on their absence.
pub(crate) struct Stubs(Vec<String>);

impl Stubs {
    /// Starts without any kind.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// Starts with some kinds, such as `Stubs::with(Stubs::monitoring)`.
    pub(crate) fn with(define: impl FnOnce(&mut Self)) -> Self {
        let mut stubs = Self::none();
        define(&mut stubs);
        stubs
    }

    /// The required kinds of cert-manager.
    pub(crate) fn cert_manager(&mut self) {
        self.define("cert-manager.io", "Certificate", "certificates", "Namespaced");
        self.define("cert-manager.io", "Issuer", "issuers", "Namespaced");
    }

    /// The required kinds of the Prometheus operator.
    pub(crate) fn monitoring(&mut self) {
        let group = "monitoring.coreos.com";
        self.define(group, "ServiceMonitor", "servicemonitors", "Namespaced");
        self.define(group, "PrometheusRule", "prometheusrules", "Namespaced");
    }

    /// The kind that identifies OpenShift 4.
    pub(crate) fn openshift(&mut self) {
        self.define("operator.openshift.io", "Network", "networks", "Cluster");
        self.constraints();
    }

    /// Security context constraints.
    pub(crate) fn constraints(&mut self) {
        let (kind, plural) = ("SecurityContextConstraints", "securitycontextconstraints");
        self.define("security.openshift.io", kind, plural, "Cluster");
    }

    /// The kind `NMState`.
    pub(crate) fn node_state(&mut self) {
        self.define("nmstate.io", "NMState", "nmstates", "Cluster");
    }

    /// The `NMState` kind of releases without `v1`.
    pub(crate) fn former_node_state(&mut self) {
        let mut definition = definition("nmstate.io", "NMState", "nmstates", "Cluster");
        definition["spec"]["versions"][0]["name"] = json!("v1beta1");
        self.install(&definition);
    }

    fn define(&mut self, group: &str, kind: &str, plural: &str, scope: &str) {
        self.install(&definition(group, kind, plural, scope));
    }

    fn install(&mut self, definition: &Value) {
        let admin = admin();
        admin.apply(definition);
        let name = definition["metadata"]["name"].as_str().expect("a name");
        self.0.push(name.to_owned());
        wait_for_definitions(&admin);
    }

    /// Deletes all definitions.
    pub(crate) fn undefine(&mut self) {
        undefine(&admin(), &std::mem::take(&mut self.0)).expect("no definitions");
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        // A leftover fails the next test; a panic here would hide the failure of this one.
        let _ = undefine(&admin(), &self.0);
    }
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

/// Deletes definitions, and waits until they are gone. The API server delays the deletion of a new definition for
/// minutes while it creates the storage, unless the definition changes.
pub(crate) fn undefine(admin: &Admin, names: &[String]) -> Result<(), String> {
    let all = CUSTOM_RESOURCE_DEFINITION.path(None);
    let paths: Vec<_> = names.iter().map(|name| format!("{all}/{name}")).collect();
    for path in &paths {
        // The definition may already be deleted.
        admin.send(Method::DELETE, path, None);
    }
    let mut nudges = 0;
    wait::until("the end of definitions", DEADLINE, || {
        let left: Vec<_> = paths.iter().filter(|path| admin.get(path).is_some()).collect();
        if left.is_empty() {
            return Ok(());
        }
        nudges += 1;
        let nudge = json!({ "metadata": { "annotations": { "nudge": nudges.to_string() } } });
        for path in &left {
            // A deleted definition cannot be changed.
            admin.patch(path, &nudge);
        }
        Err(format!("{left:?}"))
    })
    .map_err(|error| error.to_string())
}

fn admin() -> Admin {
    Admin::of(ApiServer::own().expect("an API server"))
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
