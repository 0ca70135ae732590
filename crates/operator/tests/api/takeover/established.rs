//! Takeover of an installation of upstream's current release, and its return.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    fixture::{DEADLINE, Fixture, VERSION},
    installation::{
        DAEMON_SETS, DEPLOYMENTS, IMAGES, Installation, VERSION_LABEL, assert_same, everything, identities,
        is_workload, owned,
    },
    stubs::CERT_MANAGER,
};

/// A certificate that another client wrote into a webhook configuration.
pub(super) const BUNDLE: &str = include_str!("../fixtures/bundle.txt");

/// Adds changes of other clients to all objects: labels, annotations, and the bundles of certificate issuers.
fn leave_traces(installation: &mut Installation) {
    for object in &mut installation.objects {
        object["metadata"]["labels"]["example.com/theirs"] = json!("label");
        object["metadata"]["annotations"]["example.com/theirs"] = json!("annotation");
        let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten() {
            webhook["clientConfig"]["caBundle"] = json!(BUNDLE.trim());
        }
    }
}

/// Waits until all owned objects meet the condition.
fn wait_for_all(
    fixture: &Fixture,
    what: &str,
    condition: impl Fn(&Value) -> bool,
) -> BTreeMap<String, Value> {
    cluster::wait::until(what, DEADLINE, || {
        let all = owned(fixture);
        match all.values().find(|object| !condition(object)) {
            None => Ok(all),
            Some(object) => Err(format!("{object:#}\n{:#?}", fixture.events())),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn image(object: &Value) -> &Value {
    &object["spec"]["template"]["spec"]["containers"][0]["image"]
}

// operator#56, operator#60; operator#70 for the objects of today's releases
#[test]
fn installation_of_upstream_is_taken_over_without_restart() {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.configure(&everything());
    let mut installation = Installation::of_upstream(&fixture);
    leave_traces(&mut installation);
    installation.create(&fixture);
    fixture.roll_out(&DAEMON_SETS);
    fixture.roll_out_deployments(&DEPLOYMENTS);
    let before = owned(&fixture);
    assert_eq!(before.len(), installation.objects.len(), "all of it is there");

    let mark = fixture.mark();
    fixture.start_images(&IMAGES);
    let after = wait_for_all(&fixture, "our version on everything", |object| {
        object["metadata"]["labels"][VERSION_LABEL] == VERSION
    });
    fixture.wait_until_available();
    // The version is the only difference: no field, label, bundle or owner changed.
    assert_same(&after, &before);
    for (name, object) in &after {
        for part in ["uid", "generation", "creationTimestamp"] {
            assert_eq!(
                object["metadata"][part], before[name]["metadata"][part],
                "{part} of {name}"
            );
        }
    }
    // The configuration was Available under the other operator, and remains so.
    let events = fixture.events();
    assert_eq!(events, Vec::<String>::new());
    let work = fixture.work_since(mark);
    assert!(
        !work.iter().any(|request| request.starts_with("delete")),
        "{work:#?}"
    );
    let record = &after["ConfigMap/cluster-networks-addons-operator-applied-cluster"];
    assert!(record["data"]["inventory"].is_string(), "{record:#}");
}

// operator#9
#[test]
fn native_installation_is_handed_back_and_taken_over_again_in_place() {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.configure(&everything());
    let installation = Installation::of_upstream(&fixture);
    installation.create(&fixture);
    let established = owned(&fixture);
    installation.delete(&fixture);

    fixture.start_images(&[]);
    fixture.wait_until_progressing();
    fixture.roll_out(&DAEMON_SETS);
    fixture.roll_out_deployments(&DEPLOYMENTS);
    let ours = containers(&fixture.wait_until_available()["status"]);
    let native = owned(&fixture);
    let is_native = |object: &Value| !is_workload(object) || image(object) == crate::fixture::IMAGE;
    assert!(native.values().all(is_native));
    fixture.stop();

    fixture.start_images(&IMAGES);
    fixture.wait_for_operand("deployment", "kubevirt-ipam-controller-manager", |object| {
        (image(object) == "registry.example/ipam:1").then_some(())
    });
    fixture.wait_for_operand("networkpolicy", "cnao-allow-egress-to-cluster-dns", |_| Some(()));
    let back = wait_for_all(&fixture, "established images", |object| {
        !is_workload(object) || image(object) != crate::fixture::IMAGE
    });
    fixture.roll_out(&DAEMON_SETS);
    fixture.roll_out_deployments(&DEPLOYMENTS);
    fixture.wait_for_status(|status| containers(status) == json!(EXPECTED_CONTAINERS));
    fixture.wait_until_available();
    // The operator's own certificate authority remains until cert-manager, which is absent here, replaces it.
    let handed_back = without_bundle(owned(&fixture));
    assert_same(&handed_back, &established);
    assert_eq!(identities(&back), identities(&native), "in place");
    fixture.stop();

    fixture.start_images(&[]);
    let again = wait_for_all(&fixture, "our own image", is_native);
    assert_eq!(identities(&again), identities(&native), "in place again");
    fixture.wait_for_status(|status| containers(status) == ours);
    fixture.roll_out(&DAEMON_SETS);
    fixture.roll_out_deployments(&DEPLOYMENTS);
    fixture.wait_until_available();
    // The operator created another certificate authority.
    assert_same(&without_bundle(owned(&fixture)), &without_bundle(native));
}

/// Kind and name of the workload, name and image of each container in the status.
fn containers(status: &Value) -> Value {
    let listed = status["containers"].as_array().into_iter().flatten();
    listed
        .map(|c| ["parentKind", "parentName", "name", "image"].map(|key| c[key].clone()))
        .collect()
}

/// The objects without the CA bundle of the webhook of KubeVirt IPAM, which must have one.
fn without_bundle(mut objects: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let name = "MutatingWebhookConfiguration/kubevirt-ipam-controller-mutating-webhook-configuration";
    let client = objects
        .get_mut(name)
        .and_then(|object| object.pointer_mut("/webhooks/0/clientConfig")?.as_object_mut());
    let bundle = client.expect("a webhook").shift_remove("caBundle");
    assert!(bundle.is_some_and(|bundle| bundle.is_string()), "a bundle");
    objects
}

/// `status.containers` of all eight components, from the summary of operands.
const EXPECTED_CONTAINERS: [[&str; 4]; 14] = [
    [
        "DaemonSet",
        "multus",
        "install-multus-binary",
        "registry.example/multus:4",
    ],
    ["DaemonSet", "multus", "kube-multus", "registry.example/multus:4"],
    [
        "DaemonSet",
        "dynamic-networks-controller-ds",
        "dynamic-networks-controller",
        "registry.example/dynamic-networks:1",
    ],
    [
        "DaemonSet",
        "kube-cni-linux-bridge-plugin",
        "cni-plugins",
        "registry.example/plugins:1",
    ],
    [
        "DaemonSet",
        "bridge-marker",
        "bridge-marker",
        "registry.example/marker:1",
    ],
    [
        "Deployment",
        "kubemacpool-cert-manager",
        "manager",
        "registry.example/kubemacpool:1",
    ],
    [
        "Deployment",
        "kubemacpool-mac-controller-manager",
        "manager",
        "registry.example/kubemacpool:1",
    ],
    [
        "DaemonSet",
        "ovs-cni-amd64",
        "ovs-cni-plugin",
        "registry.example/ovs:1",
    ],
    [
        "DaemonSet",
        "ovs-cni-amd64",
        "ovs-cni-marker",
        "registry.example/ovs:1",
    ],
    [
        "DaemonSet",
        "macvtap-cni",
        "install-cni",
        "registry.example/macvtap:1",
    ],
    [
        "DaemonSet",
        "macvtap-cni",
        "macvtap-cni",
        "registry.example/macvtap:1",
    ],
    [
        "Deployment",
        "secondary-dns",
        "secondary-dns",
        "registry.example/coredns:1",
    ],
    [
        "Deployment",
        "secondary-dns",
        "status-monitor",
        "registry.example/zones:1",
    ],
    [
        "Deployment",
        "kubevirt-ipam-controller-manager",
        "manager",
        "registry.example/ipam:1",
    ],
];
