//! Pods, virtual machines and instances, as written by users.

use serde_json::{Value, json};
use stage::base64;

/// Kinds that tests write and read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Pod,
    Namespace,
    ConfigMap,
    Secret,
    Event,
    Machine,
    Instance,
    Webhooks,
}

impl Kind {
    fn group(self) -> &'static str {
        match self {
            Self::Pod | Self::Namespace | Self::ConfigMap | Self::Secret | Self::Event => "/api/v1",
            Self::Machine | Self::Instance => "/apis/kubevirt.io/v1",
            Self::Webhooks => "/apis/admissionregistration.k8s.io/v1",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Namespace => "namespaces",
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
            Self::Event => "events",
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
            Self::Webhooks => "mutatingwebhookconfigurations",
        }
    }

    /// API path of the objects; `namespace` is empty for the cluster, and for all namespaces.
    pub(crate) fn path(self, namespace: &str) -> String {
        let (group, plural) = (self.group(), self.plural());
        if namespace.is_empty() {
            format!("{group}/{plural}")
        } else {
            format!("{group}/namespaces/{namespace}/{plural}")
        }
    }

    /// API path of an object.
    pub(crate) fn path_of(self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(namespace))
    }
}

/// A pod with this `networks` annotation.
pub(crate) fn pod(name: &str, networks: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": "registry.example/none" }] },
    });
    if let Some(networks) = networks {
        pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": networks });
    }
    pod
}

/// An interface of a virtual machine, with its network.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    interface: Value,
    network: Value,
}

impl Nic {
    /// Masqueraded, on the pod network.
    pub(crate) fn masquerade(name: &str) -> Self {
        Self {
            interface: json!({ "name": name, "masquerade": {} }),
            network: json!({ "name": name, "pod": {} }),
        }
    }

    /// On a bridge, on a network of multus.
    pub(crate) fn multus(name: &str) -> Self {
        Self {
            interface: json!({ "name": name, "bridge": {} }),
            network: json!({ "name": name, "multus": { "networkName": name } }),
        }
    }

    /// Bridged, on the pod network: unsupported by the pool.
    pub(crate) fn unsupported(name: &str) -> Self {
        Self {
            interface: json!({ "name": name, "bridge": {} }),
            network: json!({ "name": name, "pod": {} }),
        }
    }

    /// With an explicit address.
    pub(crate) fn with(mut self, mac: &str) -> Self {
        self.interface["macAddress"] = json!(mac);
        self
    }
}

/// A virtual machine.
pub(crate) fn machine(name: &str, nics: &[Nic]) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": { "name": name },
        "spec": { "runStrategy": "Halted", "template": { "spec": specification(nics) } },
    })
}

/// An instance without a virtual machine.
pub(crate) fn instance(name: &str, nics: &[Nic]) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": { "name": name },
        "spec": specification(nics),
    })
}

fn specification(nics: &[Nic]) -> Value {
    let interfaces: Vec<_> = nics.iter().map(|nic| &nic.interface).collect();
    let networks: Vec<_> = nics.iter().map(|nic| &nic.network).collect();
    json!({ "domain": { "devices": { "interfaces": interfaces } }, "networks": networks })
}

/// Status of a running instance with these addresses, by interface.
pub(crate) fn running(addresses: &[(&str, &str)]) -> Value {
    let interfaces: Vec<_> = addresses
        .iter()
        .map(|(name, mac)| json!({ "name": name, "mac": mac }))
        .collect();
    json!({ "phase": "Running", "interfaces": interfaces })
}

/// The addresses of a virtual machine's interfaces; empty if missing.
pub(crate) fn addresses(machine: &Value) -> Vec<String> {
    let interfaces = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    let interfaces = interfaces.as_array().cloned().unwrap_or_default();
    let address = |interface: &Value| interface["macAddress"].as_str().unwrap_or_default().to_owned();
    interfaces.iter().map(address).collect()
}

/// The addresses in a pod's `networks` annotation; empty if missing.
pub(crate) fn pod_addresses(pod: &Value) -> Vec<String> {
    let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
        .as_str()
        .unwrap_or_default();
    let elements: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let address = |element: &Value| element["mac"].as_str().unwrap_or_default().to_owned();
    elements.iter().map(address).collect()
}

/// A definition of KubeVirt's group that accepts any content.
pub(crate) fn definition(kind: &str, short: &[&str]) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.kubevirt.io") },
        "spec": {
            "group": "kubevirt.io",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "singular": singular, "plural": plural,
                "shortNames": short,
            },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    })
}

/// The webhook configuration of the manifests (kubemacpool §14), for a manager that listens on this machine.
pub(crate) fn webhooks(port: u16, authority: &str) -> Value {
    let webhook = |name: &str, path: &str, rules: Value, opt: Value| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "sideEffects": "NoneOnDryRun",
            "failurePolicy": "Fail",
            "clientConfig": { "url": format!("https://127.0.0.1:{port}{path}"), "caBundle": base64(authority.as_bytes()) },
            "rules": rules,
            "namespaceSelector": { "matchExpressions": [
                { "key": "runlevel", "operator": "NotIn", "values": ["0", "1"] },
                { "key": "openshift.io/run-level", "operator": "NotIn", "values": ["0", "1"] },
                opt,
            ] },
        })
    };
    let (pods, machines) = (PODS_WEBHOOK, MACHINES_WEBHOOK);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [
            webhook(
                pods,
                "/mutate-pods",
                json!([{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] }]),
                json!({ "key": pods, "operator": "In", "values": ["allocate"] }),
            ),
            webhook(
                machines,
                "/mutate-virtualmachines",
                json!([{
                    "operations": ["CREATE", "UPDATE"], "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"],
                    "resources": ["virtualmachines"],
                }]),
                json!({ "key": machines, "operator": "NotIn", "values": ["ignore"] }),
            ),
        ],
    })
}

/// Name of the webhook configuration.
pub(crate) const CONFIGURATION: &str = "kubemacpool-mutator";
/// Name of the webhook for pods, and key of the label that opts a namespace in or out.
pub(crate) const PODS_WEBHOOK: &str = "mutatepods.kubemacpool.io";
/// Name of the webhook for virtual machines, and key of the label that opts a namespace in or out.
pub(crate) const MACHINES_WEBHOOK: &str = "mutatevirtualmachines.kubemacpool.io";
