//! Installations of other operators in an API server: the objects are fixtures, handwritten from the specification;
//! labels and owners are added here, by the rules of operator §8.2 and §8.3.

use std::collections::BTreeMap;

use kube_kit::object::{self, Kind};
use serde_json::{Map, Value, json};

use crate::{
    fixture::{Fixture, NAMESPACE, run_with_input},
    stubs::wait_for_definitions,
};

/// Images of upstream's installation, by their variables.
pub(crate) const IMAGES: [(&str, &str); 10] = [
    ("MULTUS_IMAGE", "registry.example/multus:4"),
    (
        "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE",
        "registry.example/dynamic-networks:1",
    ),
    ("LINUX_BRIDGE_IMAGE", "registry.example/plugins:1"),
    ("LINUX_BRIDGE_MARKER_IMAGE", "registry.example/marker:1"),
    ("OVS_CNI_IMAGE", "registry.example/ovs:1"),
    ("KUBEMACPOOL_IMAGE", "registry.example/kubemacpool:1"),
    ("MACVTAP_CNI_IMAGE", "registry.example/macvtap:1"),
    ("KUBE_SECONDARY_DNS_IMAGE", "registry.example/zones:1"),
    ("CORE_DNS_IMAGE", "registry.example/coredns:1"),
    ("KUBEVIRT_IPAM_CONTROLLER_IMAGE", "registry.example/ipam:1"),
];

pub(crate) const DAEMON_SETS: [&str; 6] = [
    "multus",
    "dynamic-networks-controller-ds",
    "kube-cni-linux-bridge-plugin",
    "bridge-marker",
    "ovs-cni-amd64",
    "macvtap-cni",
];
pub(crate) const DEPLOYMENTS: [&str; 4] = [
    "kubemacpool-cert-manager",
    "kubemacpool-mac-controller-manager",
    "secondary-dns",
    "kubevirt-ipam-controller-manager",
];

/// A specification with all eight components.
pub(crate) fn everything() -> Value {
    json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "ovs": {}, "macvtap": {}, "kubeSecondaryDNS": {},
        "kubevirtIpamController": {},
        "kubeMacPool": { "rangeStart": "02:12:34:00:00:00", "rangeEnd": "02:12:34:ff:ff:ff" },
    })
}

pub(crate) const VERSION_LABEL: &str = "networkaddonsoperator.network.kubevirt.io/version";

/// Kinds of an operator's objects. Not every server has the last three.
const KINDS: [Kind; 15] = [
    object::SERVICE_ACCOUNT,
    object::CONFIG_MAP,
    object::SERVICE,
    object::DAEMON_SET,
    object::DEPLOYMENT,
    object::ROLE,
    object::ROLE_BINDING,
    object::CLUSTER_ROLE,
    object::CLUSTER_ROLE_BINDING,
    object::NETWORK_POLICY,
    object::POD_DISRUPTION_BUDGET,
    object::MUTATING_WEBHOOK_CONFIGURATION,
    object::CERTIFICATE,
    object::ISSUER,
    object::NETWORK_ATTACHMENT_DEFINITION,
];

/// An installation.
pub(crate) struct Installation {
    pub(crate) objects: Vec<Value>,
}

impl Installation {
    /// All eight components of upstream's current release, with changes by other clients.
    pub(crate) fn of_upstream(fixture: &Fixture) -> Self {
        Self::stamped(
            fixture,
            "0.102.0",
            &[
                include_str!("fixtures/established/always.yaml"),
                include_str!("fixtures/established/multus.yaml"),
                include_str!("fixtures/established/dynamic-networks.yaml"),
                include_str!("fixtures/established/linux-bridge.yaml"),
                include_str!("fixtures/established/kubemacpool.yaml"),
                include_str!("fixtures/established/ovs.yaml"),
                include_str!("fixtures/established/macvtap.yaml"),
                include_str!("fixtures/established/secondary-dns.yaml"),
                include_str!("fixtures/established/kubevirt-ipam.yaml"),
            ],
        )
    }

