//! A server with our kinds, nodes on it, and helpers to inspect it.
//!
//! ```ignore
//! let stage = Stage::start();
//! stage.node("node01", &[("zone", "a")]);          // Ready, with a handler's pod on it
//! let host = Host::new(host::two_nics());
//! let handler = stage.handler("node01", &host);     // until it is dropped; handler.kill() drops it in mid-air
//! stage.create(Kind::Policy, &json!({ … }));
//! stage.wait_for("the policy", (Kind::Policy, "p"), |policy| …);
//! ```

use std::{collections::BTreeMap, ops::Deref, sync::Arc, time::Duration};

use api::node_state;
use kube::Client;
use kube_kit::shutdown::Shutdown;
use serde_json::{Value, json};
use stage::{Admin, Server};
pub(crate) use stage::{Answer, DEADLINE, Request, Task};
use weft_nmstate::apply::{self, Pipeline};
use weft_nmstate::handler::{self, Settings, Shared};

use crate::host::Host;

/// Namespace of the handlers.
pub(crate) const NAMESPACE: &str = "nmstate";
/// The account that the handlers have in it.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:nmstate:nmstate-handler";
/// The account of the certificate manager.
pub(crate) const CERT_MANAGER: &str = "system:serviceaccount:nmstate:nmstate-cert-manager";
/// The account of the metrics.
pub(crate) const METRICS: &str = "system:serviceaccount:nmstate:nmstate-metrics";
/// The account of the webhook, which has no rights.
pub(crate) const WEBHOOK: &str = "system:serviceaccount:nmstate:nmstate-webhook";

/// Kinds that tests handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Node,
    /// Of the handlers' namespace.
    Pod,
    /// Of the handlers' namespace.
    ConfigMap,
    /// Of the namespace `default`.
    Event,
    /// Of the handlers' namespace.
    Secret,
    MutatingWebhooks,
    ValidatingWebhooks,
    State,
    Policy,
    Enactment,
    Definition,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    /// Role and binding in the namespace `default`.
    DefaultRole,
    DefaultRoleBinding,
}

