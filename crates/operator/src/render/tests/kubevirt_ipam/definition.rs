//! The definition of address claims, operands §8.1.

use super::*;

pub(super) fn expected() -> Value {
    let condition = json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "message": { "type": "string" },
            "observedGeneration": { "type": "integer", "format": "int64" },
            "reason": { "type": "string" },
            "status": { "type": "string" },
            "type": { "type": "string" },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "ipamclaims.k8s.cni.cncf.io",
            "annotations": { "controller-gen.kubebuilder.io/version": "v0.13.0" },
        },
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "kind": "IPAMClaim", "listKind": "IPAMClaimList", "plural": "ipamclaims", "singular": "ipamclaim",
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "apiVersion": { "type": "string" },
                    "kind": { "type": "string" },
                    "metadata": { "type": "object" },
                    "spec": {
                        "type": "object",
                        "required": ["interface", "network"],
                        "properties": { "interface": { "type": "string" }, "network": { "type": "string" } },
                    },
                    "status": {
                        "type": "object",
                        "required": ["ips"],
                        "properties": {
                            "ips": { "type": "array", "items": { "type": "string" } },
                            "ownerPod": { "type": "object", "properties": { "name": { "type": "string" } } },
                            "conditions": { "type": "array", "items": condition },
                        },
                    },
                } } },
            }],
        },
    })
}

#[test]
fn a_wider_definition_of_another_installation_stays() {
    use kube_kit::merge::{Change, Policy, plan};
    let ours = render(Setting::default()).remove(0);
    let narrower = |status: &str| {
        let mut live = ours.clone();
        live["metadata"]["resourceVersion"] = json!("7");
        let properties =
            live.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status/properties");
        let properties = properties.and_then(Value::as_object_mut).expect("properties");
        properties.shift_remove(status).expect("the property");
        live
    };
    let becomes = |live: &Value| match plan(&ours, Some(live), &Policy::default()).expect("a plan") {
        Change::Update(object) => object["spec"].clone(),
        Change::Unchanged => live["spec"].clone(),
        other => panic!("{other:?}"),
    };
    // An older definition is updated.
    assert_eq!(becomes(&narrower("conditions")), ours["spec"]);
    // A newer definition is left unchanged, even if it lacks a field of ours.
    for mut live in [ours.clone(), narrower("ownerPod")] {
        live["metadata"]["resourceVersion"] = json!("7");
        live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["ipRequests"] =
            json!({ "type": "array", "items": { "type": "string" } });
        assert_eq!(becomes(&live), live["spec"]);
    }
    let mut live = ours.clone();
    let mut newer = live["spec"]["versions"][0].clone();
    newer["name"] = json!("v1");
    live["spec"]["versions"]
        .as_array_mut()
        .expect("versions")
        .push(newer);
    assert_eq!(becomes(&live), live["spec"]);
}