    /// Objects of a release that sets all current labels.
    pub(crate) fn stamped(fixture: &Fixture, version: &str, files: &[&str]) -> Self {
        let mut installation = Self::read(files);
        let owner = owner(fixture, "v1");
        for object in &mut installation.objects {
            stamp(object, version, &owner);
        }
        installation
    }

    /// Objects of an earlier release, whose only label is its version.
    pub(crate) fn earlier(fixture: &Fixture, version: &str, files: &[&str]) -> Self {
        let mut installation = Self::read(files);
        let owner = owner(fixture, "v1alpha1");
        for object in &mut installation.objects {
            object["metadata"]["labels"][VERSION_LABEL] = json!(version);
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        installation
    }

    /// Objects without an owner and without labels of an operator.
    pub(crate) fn read(files: &[&str]) -> Self {
        let script = format!(
            "host_dir=/opt/cni/bin\n{}",
            include_str!("../../src/components/linux_bridge/install.sh")
        );
        let mut objects = Vec::new();
        for file in files {
            let yaml = file.replace("the-namespace", NAMESPACE);
            let mut found: Vec<Value> = serde_saphyr::from_multiple(&yaml).expect("a fixture");
            objects.append(&mut found);
        }
        for object in &mut objects {
            if let Some(command) = object.pointer_mut("/spec/template/spec/containers/0/command/2")
                && command == "SCRIPT"
            {
                *command = json!(script);
            }
        }
        Self { objects }
    }

    /// Creates the objects, and replaces objects of the same names.
    pub(crate) fn create(&self, fixture: &Fixture) {
        self.delete(fixture);
        self.send(fixture, &["create", "-f", "-"]);
    }

    pub(crate) fn delete(&self, fixture: &Fixture) {
        self.send(fixture, &["delete", "--ignore-not-found", "-f", "-"]);
    }

    /// Applies definitions, and changes existing ones with all of their content.
    pub(crate) fn define(&self, fixture: &Fixture) {
        self.send(fixture, &["apply", "-f", "-"]);
        wait_for_definitions(fixture.admin());
    }

    fn send(&self, fixture: &Fixture, arguments: &[&str]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": self.objects });
        run_with_input(fixture.kubectl(), arguments, &list.to_string()).expect("kubectl");
    }
}

fn owner(fixture: &Fixture, version: &str) -> Value {
    json!({
        "apiVersion": format!("networkaddonsoperator.network.kubevirt.io/{version}"), "kind": "NetworkAddonsConfig",
        "name": "cluster", "uid": fixture.configuration()["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// The metadata that upstream's operator adds to rendered objects.
fn stamp(object: &mut Value, version: &str, owner: &Value) {
    let metadata = &mut object["metadata"];
    let pool = metadata["labels"]["control-plane"] == "mac-controller-manager";
    let relationship = [
        ("app.kubernetes.io/component", "network"),
        ("app.kubernetes.io/managed-by", "cnao-operator"),
        ("prometheus.cnao.io", if pool { "false" } else { "true" }),
    ];
    metadata["labels"][VERSION_LABEL] = json!(version);
    metadata["ownerReferences"] = json!([owner]);
    for (key, value) in relationship {
        metadata["labels"][key] = json!(value);
    }
    if matches!(object["kind"].as_str(), Some("DaemonSet" | "Deployment")) {
        for (key, value) in relationship {
            object["spec"]["template"]["metadata"]["labels"][key] = json!(value);
        }
    }
}

/// `Kind/name` of an object.
pub(crate) fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The live objects that the configuration resource owns, by kind and name.
pub(crate) fn owned(fixture: &Fixture) -> BTreeMap<String, Value> {
    owned_by(fixture, &fixture.configuration()["metadata"]["uid"])
}

/// The live objects of the configuration resource with this uid, which may be deleted.
pub(crate) fn owned_by(fixture: &Fixture, uid: &Value) -> BTreeMap<String, Value> {
    let mut owned = BTreeMap::new();
    for kind in KINDS {
        // A kind without a definition has no objects.
        let list = fixture.admin().get(&kind.path(None)).unwrap_or_default();
        for object in list["items"].as_array().into_iter().flatten() {
            if object["metadata"]["ownerReferences"][0]["uid"] == *uid {
                // An item of a list has no kind.
                let mut object = object.clone();
                object["apiVersion"] = json!(kind.api_version());
                object["kind"] = json!(kind.kind);
                owned.insert(key(&object), object);
            }
        }
    }
    owned
}

/// The content of an object without fields of the server, timestamps and Weft's own annotations.
pub(crate) fn plain(object: &Value) -> Value {
    let mut plain = object.clone();
    let mut remove = |pointer: &str, keys: &[&str]| {
        if let Some(fields) = plain.pointer_mut(pointer).and_then(Value::as_object_mut) {
            fields.retain(|key, _| !keys.contains(&key.as_str()));
        }
    };
    remove("", &["status"]);
    remove(
        "/metadata",
        &[
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
        ],
    );
    remove("/metadata/labels", &[VERSION_LABEL]);
    remove(
        "/metadata/annotations",
        &[
            "deprecated.daemonset.template.generation",
            "kubectl.kubernetes.io/last-applied-configuration",
        ],
    );
    remove("/spec", &["clusterIP", "clusterIPs"]);
    remove("/data", &["inventory"]);
    if let Some(metadata) = plain["metadata"].as_object_mut() {
        metadata.retain(|_, value| *value != Value::Object(Map::new()));
    }
    if let Some(data) = plain.pointer_mut("/data").and_then(Value::as_object_mut) {
        // Order and white space of JSON in a text are irrelevant.
        for text in data.values_mut() {
            if let Some(Ok(json @ Value::Object(_))) = text.as_str().map(serde_json::from_str::<Value>) {
                *text = json;
            }
        }
    }
    plain
}

/// Compares installations object by object and field by field.
pub(crate) fn assert_same(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) {
    let different = differences(found, expected);
    assert!(different.is_empty(), "{different:#?}");
}

/// The objects in only one of the installations, and the fields in which the others differ.
pub(crate) fn differences(
    found: &BTreeMap<String, Value>,
    expected: &BTreeMap<String, Value>,
) -> Vec<String> {
    let missing = expected.keys().filter(|name| !found.contains_key(*name));
    let mut different: Vec<_> = missing.map(|name| format!("{name} is missing")).collect();
    for (name, object) in found {
        match expected.get(name) {
            Some(expected) => compare(name, &plain(object), &plain(expected), &mut different),
            None => different.push(format!("{name} should not be there")),
        }
    }
    different
}

/// Adds the paths at which two values differ.
fn compare(path: &str, found: &Value, expected: &Value, different: &mut Vec<String>) {
    match (found, expected) {
        (Value::Object(left), Value::Object(right)) => {
            for key in left
                .keys()
                .chain(right.keys().filter(|key| !left.contains_key(*key)))
            {
                let side = |all: &Map<String, Value>| all.get(key).cloned().unwrap_or_default();
                compare(&format!("{path}.{key}"), &side(left), &side(right), different);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}.{index}"), left, right, different);
            }
        }
        _ if found == expected => {}
        _ => different.push(format!("{path}: {found} instead of {expected}")),
    }
}

/// Kind and name of each workload with its uid, and the selector of its pods.
pub(crate) fn identities(objects: &BTreeMap<String, Value>) -> BTreeMap<String, (Value, Value)> {
    let workloads = objects.iter().filter(|(_, object)| is_workload(object));
    workloads
        .map(|(name, object)| {
            let identity = (
                object["metadata"]["uid"].clone(),
                object["spec"]["selector"].clone(),
            );
            (name.clone(), identity)
        })
        .collect()
}

pub(crate) fn is_workload(object: &Value) -> bool {
    matches!(object["kind"].as_str(), Some("DaemonSet" | "Deployment"))
}
