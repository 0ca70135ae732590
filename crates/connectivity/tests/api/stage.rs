//! An API server with the CRD of checks, and objects of the tests.

use std::ops::Deref;

use serde_json::{Value, json};
use stage::Server;
pub(crate) use stage::{Admin, Task, until};

pub(crate) const NS: &str = "openshift-network-diagnostics";
pub(crate) const POD: &str = "network-check-source-1";
pub(crate) const NODE: &str = "node1.example.com";

/// The configurations of the cluster's network, and of its operator.
pub(crate) const CONFIGS: &str = "/apis/config.openshift.io/v1/networks";
pub(crate) const OPERATORS: &str = "/apis/operator.openshift.io/v1/networks";

pub(crate) struct Stage {
    server: Server,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

pub(crate) fn services() -> String {
    format!("/api/v1/namespaces/{NS}/services")
}

pub(crate) fn checks() -> String {
    format!("/apis/controlplane.operator.openshift.io/v1alpha1/namespaces/{NS}/podnetworkconnectivitychecks")
}

impl Stage {
    pub(crate) fn start() -> Self {
        let server = Server::take(install);
        server.namespace(NS, &[]);
        Self { server }
    }

    /// Creates the node of the source, and the source pod.
    pub(crate) fn source(&self) -> Value {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        let node = self.create("/api/v1/nodes", &node);
        self.create(
            &format!("/api/v1/namespaces/{NS}/pods"),
            &pod(POD, "network-check-source", NODE),
        );
        node
    }

    pub(crate) fn check(&self, name: &str, source: &str, endpoint: &str) {
        let check = json!({
            "apiVersion": "controlplane.operator.openshift.io/v1alpha1", "kind": "PodNetworkConnectivityCheck",
            "metadata": { "name": name }, "spec": { "sourcePod": source, "targetEndpoint": endpoint },
        });
        self.create(&checks(), &check);
    }

    /// Waits until the status of a check satisfies a condition.
    #[track_caller]
    pub(crate) fn wait_for_status(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        self.wait_for(what, &format!("{}/{name}", checks()), |check| {
            let status = &check?["status"];
            condition(status).then(|| status.clone())
        })
    }

    /// Waits for an event in any namespace.
    #[track_caller]
    pub(crate) fn wait_for_event(&self, text: &str) {
        until(text, || {
            let events = self.events("");
            if events.iter().any(|event| event.contains(text)) {
                Ok(())
            } else {
                Err(format!("{events:#?}"))
            }
        });
    }
}

pub(crate) fn pod(name: &str, app: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": app } },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "registry.example/none" }] },
    })
}

fn install(admin: &Admin) {
    let crds = [
        api::connectivity_check::crd().expect("a definition"),
        api::cluster_network::config::crd().expect("a definition"),
        api::cluster_network::operator::crd().expect("a definition"),
    ];
    admin.apply_all(&crds.map(|crd| serde_json::to_value(crd).expect("JSON")));
    for path in [&checks(), CONFIGS, OPERATORS] {
        admin.wait_until_served(path);
    }
}
