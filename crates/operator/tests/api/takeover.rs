//! Takeover of installations of earlier operators.

mod earlier;
mod established;
mod releases;

use serde_json::{Value, json};

use crate::fixture::{Fixture, NAMESPACE};

fn owned_by(configuration: &Value) -> Value {
    json!([{
        "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1alpha1", "kind": "NetworkAddonsConfig",
        "name": "cluster", "uid": configuration["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }])
}

fn daemon_set(namespace: &str, name: &str, selector: &str, owners: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": name, "namespace": namespace, "ownerReferences": owners },
        "spec": {
            "selector": { "matchLabels": { "name": selector } },
            "template": {
                "metadata": { "labels": { "name": selector } },
                "spec": { "containers": [{ "name": "old", "image": "old:1", "livenessProbe": { "exec": { "command": ["sh"] } } }] },
            },
        },
    })
}

fn applied(namespace: &str, owners: &Value, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "cluster-networks-addons-operator-applied-cluster", "namespace": namespace,
            "ownerReferences": owners,
        },
        "data": { "applied": spec.to_string() },
    })
}

fn create(fixture: &Fixture, objects: &[Value]) {
    for object in objects {
        fixture
            .kubectl()
            .apply(&object.to_string())
            .expect("an old object");
    }
}

// operator#67, operator#80, operator#64
#[test]
fn unrequested_objects_of_first_generation_are_removed() {
    let mut fixture = Fixture::installed();
    fixture.configure(&json!({}));
    let ours = owned_by(&fixture.configuration());
    let stranger = json!([{ "apiVersion": "v1", "kind": "Namespace", "name": NAMESPACE, "uid": "1" }]);
    let account = |name: &str, owners: &Value| {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": name, "namespace": NAMESPACE, "ownerReferences": owners },
        })
    };
    create(
        &fixture,
        &[
            applied(
                NAMESPACE,
                &ours,
                &json!({ "multus": {}, "imagePullPolicy": "IfNotPresent" }),
            ),
            daemon_set(NAMESPACE, "multus", "kube-multus-ds-amd64", &ours),
            account("multus", &stranger),
            daemon_set(NAMESPACE, "nmstate-handler", "nmstate-handler", &ours),
            account("nmstate-handler", &stranger),
            daemon_set(NAMESPACE, "passt-binding-cni", "passt", &ours),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "nmstate-config", "namespace": NAMESPACE, "ownerReferences": ours },
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [],
                "metadata": { "name": "nmstate-handler", "ownerReferences": ours },
            }),
        ],
    );
    fixture.start();
    for name in ["multus", "nmstate-handler", "passt-binding-cni"] {
        fixture.wait_until_gone("daemonset", name);
    }
    fixture.wait_until_gone("configmap", "nmstate-config");
    fixture.wait_until_gone("clusterrole", "nmstate-handler");
    fixture.wait_until_available();
    // Objects of other owners stay.
    assert!(fixture.operand("serviceaccount", "multus").is_some());
    assert!(fixture.operand("serviceaccount", "nmstate-handler").is_some());
    fixture.wait_for_operand(
        "configmap",
        "cluster-networks-addons-operator-applied-cluster",
        |object| {
            let inventory = object["data"]["inventory"].as_str().expect("an inventory");
            (!inventory.contains("nmstate") && !inventory.contains("multus")).then_some(())
        },
    );
}

#[test]
fn workloads_of_first_generation_are_taken_over() {
    let mut fixture = Fixture::installed();
    fixture.configure_as("v1alpha1", "cluster", &json!({ "multus": {}, "linuxBridge": {} }));
    let ours = owned_by(&fixture.configuration());
    let definition = "network-attachment-definitions.k8s.cni.cncf.io";
    create(
        &fixture,
        &[
            applied(
                NAMESPACE,
                &ours,
                &json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" }),
            ),
            daemon_set(NAMESPACE, "kube-multus-ds-amd64", "multus", &json!([])),
            daemon_set(
                NAMESPACE,
                "kube-cni-linux-bridge-plugin",
                "kube-cni-linux-bridge-plugin",
                &ours,
            ),
            // An outdated selector, which is immutable.
            daemon_set(NAMESPACE, "bridge-marker", "old-marker", &ours),
        ],
    );
    let identity = |name: &str| fixture.operand("daemonset", name).expect("it")["metadata"]["uid"].clone();
    let (plugin, marker) = (
        identity("kube-cni-linux-bridge-plugin"),
        identity("bridge-marker"),
    );
    fixture.start();
    fixture.wait_until_gone("daemonset", "kube-multus-ds-amd64");
    fixture.wait_until_progressing();
    fixture.wait_for_operand("daemonset", "multus", |_| Some(()));
    let is_new = |object: &Value| {
        let containers = object["spec"]["template"]["spec"]["containers"]
            .as_array()
            .expect("containers");
        (containers.len() == 1
            && containers[0]["command"][0] == "/weft"
            && containers[0]["livenessProbe"]["exec"].is_null())
        .then(|| object["metadata"]["uid"].clone())
    };
    assert_eq!(
        fixture.wait_for_operand("daemonset", "kube-cni-linux-bridge-plugin", is_new),
        plugin,
        "updated in place"
    );
    assert_ne!(
        fixture.wait_for_operand("daemonset", "bridge-marker", is_new),
        marker,
        "made anew"
    );
    // With its former owner, the garbage collector would delete the definition of networks together with the
    // configuration resource.
    let owners = fixture.object("crd", definition).expect("the definition")["metadata"]
        .get("ownerReferences")
        .cloned();
    assert_eq!(owners, None);
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
}

// With an unreadable record, the operator changes nothing.
#[test]
fn unreadable_record_is_reported() {
    let mut fixture = Fixture::installed();
    fixture.configure(&json!({ "multus": {} }));
    let ours = owned_by(&fixture.configuration());
    let mut record = applied(NAMESPACE, &ours, &json!({}));
    record["data"]["applied"] = json!("{ not JSON");
    create(&fixture, &[record]);
    fixture.start();
    let configuration = fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToGetPreviousConfigSpec",
        "Progressing False InvalidConfiguration",
    ]);
    let message = crate::fixture::message(&configuration, "Degraded");
    assert!(
        message.starts_with("failed to retrieve previously applied configuration: "),
        "{message}"
    );
    assert!(fixture.operand("daemonset", "multus").is_none());
    // Without the record, the result is the same as after a first installation.
    let record = "cluster-networks-addons-operator-applied-cluster";
    fixture
        .kubectl()
        .run(["delete", "--wait=false", "configmap", record, "-n", NAMESPACE])
        .expect("deleted");
    fixture.wait_until_progressing();
}