impl Kind {
    /// Path of its objects.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Node => "/api/v1/nodes",
            Self::Pod => "/api/v1/namespaces/nmstate/pods",
            Self::ConfigMap => "/api/v1/namespaces/nmstate/configmaps",
            Self::Secret => "/api/v1/namespaces/nmstate/secrets",
            Self::MutatingWebhooks => "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            Self::ValidatingWebhooks => {
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
            }
            Self::Event => "/api/v1/namespaces/default/events",
            Self::State => "/apis/nmstate.io/v1beta1/nodenetworkstates",
            Self::Policy => "/apis/nmstate.io/v1/nodenetworkconfigurationpolicies",
            Self::Enactment => "/apis/nmstate.io/v1beta1/nodenetworkconfigurationenactments",
            Self::Definition => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            Self::ClusterRole => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            Self::ClusterRoleBinding => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            Self::Role => "/apis/rbac.authorization.k8s.io/v1/namespaces/nmstate/roles",
            Self::RoleBinding => "/apis/rbac.authorization.k8s.io/v1/namespaces/nmstate/rolebindings",
            Self::DefaultRole => "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
            Self::DefaultRoleBinding => "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        }
    }

    /// Path of one object.
    fn path_of(self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

/// An API server of a test's own, with everything that an installation brings but the programs.
pub(crate) struct Stage {
    server: Server,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Stage {
    /// A server with our kinds and no objects of them.
    pub(crate) fn start() -> Self {
        let server = Server::take(install);
        Self { server }
    }

    /// A server with nothing on it.
    pub(crate) fn bare() -> Self {
        let server = Server::bare();
        Self { server }
    }

    /// Runs something under the account of the handlers, until it is dropped.
    pub(crate) fn task<F: Future<Output = ()>>(
        &self,
        work: impl FnOnce(Client, Shutdown) -> F + Send + 'static,
    ) -> Task {
        self.task_as(ACCOUNT, work)
    }

    /// The handler of a node.
    pub(crate) fn handler(&self, node: &str, host: &Host) -> Task {
        self.handler_with(node, host, settings())
    }

    /// The handler of a node with settings of its own.
    pub(crate) fn handler_with(&self, node: &str, host: &Host, settings: Settings) -> Task {
        let (node, host) = (node.to_owned(), host.clone());
        self.task(move |client, shutdown| async move {
            let shared = shared(&node, &host, client, settings);
            let pipeline = pipeline(&shared);
            tokio::select! {
                () = handler::work(shared, pipeline) => {}
                () = shutdown.wait() => {}
            }
        })
    }

    /// Creates an object, and returns it as stored.
    pub(crate) fn create(&self, kind: Kind, object: &Value) -> Value {
        self.server.create(kind.path(), object)
    }

    /// A node that is ready, with a handler's pod on it.
    pub(crate) fn node(&self, name: &str, labels: &[(&str, &str)]) -> Value {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels },
        });
        let node = self.create(Kind::Node, &node);
        self.set_ready(name, true);
        self.create(
            Kind::Pod,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": format!("nmstate-handler-{name}"),
                    "labels": { "component": "kubernetes-nmstate-handler" },
                },
                "spec": {
                    "nodeName": name,
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{ "name": "handler", "image": "weft" }],
                },
            }),
        );
        node
    }

    /// Sets the Ready condition of a node.
    pub(crate) fn set_ready(&self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let conditions = json!([{ "type": "Ready", "status": status }]);
        self.report(Kind::Node, node, &json!({ "conditions": conditions }));
    }

    /// An object; `None` when there is none.
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        self.server.get(&kind.path_of(name))
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Value> {
        self.server.list(kind.path())
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Answer {
        self.server.patch(&kind.path_of(name), patch)
    }

    /// Merges into the status of an object.
    pub(crate) fn report(&self, kind: Kind, name: &str, status: &Value) -> Value {
        self.server.report(&kind.path_of(name), status)
    }

    /// Deletes an object at once.
    pub(crate) fn delete(&self, kind: Kind, name: &str) {
        self.server.delete(&kind.path_of(name));
    }

    /// Waits until an object satisfies a condition; `None` stands for one that does not exist.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        (kind, name): (Kind, &str),
        condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        self.server.wait_for(what, &kind.path_of(name), condition)
    }

    /// Waits until a condition of an object is True, and returns the object.
    pub(crate) fn wait_until_true(&self, kind: Kind, name: &str, condition: &str) -> Value {
        self.wait_for(&format!("{name} to be {condition}"), (kind, name), |object| {
            let object = object?;
            (status_of(object, condition) == "True").then(|| object.clone())
        })
    }

    /// Waits until there is a report of a node, and returns it.
    pub(crate) fn wait_until_reported(&self, node: &str) -> Value {
        self.wait_for(&format!("the report of {node}"), (Kind::State, node), |state| {
            let state = state?;
            state["status"]["currentState"].is_object().then(|| state.clone())
        })
    }

    /// Takes the right to list pods from the handlers, and returns the rules of their role before that.
    pub(crate) fn forbid_pods(&self) -> Value {
        let role = self.get(Kind::Role, "nmstate-handler").expect("the role");
        let mut rules = role["rules"].clone();
        let others = rules.as_array_mut().expect("rules");
        others.retain(|rule| rule["resources"] != json!(["pods"]));
        self.patch(Kind::Role, "nmstate-handler", &json!({ "rules": rules }))
            .accepted();
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": ACCOUNT,
                "resourceAttributes": { "namespace": NAMESPACE, "verb": "list", "resource": "pods" },
            },
        });
        let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        stage::until("the right to be gone", || {
            match &self.server.create(reviews, &review)["status"] {
                status if status["allowed"] == false => Ok(()),
                status => Err(status.to_string()),
            }
        });
        json!({ "rules": role["rules"] })
    }

    /// `Type Reason kind/name xCOUNT: message` of the events about objects in no namespace, oldest first.
    pub(crate) fn events(&self) -> Vec<String> {
        self.server.events("default")
    }

    /// Requests under the handlers' account since the mark, watches apart.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Request> {
        self.requests_of(ACCOUNT, mark)
    }

    /// Writes under the handlers' account since the mark.
    pub(crate) fn writes_since(&self, mark: u64) -> Vec<Request> {
        let all = self.requests_since(mark).into_iter();
        all.filter(|request| !["get", "list"].contains(&request.verb.as_str()))
            .collect()
    }
}

/// The objects of an installation except the programs.
fn install(admin: &Admin) {
    admin.namespace(NAMESPACE, &[]);
    for definition in definitions() {
        admin.create(Kind::Definition.path(), &definition);
    }
    for (kind, object) in rights() {
        admin.create(kind.path(), &object);
    }
    for kind in [Kind::State, Kind::Policy, Kind::Enactment] {
        admin.wait_until_served(kind.path());
    }
}

/// Settings of a handler that is in a hurry.
pub(crate) fn settings() -> Settings {
    Settings {
        namespace: NAMESPACE.to_owned(),
        initial_backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(200),
        slot_grace: Duration::from_secs(20),
        ..Settings::default()
    }
}

/// The common state of a handler's parts.
pub(crate) fn shared(node: &str, host: &Host, client: Client, settings: Settings) -> Shared {
    Shared {
        changed: Arc::clone(&host.changed),
        starts: Arc::clone(&host.starts),
        ..Shared::new(node, client, host.engine(), settings)
    }
}

