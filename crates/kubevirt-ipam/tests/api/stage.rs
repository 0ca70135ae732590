//! A server with KubeVirt's kinds, networks and claims, and the objects of the tests.

use std::{fs, ops::Deref, path::Path};

use kube::Client;
use kube_kit::shutdown::Shutdown;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
pub(crate) use stage::{Admin, Answer, Method, Task, until};
use stage::{Server, base64};
use tempfile::TempDir;

/// Namespace of the controller in the component's files.
pub(crate) const NAMESPACE: &str = "cluster-network-addons";
/// Account of the controller.
const ACCOUNT: &str = "system:serviceaccount:cluster-network-addons:kubevirt-ipam-controller-manager";
/// Namespace of virtual machines.
pub(crate) const NS: &str = "ns1";

const FINALIZER: &str = "kubevirt.io/persistent-ipam";
const KUBEVIRT: &str = "/apis/kubevirt.io/v1";
const CNI: &str = "/apis/k8s.cni.cncf.io";

pub(crate) struct Stage {
    server: Server,
    certificate: TempDir,
    authority: String,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

pub(crate) fn machines(namespace: &str) -> String {
    format!("{KUBEVIRT}/namespaces/{namespace}/virtualmachines")
}

pub(crate) fn instances(namespace: &str) -> String {
    format!("{KUBEVIRT}/namespaces/{namespace}/virtualmachineinstances")
}

pub(crate) fn networks(namespace: &str) -> String {
    format!("{CNI}/v1/namespaces/{namespace}/network-attachment-definitions")
}

pub(crate) fn claims(namespace: &str) -> String {
    format!("{CNI}/v1alpha1/namespaces/{namespace}/ipamclaims")
}

pub(crate) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

impl Stage {
    pub(crate) fn start() -> Self {
        let server = Server::take(install);
        server.namespace(NS, &[]);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let certificate = params.expect("names").self_signed(&key).expect("a certificate");
        let stage = Self {
            server,
            certificate: tempfile::tempdir().expect("a directory"),
            authority: certificate.pem(),
        };
        stage.write_certificate(&certificate.pem(), &key.serialize_pem());
        stage
    }

    pub(crate) fn write_certificate(&self, certificate: &str, key: &str) {
        let directory = self.certificate.path();
        fs::write(directory.join("tls.crt"), certificate).expect("written");
        fs::write(directory.join("tls.key"), key).expect("written");
    }

    /// The directory of the webhook's certificate.
    pub(crate) fn certificate(&self) -> &Path {
        self.certificate.path()
    }

    /// Runs a task under the account of the controller, in its namespace.
    pub(crate) fn task<F: Future<Output = ()>>(
        &self,
        work: impl FnOnce(Client, Shutdown) -> F + Send + 'static,
    ) -> Task {
        let kubeconfig = self.kubeconfig().to_owned();
        Task::start(async move |shutdown| {
            let mut config = stage::config(&kubeconfig, Some(ACCOUNT)).await;
            NAMESPACE.clone_into(&mut config.default_namespace);
            let client = Client::try_from(config).expect("a client");
            work(client, shutdown).await;
        })
    }

    /// Applies the shipped webhook configuration, with this port of `127.0.0.1`.
    pub(crate) fn configure(&self, port: u16) {
        let url = format!("https://127.0.0.1:{port}/mutate-v1-pod");
        self.apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": "kubevirt-ipam-controller-mutating-webhook-configuration" },
            "webhooks": [{
                "name": "ipam-claims.k8s.cni.cncf.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": { "url": url, "caBundle": base64(self.authority.as_bytes()) },
                "objectSelector": { "matchLabels": { "kubevirt.io": "virt-launcher" } },
                "matchConditions": [
                    {
                        "name": "runs-a-virtual-machine",
                        "expression":
                            "has(object.metadata.annotations) && 'kubevirt.io/domain' in object.metadata.annotations",
                    },
                    {
                        "name": "changes-annotations",
                        "expression":
                            "request.operation != 'UPDATE' || !has(object.metadata.annotations) || \
                             !has(oldObject.metadata.annotations) || \
                             object.metadata.annotations != oldObject.metadata.annotations",
                    },
                ],
                "rules": [{
                    "operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                }],
            }],
        }));
    }

