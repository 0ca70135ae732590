//! An API server with a namespace for the manager, and helpers for its objects.
//!
//! ```ignore
//! let stage = Stage::start();                      // with KubeVirt's kinds; Stage::without_kubevirt() has none
//! stage.namespace("vms", &[]);
//! let manager = stage.task(|client, shutdown| async move { … });   // under the manager's own account
//! stage.configure(manager_port);                   // the API server calls it from now on
//! let vm = stage.create(Kind::Machine, "vms", &machine("vm1", &[Nic::masquerade("default")]));
//! ```

use std::{fs, ops::Deref, path::Path};

use axum::http::Method;
use kube::Client;
use kube_kit::shutdown::Shutdown;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use stage::{Admin, Server, until};
pub(crate) use stage::{Answer, DEADLINE, Request, Task};
use tempfile::TempDir;

use crate::objects::{self, Kind};

/// Namespace of the manager.
pub(crate) const NAMESPACE: &str = "kubemacpool-system";
/// The manager's account in it.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:kubemacpool-system:kubemacpool-sa";
/// The manager's own pod, if a test creates one.
pub(crate) const POD: &str = "kubemacpool-mac-controller-manager-0";
/// Name of the ConfigMap with the range.
pub(crate) const RANGE: &str = "kubemacpool-mac-range-config";

/// A test's own API server with everything of an installation except the manager.
pub(crate) struct Stage {
    server: Server,
    certificate: Certificate,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Stage {
    /// A server with KubeVirt's kinds.
    pub(crate) fn start() -> Self {
        Self::on(Server::take(define_kubevirt))
    }

    /// A server without KubeVirt's kinds until [`Stage::define_kubevirt`].
    pub(crate) fn without_kubevirt() -> Self {
        Self::on(Server::bare())
    }

    fn on(server: Server) -> Self {
        let certificate = Certificate::new();
        let stage = Self { server, certificate };
        stage.namespace(NAMESPACE, &[("pod-security.kubernetes.io/enforce", "restricted")]);
        stage.apply(&role());
        stage.set_range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");
        stage
    }

    /// Defines KubeVirt's kinds, and waits until they are served.
    pub(crate) fn define_kubevirt(&self) {
        define_kubevirt(self);
    }

    /// Applies the shipped manifest, whose roles replace the stage's, and waits until they are effective.
    pub(crate) fn install_shipped(&self) {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubemacpool.yaml");
        self.kubectl().apply_file(&manifest).expect("applied");
        let may = |right: &[&str]| {
            let question = ["auth", "can-i", "--as", ACCOUNT, "--namespace", NAMESPACE];
            self.kubectl().run([&question[..], right].concat()).is_ok()
        };
        until("the shipped rights", || {
            let shipped = may(&["update", "secrets/kubemacpool-service"])
                && may(&["watch", "configmaps/kubemacpool-mac-range-config"])
                && may(&["watch", "pods"])
                && !may(&["list", "secrets"]);
            if shipped { Ok(()) } else { Err("not yet") }
        });
    }

    /// The manager's certificate, trusted by the API server: `tls.crt` and `tls.key` for `127.0.0.1` in a directory.
    pub(crate) fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Applies the shipped webhook configuration, with a port of `127.0.0.1`.
    pub(crate) fn configure(&self, port: u16) {
        self.configure_as(port, |_| ());
    }

    /// Like [`Stage::configure`], with the configuration changed.
    pub(crate) fn configure_as(&self, port: u16, change: impl FnOnce(&mut Value)) {
        let mut configuration = objects::webhooks(port, &self.certificate.authority);
        change(&mut configuration);
        self.apply(&configuration);
    }

    /// Waits until the API server calls the webhooks for objects of a namespace: it observes a configuration late. Uses dry
    /// runs; `expected` distinguishes the response from an unchanged object.
    pub(crate) fn wait_until_called(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
        expected: impl Fn(&Answer) -> bool,
    ) {
        until("the webhook to be called", || {
            let answer = self.create_dry(kind, namespace, object);
            if expected(&answer) {
                Ok(())
            } else {
                Err(format!("{answer:#?}"))
            }
        });
    }

    /// Writes the range that the manager watches.
    pub(crate) fn set_range(&self, start: &str, end: &str) {
        let data = json!({ "RANGE_START": start, "RANGE_END": end });
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": { "name": RANGE, "namespace": NAMESPACE },
        }));
    }

    /// Runs something under the account of the manager, until it is dropped.
    pub(crate) fn task<F: Future<Output = ()>>(
        &self,
        work: impl FnOnce(Client, Shutdown) -> F + Send + 'static,
    ) -> Task {
        self.task_as(ACCOUNT, work)
    }

    /// Creates an object.
    pub(crate) fn try_create(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        self.send(Method::POST, &kind.path(namespace), Some(object))
    }

    /// Creates an object, and returns it as stored.
    pub(crate) fn create(&self, kind: Kind, namespace: &str, object: &Value) -> Value {
        self.try_create(kind, namespace, object).accepted()
    }

    /// Creates an object that is refused; returns the error for the user.
    pub(crate) fn refused(&self, kind: Kind, namespace: &str, object: &Value) -> String {
        self.try_create(kind, namespace, object).refused()
    }

    /// The result of a dry run of a creation.
    pub(crate) fn create_dry(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        let path = format!("{}?dryRun=All", kind.path(namespace));
        self.send(Method::POST, &path, Some(object))
    }

    /// An object, if it exists.
    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.server.get(&kind.path_of(namespace, name))
    }

    /// All objects of a kind in a namespace, or of all.
    pub(crate) fn list(&self, kind: Kind, namespace: &str) -> Vec<Value> {
        self.server.list(&kind.path(namespace))
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) -> Answer {
        self.server.patch(&kind.path_of(namespace, name), patch)
    }

    /// Replaces an object.
    pub(crate) fn replace(&self, kind: Kind, namespace: &str, object: &Value) -> Answer {
        let name = object["metadata"]["name"].as_str().expect("a name");
        self.send(Method::PUT, &kind.path_of(namespace, name), Some(object))
    }

    /// Writes the status of an object, as a kubelet or KubeVirt would.
    pub(crate) fn report(&self, kind: Kind, namespace: &str, name: &str, status: &Value) -> Value {
        self.server.report(&kind.path_of(namespace, name), status)
    }

    /// Deletes an object at once, without waiting for finalizers.
    pub(crate) fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        self.server.delete(&kind.path_of(namespace, name));
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

    /// Waits until an object satisfies a condition; `None` stands for one that does not exist.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        (kind, namespace, name): (Kind, &str, &str),
        condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        self.server
            .wait_for(what, &kind.path_of(namespace, name), condition)
    }

    /// Requests of the manager since the mark, watches apart.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Request> {
        self.requests_of(ACCOUNT, mark)
    }
}

/// Defines KubeVirt's kinds, and waits until they are served.
fn define_kubevirt(admin: &Admin) {
    for (kind, name, short) in [
        (Kind::Machine, "VirtualMachine", "vm"),
        (Kind::Instance, "VirtualMachineInstance", "vmi"),
    ] {
        admin.apply(&objects::definition(name, &[short]));
        admin.wait_until_served(&kind.path(""));
    }
}

/// A self-signed certificate for `127.0.0.1`.
pub(crate) struct Certificate {
    dir: TempDir,
    /// The certificate as PEM.
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
