//! A server with our kinds, nodes on it, and how to look at it.
//!
//! ```ignore
//! let stage = Stage::start();
//! stage.node("node01", &[("zone", "a")]);          // Ready, with a handler's pod on it
//! let host = Host::new(host::two_nics());
//! let handler = stage.handler("node01", &host);     // until it is dropped; handler.kill() drops it in mid-air
//! stage.create(Kind::Policy, &json!({ … }));
//! stage.wait_for("the policy", (Kind::Policy, "p"), |policy| …);
//! ```

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use api::node_state;
use axum::http::{Method, Request as HttpRequest, StatusCode, header};
use cluster::{ApiServer, Kubectl, wait};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_kit::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
};
use weft_nmstate::apply::{self, Pipeline};
use weft_nmstate::handler::{self, Settings, Shared};

use crate::host::Host;

/// How long anything may take on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);
/// Namespace of the handlers.
pub(crate) const NAMESPACE: &str = "nmstate";
/// The account that the handlers have in it.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:nmstate:nmstate-handler";

/// Servers that run at the same time: each costs a good part of a processor and hundreds of megabytes.
const PLACES: usize = 2;

/// Kinds that tests handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Node,
    Namespace,
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
    /// Where its objects are.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Node => "/api/v1/nodes",
            Self::Namespace => "/api/v1/namespaces",
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
}

/// An API server of a test's own, with everything that an installation brings but the programs.
pub(crate) struct Stage {
    /// Given back in the end, unless the test failed.
    server: Option<ApiServer>,
    /// Whether the next test may use the server, emptied.
    again: bool,
    client: Client,
    runtime: Runtime,
    _place: Place,
}

/// What the API server answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) object: Value,
}

/// A request, from the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: String,
    pub(crate) uri: String,
    pub(crate) code: u64,
}

impl Stage {
    /// A server with our kinds and no objects of them.
    pub(crate) fn start() -> Self {
        let place = Place::take();
        let idle = idle().pop();
        let fresh = idle.is_none();
        let server = idle.unwrap_or_else(|| ApiServer::start().expect("an API server"));
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(client(server.kubeconfig(), None));
        let stage = Self {
            server: Some(server),
            again: true,
            client,
            runtime,
            _place: place,
        };
        if fresh {
            stage.install();
        }
        stage
    }

    /// A server with nothing on it, that no other test gets.
    pub(crate) fn bare() -> Self {
        let place = Place::take();
        let server = ApiServer::start().expect("an API server");
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(client(server.kubeconfig(), None));
        Self {
            server: Some(server),
            again: false,
            client,
            runtime,
            _place: place,
        }
    }