    /// Creates the network of most tests, and the primary network of the namespace.
    pub(crate) fn both_networks(&self) {
        self.network("supadupanet", r#"{"name":"goodnet","allowPersistentIPs":true}"#);
        self.primary_network();
    }

    pub(crate) fn primary_network(&self) {
        self.network(
            "udn",
            r#"{"name":"primarynet","role":"primary","allowPersistentIPs":true,"subnets":"192.168.0.0/16,fd12:1234::123/64"}"#,
        );
    }

    pub(crate) fn network(&self, name: &str, config: &str) {
        self.apply(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NS }, "spec": { "config": config },
        }));
    }

    pub(crate) fn machine(&self, name: &str) -> Value {
        self.create(&machines(NS), &machine(name))
    }

    pub(crate) fn instance(&self, name: &str) -> Value {
        self.create(&instances(NS), &instance(name))
    }

    /// Creates a virtual machine and the instance that it controls.
    pub(crate) fn running(&self, name: &str) -> (Value, Value) {
        let vm = self.machine(name);
        let mut vmi = instance(name);
        vmi["metadata"]["ownerReferences"] = json!([owner(&vm)]);
        (vm, self.create(&instances(NS), &vmi))
    }

    /// Adds a finalizer to an object, and deletes the object.
    pub(crate) fn held(&self, path: &str, name: &str) {
        let path = format!("{path}/{name}");
        self.patch(&path, &json!({ "metadata": { "finalizers": ["test/hold"] } }))
            .accepted();
        self.delete(&path);
    }

    pub(crate) fn let_go(&self, path: &str, name: &str) {
        let free = json!({ "metadata": { "finalizers": null } });
        self.patch(&format!("{path}/{name}"), &free).accepted();
    }

    pub(crate) fn claim(&self, name: &str) -> Option<Value> {
        self.get(&format!("{}/{name}", claims(NS)))
    }

    pub(crate) fn wait_for_claim<T>(
        &self,
        name: &str,
        condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        self.wait_for(name, &format!("{}/{name}", claims(NS)), condition)
    }

    /// Waits until a claim exists with the finalizer, or without it.
    pub(crate) fn wait_until_held(&self, name: &str, held: bool) -> Value {
        self.wait_for_claim(name, |claim| {
            claim.filter(|claim| is_held(claim) == held).cloned()
        })
    }

    /// Names of all claims of the namespace.
    pub(crate) fn claim_names(&self) -> Vec<String> {
        let claims = self.list(&claims(NS));
        let name = |claim: &Value| claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        claims.iter().map(name).collect()
    }

    /// Waits for an event on an instance.
    pub(crate) fn wait_for_event(&self, text: &str) {
        until(text, || {
            let events = self.events(NS);
            if events.iter().any(|event| event.contains(text)) {
                Ok(())
            } else {
                Err(format!("{events:#?}"))
            }
        });
    }

    /// Creates a claim in the controller's form, with these changes.
    pub(crate) fn existing_claim(&self, name: &str, machine: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut claim = json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": {
                "name": name, "namespace": NS, "labels": { "kubevirt.io/vm": machine }, "finalizers": [FINALIZER],
            },
            "spec": { "network": "goodnet", "interface": "" },
        });
        change(&mut claim);
        self.create(&claims(NS), &claim)
    }
}

pub(crate) fn is_held(claim: &Value) -> bool {
    let finalizers = claim["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.iter().any(|it| it == FINALIZER))
}

/// An owner reference to a virtual machine or an instance as the controller.
pub(crate) fn owner(object: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    })
}

pub(crate) fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": name },
        "spec": { "template": { "spec": specification() } },
    })
}

pub(crate) fn instance(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": name },
        "spec": specification(),
    })
}

fn specification() -> Value {
    json!({
        "networks": [
            { "name": "podnet", "pod": {} },
            { "name": "random_net", "multus": { "networkName": "ns1/supadupanet" } },
        ],
        "domain": { "devices": { "interfaces": [{ "name": "podnet" }, { "name": "random_net" }] } },
    })
}

/// A launcher pod.
pub(crate) fn launcher(name: &str, instance: &str, networks: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "labels": { "kubevirt.io": "virt-launcher" },
            "annotations": { "kubevirt.io/domain": instance, "k8s.v1.cni.cncf.io/networks": networks },
        },
        "spec": { "containers": [{ "name": "main", "image": "registry.example/none" }] },
    })
}

fn install(admin: &Admin) {
    let network = api::net_attach_def::crd().expect("a definition");
    let claim = api::ipam_claim::crd().expect("a definition");
    admin.apply_all(&[
        definition("VirtualMachine", "vm"),
        definition("VirtualMachineInstance", "vmi"),
        serde_json::to_value(network).expect("JSON"),
        serde_json::to_value(claim).expect("JSON"),
    ]);
    for path in [
        machines("default"),
        instances("default"),
        networks("default"),
        claims("default"),
    ] {
        admin.wait_until_served(&path);
    }
}

/// Creates the account and its native roles, as deployed by the operator.
fn grant(admin: &Admin) {
    let files =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../operator/src/components/kubevirt_ipam_controller");
    for file in ["controller.yaml", "native-role.yaml"] {
        admin.kubectl().apply_file(&files.join(file)).expect("applied");
    }
    let may = |right: &[&str]| {
        let question = ["auth", "can-i", "--as", ACCOUNT, "--namespace", NAMESPACE];
        admin.kubectl().run([&question[..], right].concat()).is_ok()
    };
    until("the shipped rights", || {
        let shipped = may(&["delete", "ipamclaims.k8s.cni.cncf.io"])
            && may(&["update", "leases.coordination.k8s.io/71d89df3"])
            && !may(&["list", "pods"]);
        if shipped { Ok(()) } else { Err("not yet") }
    });
}

fn definition(kind: &str, short: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.kubevirt.io") },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "singular": singular, "plural": plural,
                "shortNames": [short],
            },
            // As in KubeVirt, the instance has no subresource for its status.
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    })
}

impl Stage {
    /// Grants the controller its rights.
    pub(crate) fn granted(self) -> Self {
        grant(&self.server);
        self
    }

    /// Fails if the API server refused a request of the controller since the mark.
    #[track_caller]
    pub(crate) fn assert_never_refused(&self, mark: u64) {
        let refused: Vec<_> = self
            .entries_since(mark)
            .into_iter()
            .filter(|entry| entry["impersonatedUser"]["username"] == ACCOUNT)
            .filter(|entry| entry["responseStatus"]["code"] == 403)
            .collect();
        assert!(refused.is_empty(), "{refused:#?}");
    }

    /// Requests of the controller since the mark, except watches.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<stage::Request> {
        self.requests_of(ACCOUNT, mark)
    }

    pub(crate) fn try_create(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::POST, path, Some(object))
    }
}
