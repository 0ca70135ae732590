//! Virtual machines, pods, and their reviews, as sent by users of KubeVirt and the API server.

use review_bench::api::{self, definition, namespace};
use review_bench::load::Reviews;
use review_bench::template::Template;
use serde_json::{Value, json};

/// Namespace of all measured objects.
pub(crate) const NAMESPACE: &str = "bench";

/// Kinds that must be served.
pub(crate) const SERVED: [&str; 2] = [
    "/apis/kubevirt.io/v1/virtualmachines",
    "/apis/kubevirt.io/v1/virtualmachineinstances",
];

/// The kinds of reviews.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Review {
    PodCreate,
    MachineCreate,
    MachineUpdate,
}

impl Review {
    pub(crate) const ALL: [Self; 3] = [Self::PodCreate, Self::MachineCreate, Self::MachineUpdate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PodCreate => "pod create",
            Self::MachineCreate => "VM create",
            Self::MachineUpdate => "VM update",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::PodCreate => "/mutate-pods?timeout=10s",
            Self::MachineCreate | Self::MachineUpdate => "/mutate-virtualmachines?timeout=10s",
        }
    }

    /// Returns reviews that differ in the name of their object. Each is admitted with a patch.
    pub(crate) fn reviews(self) -> Reviews {
        Reviews {
            name: self.name(),
            path: self.path(),
            template: Template::new(self.body(NAME), NAME, u32::MAX),
            expected: &[r#""allowed":true"#, r#""patch":"#],
        }
    }

    fn body(self, name: &str) -> Vec<u8> {
        let (object, old) = match self {
            Self::PodCreate => (pod(name), Value::Null),
            Self::MachineCreate => (machine(name, None), Value::Null),
            Self::MachineUpdate => {
                let old = machine(name, Some(1));
                let mut object = old.clone();
                // Another network: existing addresses are kept, and one is new.
                let spec = &mut object["spec"]["template"]["spec"];
                push(
                    &mut spec["domain"]["devices"]["interfaces"],
                    json!({ "name": "green", "bridge": {} }),
                );
                push(
                    &mut spec["networks"],
                    json!({ "name": "green", "multus": { "networkName": "green" } }),
                );
                (object, old)
            }
        };
        let uid = format!("0df28fbd-5f5f-11e8-bc74-{name}");
        api::review(&uid, (NAMESPACE, name), &object, &old)
            .to_string()
            .into_bytes()
    }
}

/// Placeholder of a name. All names have its length.
const NAME: &str = "review-00000000";

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// A pod with one network, of realistic size.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": { "app": "bench", "pod-template-hash": "6bf7d8c9f" },
            "annotations": { "k8s.v1.cni.cncf.io/networks": r#"[{"name":"blue"}]"# },
        },
        "spec": {
            "containers": [{
                "name": "main",
                "image": "registry.example/app:1",
                "env": [{ "name": "MODE", "value": "production" }, { "name": "LEVEL", "value": "info" }],
                "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
            }],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
        },
    })
}