    fn install(&self) {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        self.create(Kind::Namespace, &namespace);
        for definition in definitions() {
            self.create(Kind::Definition, &definition);
        }
        for (kind, object) in rights() {
            self.create(kind, &object);
        }
        for kind in [Kind::State, Kind::Policy, Kind::Enactment] {
            wait::until("our kinds", DEADLINE, || {
                match self.send(Method::GET, kind.path(), None) {
                    answer if answer.status == StatusCode::OK => Ok(()),
                    answer => Err(format!("{answer:#?}")),
                }
            })
            .unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn server(&self) -> &ApiServer {
        self.server.as_ref().expect("it runs until the stage is dropped")
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.server().kubectl()
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.server().kubeconfig()
    }

    /// Runs something in a thread and a runtime of its own, under the account of the handlers, until it is dropped.
    pub(crate) fn task<F, W>(&self, work: W) -> Task
    where
        F: Future<Output = ()>,
        W: FnOnce(Client, Shutdown) -> F + Send + 'static,
    {
        self.task_as(ACCOUNT, work)
    }

    /// Like [`Stage::task`], under another account.
    pub(crate) fn task_as<F, W>(&self, account: &'static str, work: W) -> Task
    where
        F: Future<Output = ()>,
        W: FnOnce(Client, Shutdown) -> F + Send + 'static,
    {
        let kubeconfig = self.kubeconfig().to_owned();
        let (shutdown, killed) = (Shutdown::new(), Arc::new(Notify::new()));
        let (end, kill) = (shutdown.clone(), Arc::clone(&killed));
        let thread = std::thread::spawn(move || {
            kube_kit::process::run(async {
                let work = async {
                    let client = client(&kubeconfig, Some(account)).await;
                    work(client, end).await;
                };
                tokio::select! {
                    () = work => {}
                    () = kill.notified() => {}
                }
            })
            .expect("a runtime");
        });
        Task {
            shutdown,
            killed,
            thread: Some(thread),
        }
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

    /// Sends a request as the administrator.
    pub(crate) fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = HttpRequest::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from(body))
            .expect("a request");
        self.runtime.block_on(async {
            let response = self.client.send(request).await.expect("an answer");
            let (head, body) = response.into_parts();
            let bytes = body.collect_bytes().await.expect("an answer");
            Answer {
                status: head.status,
                object: serde_json::from_slice(&bytes).unwrap_or_default(),
            }
        })
    }

    /// Creates an object, which nobody refuses, and returns it as stored.
    pub(crate) fn create(&self, kind: Kind, object: &Value) -> Value {
        self.send(Method::POST, kind.path(), Some(object)).accepted()
    }

    /// A node that is ready, with a handler's pod on it.
    pub(crate) fn node(&self, name: &str, labels: &[(&str, &str)]) -> Value {
        let labels: serde_json::Map<_, _> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
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

    /// Says of a node whether it is ready.
    pub(crate) fn set_ready(&self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let conditions = json!([{ "type": "Ready", "status": status }]);
        self.report(Kind::Node, node, &json!({ "conditions": conditions }));
    }

    /// An object; `None` when there is none.
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let answer = self.send(Method::GET, &format!("{}/{name}", kind.path()), None);
        (answer.status != StatusCode::NOT_FOUND).then(|| answer.accepted())
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Value> {
        let list = self.send(Method::GET, kind.path(), None).accepted();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Answer {
        let path = format!("{}/{name}", kind.path());
        self.send(Method::PATCH, &path, Some(patch))
    }

    /// Merges into the status of an object.
    pub(crate) fn report(&self, kind: Kind, name: &str, status: &Value) -> Value {
        let path = format!("{}/{name}/status", kind.path());
        let patch = json!({ "status": status });
        self.send(Method::PATCH, &path, Some(&patch)).accepted()
    }

    /// Deletes an object at once.
    pub(crate) fn delete(&self, kind: Kind, name: &str) {
        let path = format!("{}/{name}?gracePeriodSeconds=0", kind.path());
        self.send(Method::DELETE, &path, None).accepted();
    }

    /// Waits until an object satisfies a condition; `None` stands for one that does not exist.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        (kind, name): (Kind, &str),
        mut condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        wait::until(what, DEADLINE, || {
            let object = self.get(kind, name);
            condition(object.as_ref()).ok_or_else(|| format!("{object:#?}\n{:#?}", self.events()))
        })
        .unwrap_or_else(|error| panic!("{error}"))
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

    /// `Type Reason kind/name: message` of the events, oldest first.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut events = self.list(Kind::Event);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.sort_by_key(|event| text(&event["metadata"]["creationTimestamp"]));
        let line = |event: &Value| {
            let about = if event["involvedObject"]["name"].is_string() {
                &event["involvedObject"]
            } else {
                &event["regarding"]
            };
            format!(
                "{} {} {}/{}: {}",
                text(&event["type"]),
                text(&event["reason"]),
                text(&about["kind"]),
                text(&about["name"]),
                text(&event["message"])
            )
        };
        events.iter().map(line).collect()
    }

    /// Where the audit log ends now: behind all requests that are answered.
    pub(crate) fn mark(&self) -> u64 {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // An entry is written a moment after its answer, but in order.
        let unique = format!("/version?mark={}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.send(Method::GET, &unique, None);
        wait::until("the audit log", DEADLINE, || {
            let log = fs::read_to_string(self.server().audit_log()).map_err(|error| error.to_string())?;
            match log
                .rfind(&format!("\"{unique}\""))
                .and_then(|at| Some(at + log[at..].find('\n')?))
            {
                Some(end) => Ok(u64::try_from(end).unwrap_or_default() + 1),
                None => Err(format!("no {unique} in it")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Requests under the handlers' account since the mark, watches apart.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Request> {
        self.requests_of(ACCOUNT, mark)
    }

    /// Requests under an account since the mark, watches apart.
    pub(crate) fn requests_of(&self, account: &str, mark: u64) -> Vec<Request> {
        let end = self.mark();
        let mut log = fs::File::open(self.server().audit_log()).expect("the audit log");
        log.seek(SeekFrom::Start(mark)).expect("the mark");
        let mut new = Vec::new();
        log.take(end.saturating_sub(mark))
            .read_to_end(&mut new)
            .expect("the audit log");
        let lines = String::from_utf8_lossy(&new).into_owned();
        let entries = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let its = entries.filter(|entry| entry["impersonatedUser"]["username"] == account);
        its.filter(|entry| entry["verb"] != "watch")
            .map(|entry| Request {
                verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
                uri: entry["requestURI"].as_str().unwrap_or_default().to_owned(),
                code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
            })
            .collect()
    }

    /// Writes under the handlers' account since the mark.
    pub(crate) fn writes_since(&self, mark: u64) -> Vec<Request> {
        let all = self.requests_since(mark).into_iter();
        all.filter(|request| !["get", "list"].contains(&request.verb.as_str()))
            .collect()
    }

    /// Removes all that a test may have made, so that the next one begins with an empty server.
    fn empty(&self) {
        for kind in [
            Kind::MutatingWebhooks,
            Kind::ValidatingWebhooks,
            Kind::Secret,
            Kind::Policy,
            Kind::Enactment,
            Kind::State,
            Kind::Pod,
            Kind::ConfigMap,
            Kind::Node,
            Kind::Event,
        ] {
            let path = format!("{}?gracePeriodSeconds=0", kind.path());
            self.send(Method::DELETE, &path, None).accepted();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A server that a test failed on may be in any state.
        if std::thread::panicking() || !self.again {
            return;
        }
        self.empty();
        idle().extend(self.server.take());
    }
}

impl Answer {
    /// The object of an answer that is no refusal.
    pub(crate) fn accepted(self) -> Value {
        assert!(self.status.is_success(), "{}: {:#}", self.status, self.object);
        self.object
    }

    /// The text of a refusal.
    pub(crate) fn refused(self) -> String {
        assert!(!self.status.is_success(), "{}: {:#}", self.status, self.object);
        self.object["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// Something that runs beside the test.
pub(crate) struct Task {
    shutdown: Shutdown,
    killed: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    /// Ends it wherever it is, as SIGKILL would: nothing is finished, nothing is put in order.
    pub(crate) fn kill(self) {
        self.killed.notify_one();
    }

    /// Whether it ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("it ends without a panic");
            }
        }
    }
}

/// Settings of a handler that is in a hurry.
pub(crate) fn settings() -> Settings {
    Settings {
        namespace: NAMESPACE.to_owned(),
        initial_backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(200),
        ..Settings::default()
    }
}

/// What the parts of a handler share.
pub(crate) fn shared(node: &str, host: &Host, client: Client, settings: Settings) -> Shared {
    Shared {
        changed: Arc::clone(&host.changed),
        ..Shared::new(node, client, host.engine(), settings)
    }
}

/// The way to change a simulated host: there is nothing to probe.
pub(crate) fn pipeline(shared: &Shared) -> Arc<Pipeline> {
    let settings = apply::Settings {
        probes: false,
        ..apply::Settings::default()
    };
    let (engine, client) = (shared.engine.clone(), shared.client.clone());
    Arc::new(Pipeline::new(engine, client, shared.node.clone(), settings))
}

/// How a condition of an object is; empty when it has none of this type.
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

/// The right to run a server.
struct Place;

static TAKEN: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

impl Place {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= PLACES;
        let mut taken = LEFT
            .wait_while(taken, full)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LEFT.notify_one();
    }
}

/// Servers that nobody uses, empty, with our kinds. The end of this process ends them.
fn idle() -> std::sync::MutexGuard<'static, Vec<ApiServer>> {
    static IDLE: Mutex<Vec<ApiServer>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client of the administrator, or of somebody whom he speaks for.
async fn client(kubeconfig: &Path, account: Option<&str>) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    config.auth_info.impersonate = account.map(str::to_owned);
    Client::try_from(config).expect("a client")
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

/// The roles of the handlers' account (nmstate §12), and nothing more.
pub(crate) fn rights() -> Vec<(Kind, Value)> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let ours = "nmstate.io";
    let read: &[&str] = &["get", "list", "watch"];
    let name = "nmstate-handler";
    let events = "nmstate-handler-events";
    let object = |kind: &str, name: &str, rest: Value| {
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name },
        });
        for (key, value) in rest.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let bound = |role: &str, name: &str| {
        json!({
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "nmstate-handler", "namespace": NAMESPACE }],
        })
    };
    let namespaces = json!({
        "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["default"], "verbs": ["get"],
    });
    let everywhere = json!({ "rules": [
        rule("admissionregistration.k8s.io", &["mutatingwebhookconfigurations"], &["get", "list", "watch", "update"]),
        rule("admissionregistration.k8s.io", &["validatingwebhookconfigurations"], read),
        rule(ours, &["nodenetworkstates"], &["get", "list", "watch", "create", "update"]),
        rule(
            ours,
            &[
                "nodenetworkstates/status",
                "nodenetworkconfigurationpolicies/status",
                "nodenetworkconfigurationenactments/status",
            ],
            &["get", "update"],
        ),
        rule(ours, &["nodenetworkconfigurationpolicies"], read),
        rule(ours, &["nodenetworkconfigurationenactments"], &["get", "list", "watch", "create", "delete"]),
        rule("", &["nodes"], read),
        namespaces,
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ] });
    let inside = json!({ "rules": [
        rule("", &["services", "endpoints", "persistentvolumeclaims", "events", "configmaps", "pods"], read),
        rule("", &["secrets"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        rule("", &["events"], &["get", "list", "create", "update"]),
        rule("apps", &["deployments", "daemonsets", "replicasets", "statefulsets"], read),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
    ] });
    let about_policies = json!({ "rules": [rule("", &["events"], &["create"])] });
    vec![
        (Kind::ClusterRole, object("ClusterRole", name, everywhere)),
        (
            Kind::ClusterRoleBinding,
            object("ClusterRoleBinding", name, bound("ClusterRole", name)),
        ),
        (Kind::Role, object("Role", name, inside)),
        (
            Kind::RoleBinding,
            object("RoleBinding", name, bound("Role", name)),
        ),
        (Kind::DefaultRole, object("Role", events, about_policies)),
        (
            Kind::DefaultRoleBinding,
            object("RoleBinding", events, bound("Role", events)),
        ),
    ]
}
