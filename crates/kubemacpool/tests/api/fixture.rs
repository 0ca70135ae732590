//! A server with a namespace for the manager, how to look at it, and how to run something beside it.
//!
//! ```ignore
//! let stage = Stage::start();                      // with KubeVirt's kinds; Stage::without_kubevirt() has none
//! stage.namespace("vms", &[]);
//! let manager = stage.task(|client, shutdown| async move { … });   // under the manager's own account
//! stage.configure(manager_port);                   // the API server asks it from now on
//! let vm = stage.create(Kind::Machine, "vms", &machine("vm1", &[Nic::masquerade("default")]));
//! ```

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use axum::http::{Method, Request as HttpRequest, StatusCode, header};
use cluster::{ApiServer, Kubectl, wait};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_kit::shutdown::Shutdown;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::objects::{self, Kind};

/// How long anything may take on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);
/// Namespace of the manager.
pub(crate) const NAMESPACE: &str = "kubemacpool-system";
/// The account that the manager has in it.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:kubemacpool-system:kubemacpool-sa";
/// The manager's own pod, where a test makes one.
pub(crate) const POD: &str = "kubemacpool-mac-controller-manager-0";
/// Name of the ConfigMap with the range.
pub(crate) const RANGE: &str = "kubemacpool-mac-range-config";

/// Servers that run at the same time: each costs a good part of a processor and hundreds of megabytes.
const PLACES: usize = 2;
/// Namespaces of the server itself.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// An API server of a test's own, with everything that an installation of the manager brings but the manager.
pub(crate) struct Stage {
    /// Given back in the end, unless the test failed.
    server: Option<ApiServer>,
    /// Whether the next test may use the server, emptied.
    again: bool,
    client: Client,
    runtime: Runtime,
    certificate: Certificate,
    _place: Place,
}

/// What the API server answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) object: Value,
    /// Texts of the warnings.
    pub(crate) warnings: Vec<String>,
}

/// A request, from the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: String,
    pub(crate) uri: String,
}

impl Stage {
    /// A server that knows virtual machines.
    pub(crate) fn start() -> Self {
        let place = Place::take();
        let idle = idle().pop();
        let server = idle.unwrap_or_else(|| ApiServer::start().expect("an API server"));
        let stage = Self::on(server, true, place);
        stage.define_kubevirt();
        stage
    }

    /// A server that knows no virtual machines until [`Stage::define_kubevirt`].
    pub(crate) fn without_kubevirt() -> Self {
        let place = Place::take();
        Self::on(ApiServer::start().expect("an API server"), false, place)
    }