/// A virtual machine like KubeVirt's examples, with two interfaces. With a number, the interfaces have its addresses.
pub(crate) fn machine(name: &str, number: Option<u32>) -> Value {
    let mut default = json!({ "name": "default", "masquerade": {}, "model": "virtio" });
    let mut blue = json!({ "name": "blue", "bridge": {}, "model": "virtio" });
    if let Some(number) = number {
        // The addresses are outside of the managed range.
        let [_, high, middle, low] = number.to_be_bytes();
        for (interface, octet) in [(&mut default, 0xa0), (&mut blue, 0xa1)] {
            interface["macAddress"] = json!(format!("06:00:{octet:02x}:{high:02x}:{middle:02x}:{low:02x}"));
        }
    }
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": { "kubevirt.io/vm": name },
            "annotations": {
                "kubevirt.io/latest-observed-api-version": "v1",
                "kubemacpool.io/transaction-timestamp": "2026-01-02T03:04:05.123456789Z",
            },
        },
        "spec": {
            "runStrategy": "Always",
            "template": {
                "metadata": { "labels": { "kubevirt.io/vm": name, "kubevirt.io/size": "small" } },
                "spec": {
                    "architecture": "amd64",
                    "domain": {
                        "cpu": { "cores": 2, "sockets": 1, "threads": 1 },
                        "devices": {
                            "disks": [
                                { "name": "root", "disk": { "bus": "virtio" } },
                                { "name": "cloudinit", "disk": { "bus": "virtio" } },
                            ],
                            "interfaces": [default, blue],
                            "rng": {},
                        },
                        "machine": { "type": "q35" },
                        "memory": { "guest": "2Gi" },
                        "resources": { "requests": { "memory": "2Gi" } },
                    },
                    "networks": [
                        { "name": "default", "pod": {} },
                        { "name": "blue", "multus": { "networkName": "blue" } },
                    ],
                    "terminationGracePeriodSeconds": 180,
                    "volumes": [
                        { "name": "root", "containerDisk": { "image": "registry.example/fedora:40" } },
                        { "name": "cloudinit", "cloudInitNoCloud": { "userData": "#cloud-config\npassword: fedora\n" } },
                    ],
                },
            },
        },
        "status": { "created": true, "ready": true, "printableStatus": "Running" },
    })
}

/// The review of a pod of nearly the maximum size.
pub(crate) fn large_review() -> Vec<u8> {
    const LARGE: usize = 7 * 1000 * 1000;
    let mut pod = pod("large");
    pod["metadata"]["annotations"]["large"] = "a".repeat(LARGE).into();
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-0123456789ab",
            "name": "large",
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "object": pod,
            "dryRun": true,
        },
    })
    .to_string()
    .into_bytes()
}

/// Objects that the manager expects in a cluster: KubeVirt's kinds, its webhook configuration and its range.
pub(crate) fn installation() -> Value {
    let webhook = |name: &str, operator: &str, value: &str| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "NoneOnDryRun",
            "clientConfig": { "url": "https://127.0.0.1:8000/" },
            // This program sends the measured reviews, and the API server sends none.
            "rules": [],
            "namespaceSelector": { "matchExpressions": [{ "key": name, "operator": operator, "values": [value] }] },
        })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        definition("VirtualMachine"),
        definition("VirtualMachineInstance"),
        namespace(NAMESPACE, &json!({ "mutatepods.kubemacpool.io": "allocate" })),
        namespace(MANAGER_NAMESPACE, &json!({})),
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "kubemacpool-mac-range-config", "namespace": MANAGER_NAMESPACE },
            "data": { "RANGE_START": RANGE.0, "RANGE_END": RANGE.1 },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": "kubemacpool-mutator" },
            "webhooks": [
                webhook("mutatepods.kubemacpool.io", "In", "allocate"),
                webhook("mutatevirtualmachines.kubemacpool.io", "NotIn", "ignore"),
            ],
        },
    ] })
}

/// Namespace of the manager.
pub(crate) const MANAGER_NAMESPACE: &str = "kubemacpool-system";
/// The range in the manifests.
pub(crate) const RANGE: (&str, &str) = ("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_differ_in_every_occurrence_of_the_name() {
        for review in Review::ALL {
            let mut template = review.reviews().template;
            let first = template.fill().to_vec();
            let second: Value = serde_json::from_slice(template.fill()).expect("JSON");
            let first: Value = serde_json::from_slice(&first).expect("JSON");
            let name = |review: &Value| review["request"]["name"].as_str().expect("a name").to_owned();
            assert_ne!(name(&first), name(&second));
            assert_eq!(second["request"]["object"]["metadata"]["name"], name(&second));
            assert_ne!(first["request"]["uid"], second["request"]["uid"]);
        }
    }
}