/// The application of changes to a simulated host: there is nothing to probe.
pub(crate) fn pipeline(shared: &Shared) -> Arc<Pipeline> {
    let (engine, client) = (shared.engine.clone(), shared.client.clone());
    Arc::new(Pipeline::new(engine, client, shared.node.clone(), unprobed()))
}

/// Settings of changes without probes.
pub(crate) fn unprobed() -> apply::Settings {
    apply::Settings {
        probes: false,
        ..apply::Settings::default()
    }
}

/// Status of an object's condition; empty when it has none of this type.
pub(crate) fn status_of(object: &Value, condition: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|it| it["type"] == condition);
    found
        .and_then(|it| it["status"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// The kinds as they are installed.
fn definitions() -> Vec<Value> {
    let definitions = [
        node_state::network_state_crd(),
        node_state::policy_crd(),
        node_state::enactment_crd(),
    ];
    let values = definitions.map(|definition| serde_json::to_value(definition.expect("a definition")));
    values.map(|value| value.expect("an object")).into()
}

/// The roles of the programs' accounts (nmstate §12), and nothing more.
pub(crate) fn rights() -> Vec<(Kind, Value)> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let named = |group: &str, resource: &str, names: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs });
    let ours = "nmstate.io";
    let read: &[&str] = &["get", "list", "watch"];
    let keep: &[&str] = &["get", "list", "watch", "update"];
    let handler_everywhere = json!([
        rule(
            ours,
            &["nodenetworkstates"],
            &["get", "list", "watch", "create", "update"]
        ),
        rule(
            ours,
            &[
                "nodenetworkstates/status",
                "nodenetworkconfigurationpolicies/status",
                "nodenetworkconfigurationenactments/status",
            ],
            &["update"],
        ),
        rule(ours, &["nodenetworkconfigurationpolicies"], read),
        rule(
            ours,
            &["nodenetworkconfigurationenactments"],
            &["get", "list", "watch", "create", "delete"]
        ),
        rule("", &["nodes"], read),
        named("", "namespaces", &["default"], &["get"]),
    ]);
    let handler_inside = json!([
        rule("", &["pods"], &["list"]),
        named("", "configmaps", &["nmstate-config"], &["get"]),
    ]);
    let about_policies = json!([rule("", &["events"], &["create"])]);
    let certified = json!([named(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        &["nmstate"],
        keep
    )]);
    let secrets = json!([
        named("", "secrets", &["nmstate-ca", "nmstate-webhook"], keep),
        rule("", &["secrets"], &["create"]),
    ]);
    let metrics = json!([
        rule(
            ours,
            &[
                "nodenetworkstates",
                "nodenetworkconfigurationpolicies",
                "nodenetworkconfigurationenactments",
            ],
            &["list", "watch"],
        ),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]);
    let (handler, cert_manager) = ("nmstate-handler", "nmstate-cert-manager");
    [
        granted(
            (Kind::ClusterRole, Kind::ClusterRoleBinding),
            handler,
            handler,
            handler_everywhere,
        ),
        granted((Kind::Role, Kind::RoleBinding), handler, handler, handler_inside),
        granted(
            (Kind::DefaultRole, Kind::DefaultRoleBinding),
            "nmstate-handler-events",
            handler,
            about_policies,
        ),
        granted(
            (Kind::ClusterRole, Kind::ClusterRoleBinding),
            cert_manager,
            cert_manager,
            certified,
        ),
        granted(
            (Kind::Role, Kind::RoleBinding),
            cert_manager,
            cert_manager,
            secrets,
        ),
        granted(
            (Kind::ClusterRole, Kind::ClusterRoleBinding),
            "nmstate-metrics",
            "nmstate-metrics",
            metrics,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A role, and the binding of its name that gives it to an account of the programs' namespace.
pub(crate) fn granted(
    (role, binding): (Kind, Kind),
    name: &str,
    account: &str,
    rules: Value,
) -> [(Kind, Value); 2] {
    let group = "rbac.authorization.k8s.io";
    let (role_kind, binding_kind) = if role == Kind::ClusterRole {
        ("ClusterRole", "ClusterRoleBinding")
    } else {
        ("Role", "RoleBinding")
    };
    let object = |kind: &str| json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": { "name": name } });
    let (mut what, mut whose) = (object(role_kind), object(binding_kind));
    what["rules"] = rules;
    whose["roleRef"] = json!({ "apiGroup": group, "kind": role_kind, "name": name });
    whose["subjects"] = json!([{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }]);
    [(role, what), (binding, whose)]
}