    fn on(server: ApiServer, again: bool, place: Place) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(client(server.kubeconfig(), None));
        let stage = Self {
            server: Some(server),
            again,
            client,
            runtime,
            certificate: Certificate::new(),
            _place: place,
        };
        stage.namespace(NAMESPACE, &[("pod-security.kubernetes.io/enforce", "restricted")]);
        stage.kubectl().apply(&role().to_string()).expect("the role");
        stage.set_range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");
        stage
    }

    /// Brings KubeVirt's kinds, and waits until they are served.
    pub(crate) fn define_kubevirt(&self) {
        let (machine, instance) = ("VirtualMachine", "VirtualMachineInstance");
        for definition in [
            objects::definition(machine, &["vm"]),
            objects::definition(instance, &["vmi"]),
        ] {
            self.apply(&definition);
        }
        for kind in [Kind::Machine, Kind::Instance] {
            wait::until("KubeVirt's kinds", DEADLINE, || {
                match self.send(Method::GET, &kind.path(""), None) {
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

    /// What the manager is known by, and the API server trusts: `tls.crt` and `tls.key` of `127.0.0.1` in a directory.
    pub(crate) fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Lets the API server ask whoever listens on this port of `127.0.0.1`: the shipped webhook configuration.
    pub(crate) fn configure(&self, port: u16) {
        self.configure_as(port, |_| ());
    }

    /// Like [`Stage::configure`], with the configuration changed.
    pub(crate) fn configure_as(&self, port: u16, change: impl FnOnce(&mut Value)) {
        let mut configuration = objects::webhooks(port, &self.certificate.authority);
        change(&mut configuration);
        self.apply(&configuration);
    }

    /// Waits until the API server asks for objects of a namespace: it learns of a configuration a moment later. Nothing is
    /// stored by that; `expected` is told from what the webhooks leave alone.
    pub(crate) fn wait_until_asked(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
        expected: impl Fn(&Answer) -> bool,
    ) {
        wait::until("the webhook to be asked", DEADLINE, || {
            let answer = self.create_dry(kind, namespace, object);
            if expected(&answer) {
                Ok(())
            } else {
                Err(format!("{answer:#?}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes the range that the manager watches.
    pub(crate) fn set_range(&self, start: &str, end: &str) {
        let data = json!({ "RANGE_START": start, "RANGE_END": end });
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": { "name": RANGE, "namespace": NAMESPACE },
        }));
    }

    /// Runs something in a thread and a runtime of its own, under the account of the manager, until it is dropped.
    pub(crate) fn task<F, W>(&self, work: W) -> Task
    where
        F: Future<Output = ()>,
        W: FnOnce(Client, Shutdown) -> F + Send + 'static,
    {
        let kubeconfig = self.kubeconfig().to_owned();
        let shutdown = Shutdown::new();
        let end = shutdown.clone();
        let thread = std::thread::spawn(move || {
            kube_kit::process::run(async {
                let client = client(&kubeconfig, Some(ACCOUNT)).await;
                work(client, end).await;
            })
            .expect("a runtime");
        });
        Task {
            shutdown,
            thread: Some(thread),
        }
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
            let warnings = head.headers.get_all(header::WARNING).iter();
            let warnings = warnings.filter_map(|warning| warning_text(warning.to_str().ok()?));
            let bytes = body.collect_bytes().await.expect("an answer");
            Answer {
                status: head.status,
                object: serde_json::from_slice(&bytes).unwrap_or_default(),
                warnings: warnings.collect(),
            }
        })
    }

    /// Creates an object.
    pub(crate) fn try_create(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        self.send(Method::POST, &kind.path(namespace), Some(object))
    }

    /// Creates an object, which nobody refuses, and returns it as stored.
    pub(crate) fn create(&self, kind: Kind, namespace: &str, object: &Value) -> Value {
        self.try_create(kind, namespace, object).accepted()
    }

    /// Creates an object, which is refused; the text is what the user reads.
    pub(crate) fn refused(&self, kind: Kind, namespace: &str, object: &Value) -> String {
        self.try_create(kind, namespace, object).refused()
    }

    /// What creating an object would lead to.
    pub(crate) fn create_dry(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        let path = format!("{}?dryRun=All", kind.path(namespace));
        self.send(Method::POST, &path, Some(object))
    }

    /// An object; `None` when there is none.
    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let answer = self.send(Method::GET, &format!("{}/{name}", kind.path(namespace)), None);
        (answer.status != StatusCode::NOT_FOUND).then(|| answer.accepted())
    }

    /// All objects of a kind in a namespace, or of all.
    pub(crate) fn list(&self, kind: Kind, namespace: &str) -> Vec<Value> {
        let list = self.send(Method::GET, &kind.path(namespace), None).accepted();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) -> Answer {
        let path = format!("{}/{name}", kind.path(namespace));
        self.send(Method::PATCH, &path, Some(patch))
    }

    /// Replaces an object.
    pub(crate) fn replace(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let path = format!("{}/{name}", kind.path(namespace));
        self.send(Method::PUT, &path, Some(object))
    }

    /// Writes the status of an object, as a kubelet or KubeVirt would.
    pub(crate) fn report(&self, kind: Kind, namespace: &str, name: &str, status: &Value) -> Value {
        let path = format!("{}/{name}/status", kind.path(namespace));
        let patch = json!({ "status": status });
        self.send(Method::PATCH, &path, Some(&patch)).accepted()
    }

    /// Deletes an object at once, without waiting for finalizers.
    pub(crate) fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let path = format!("{}/{name}?gracePeriodSeconds=0", kind.path(namespace));
        self.send(Method::DELETE, &path, None).accepted();
    }

    /// Creates a namespace with these labels.
    pub(crate) fn namespace(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: serde_json::Map<_, _> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
        });
        self.create(Kind::Namespace, "", &namespace);
    }

    /// Sets a label of a namespace, or removes it.
    pub(crate) fn label(&self, namespace: &str, key: &str, value: Option<&str>) {
        let patch = json!({ "metadata": { "labels": { key: value } } });
        self.patch(Kind::Namespace, "", namespace, &patch).accepted();
    }

    /// Creates a pod, and reports it as running; returned as stored.
    pub(crate) fn run_pod(&self, namespace: &str, pod: &Value) -> Value {
        let pod = self.create(Kind::Pod, namespace, pod);
        let name = pod["metadata"]["name"].as_str().expect("a name");
        self.report(Kind::Pod, namespace, name, &json!({ "phase": "Running" }))
    }

    /// Creates or changes an object as `kubectl apply` does.
    pub(crate) fn apply(&self, object: &Value) {
        self.kubectl()
            .apply(&object.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until an object satisfies a condition; `None` stands for one that does not exist.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        (kind, namespace, name): (Kind, &str, &str),
        mut condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        wait::until(what, DEADLINE, || {
            let object = self.get(kind, namespace, name);
            condition(object.as_ref()).ok_or_else(|| format!("{object:#?}\n{:#?}", self.events(namespace)))
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// `Type Reason kind/name xCOUNT: message` of the events of a namespace, oldest first.
    pub(crate) fn events(&self, namespace: &str) -> Vec<String> {
        let mut events = self.list(Kind::Event, namespace);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.sort_by_key(|event| text(&event["firstTimestamp"]));
        let line = |event: &Value| {
            let about = &event["involvedObject"];
            format!(
                "{} {} {}/{} x{}: {}",
                text(&event["type"]),
                text(&event["reason"]),
                text(&about["kind"]),
                text(&about["name"]),
                event["count"],
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

    /// Requests of the manager since the mark, watches apart.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Request> {
        let all = self.entries_since(mark).into_iter();
        let its = all.filter(|entry| entry["impersonatedUser"]["username"] == ACCOUNT);
        its.filter(|entry| entry["verb"] != "watch")
            .map(|entry| Request {
                verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
                uri: entry["requestURI"].as_str().unwrap_or_default().to_owned(),
            })
            .collect()
    }

    /// Entries of the audit log since the mark.
    pub(crate) fn entries_since(&self, mark: u64) -> Vec<Value> {
        let end = self.mark();
        let mut log = fs::File::open(self.server().audit_log()).expect("the audit log");
        log.seek(SeekFrom::Start(mark)).expect("the mark");
        let mut new = Vec::new();
        log.take(end.saturating_sub(mark))
            .read_to_end(&mut new)
            .expect("the audit log");
        let lines = String::from_utf8_lossy(&new).into_owned();
        let entries = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        entries.collect()
    }

    /// Removes all that a test may have made, so that the next one begins with an empty server.
    fn empty(&self) {
        for configuration in self.list(Kind::Webhooks, "") {
            self.delete(Kind::Webhooks, "", name_of(&configuration));
        }
        let namespaces = self.list(Kind::Namespace, "");
        let namespaces = namespaces.iter().map(name_of);
        for namespace in namespaces.filter(|name| !SYSTEM.contains(name)) {
            let contents = [
                Kind::Machine,
                Kind::Instance,
                Kind::Pod,
                Kind::ConfigMap,
                Kind::Secret,
                Kind::Event,
            ];
            for kind in contents {
                let path = format!("{}?gracePeriodSeconds=0", kind.path(namespace));
                self.send(Method::DELETE, &path, None).accepted();
                for held in self.list(kind, namespace) {
                    let free = json!({ "metadata": { "finalizers": null } });
                    self.patch(kind, namespace, name_of(&held), &free);
                }
            }
            if namespace == "default" {
                continue;
            }
            self.delete(Kind::Namespace, "", namespace);
            // Nobody else does: there is no controller of namespaces.
            let path = format!("{}/{namespace}/finalize", Kind::Namespace.path(""));
            let free = json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace }, "spec": { "finalizers": [] },
            });
            self.send(Method::PUT, &path, Some(&free)).accepted();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A server that a test failed on may be in any state.
        if !self.again || std::thread::panicking() {
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
    thread: Option<JoinHandle<()>>,
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

/// A certificate for `127.0.0.1` that signs itself.
pub(crate) struct Certificate {
    dir: TempDir,
    /// What to trust, as PEM.
    pub(crate) authority: String,
}

impl Certificate {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let certificate = params.expect("names").self_signed(&key).expect("a certificate");
        let dir = tempfile::tempdir().expect("a directory");
        let authority = certificate.pem();
        fs::write(dir.path().join("tls.crt"), &authority).expect("written");
        fs::write(dir.path().join("tls.key"), key.serialize_pem()).expect("written");
        Self { dir, authority }
    }

    /// The directory that holds `tls.crt` and `tls.key`.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
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

/// Servers that nobody uses, empty, with KubeVirt's kinds. The end of this process ends them.
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

/// The text of a warning: `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?;
    serde_json::from_str(quoted).ok()
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// The role of the manifests (kubemacpool §17), and nothing more.
fn role() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let name = "kubemacpool-manager-role";
    let hooks = "admissionregistration.k8s.io";
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
            "rules": [
                rule(hooks, &["validatingwebhookconfigurations"], &["list", "watch"]),
                rule(hooks, &["mutatingwebhookconfigurations"], &["get", "list", "update", "watch"]),
                rule("", &["secrets"], &["list", "watch", "create", "update"]),
                rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
                rule("", &["pods"], &["get", "list", "watch"]),
                rule("", &["namespaces"], &["get", "list", "watch"]),
                rule("kubevirt.io", &["virtualmachines"], &["get", "list", "watch", "update"]),
                rule("kubevirt.io", &["virtualmachineinstances"], &["get", "list", "watch"]),
                rule("", &["configmaps"], &["get", "delete", "list", "watch"]),
                rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
                rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
                rule("", &["events"], &["create", "patch"]),
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "kubemacpool-manager-rolebinding" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "kubemacpool-sa", "namespace": NAMESPACE }],
        },
    ] })
}
