//! Differences, and values that are not.

use super::*;

#[test]
fn defaults_of_server_are_no_difference() {
    assert_unchanged(&daemon_set(), &live_daemon_set());
}

#[test]
fn changed_or_added_field_is_difference() {
    let additions = [
        ("/spec/template/metadata/annotations", json!({"added": "by hand"})),
        ("/spec/template/metadata/labels", json!({"added": ""})),
        ("/spec/template/spec", json!({"hostNetwork": true})),
        ("/spec/template/spec", json!({"terminationGracePeriodSeconds": 5})),
        ("/spec/template/spec", json!({"priorityClassName": "other"})),
        (
            "/spec/template/spec",
            json!({"securityContext": {"runAsUser": 0}}),
        ),
        ("/spec/template/spec/nodeSelector", json!({"more": ""})),
        ("/spec/template/spec/containers/0", json!({"image": "other:v1"})),
        (
            "/spec/template/spec/containers/0",
            json!({"imagePullPolicy": "Always"}),
        ),
        ("/spec/template/spec/containers/0", json!({"args": ["--more"]})),
        (
            "/spec/template/spec/containers/0/resources",
            json!({"limits": {"cpu": "1"}}),
        ),
        (
            "/spec/template/spec/containers/0/readinessProbe",
            json!({"periodSeconds": 11}),
        ),
        (
            "/spec/template/spec/containers",
            json!([{"name": "c"}, {"name": "sidecar"}]),
        ),
        ("/spec/template/spec/tolerations", json!([])),
        ("/spec", json!({"minReadySeconds": 5})),
        ("/spec/updateStrategy", json!({"type": "OnDelete"})),
        ("/metadata/labels", json!({"tier": "other"})),
    ];
    for (place, addition) in additions {
        let mut live = live_daemon_set();
        overlay(live.pointer_mut(place).expect("the place"), &addition);
        let update = update(&daemon_set(), &live);
        assert_eq!(update["spec"], daemon_set()["spec"], "{place} {addition}");
        assert_eq!(update["metadata"]["resourceVersion"], "7");
        assert_eq!(update["metadata"]["uid"], "u");
        assert_eq!(update["status"], json!({"numberReady": 0}), "the status stays");
    }
}

#[test]
fn removed_denial_is_restored() {
    let pod = "/spec/template/spec";
    let container = "/spec/template/spec/containers/0";
    let base = json!({"securityContext": {"readOnlyRootFilesystem": true}});
    for (place, denial) in [
        (pod, json!({"automountServiceAccountToken": false})),
        (
            container,
            json!({"securityContext": {"allowPrivilegeEscalation": false}}),
        ),
        (container, json!({"securityContext": {"runAsUser": 0}})),
    ] {
        let (mut rendered, mut live) = (daemon_set(), live_daemon_set());
        for object in [&mut rendered, &mut live] {
            overlay(object.pointer_mut(container).expect("a container"), &base);
        }
        overlay(rendered.pointer_mut(place).expect("the place"), &denial);
        assert_eq!(update(&rendered, &live)["spec"], rendered["spec"], "{denial}");
        overlay(live.pointer_mut(place).expect("the place"), &denial);
        assert_unchanged(&rendered, &live);
    }
}

#[test]
fn changed_data_rules_and_subjects_are_restored() {
    let cases = [
        (config_map(&json!({"a": "1"})), json!({"data": {"b": "2"}})),
        (config_map(&json!({"a": "1"})), json!({"data": {"a": "2"}})),
        (
            config_map(&json!({"a": "1"})),
            json!({"binaryData": {"b": "Mg=="}}),
        ),
        (
            object(
                "rbac.authorization.k8s.io/v1",
                "ClusterRole",
                &json!({"rules": [{"verbs": ["get"]}]}),
            ),
            json!({"rules": [{"verbs": ["get"]}, {"verbs": ["*"]}]}),
        ),
        (
            object(
                "rbac.authorization.k8s.io/v1",
                "RoleBinding",
                &json!({"subjects": [{"kind": "ServiceAccount", "name": "a"}]}),
            ),
            json!({"subjects": [{"kind": "ServiceAccount", "name": "b"}]}),
        ),
        (
            object(
                "security.openshift.io/v1",
                "SecurityContextConstraints",
                &json!({"users": []}),
            ),
            json!({"users": ["somebody"]}),
        ),
    ];
    for (rendered, change) in cases {
        let live = live(&rendered, &change);
        let mut expected = rendered.clone();
        expected["metadata"] = update(&rendered, &live)["metadata"].clone();
        assert_eq!(update(&rendered, &live), expected);
    }
}

#[test]
fn empty_selector_or_rule_differs_from_absent_one() {
    let policy = |spec: &Value| object("networking.k8s.io/v1", "NetworkPolicy", &json!({ "spec": spec }));
    let all = policy(&json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["Ingress"]}));
    let none = policy(&json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    update(&all, &none);
    update(&none, &all);
    let any_namespace = policy(
        &json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}, "podSelector": {}}]}]}),
    );
    let here = policy(
        &json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}], "policyTypes": ["Ingress"]}),
    );
    update(&any_namespace, &here);
}

#[test]
fn empty_container_equals_absent_one() {
    for empty in [json!({}), json!([]), json!(null)] {
        let rendered = object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            &json!({ "rules": empty }),
        );
        let live = object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            &json!({ "rules": null }),
        );
        assert_unchanged(&rendered, &live);
        assert_unchanged(
            &rendered,
            &object("rbac.authorization.k8s.io/v1", "ClusterRole", &json!({})),
        );
    }
}

#[test]
fn learned_difference_is_ignored_and_no_other() {
    let rendered = daemon_set();
    let mut live = live_daemon_set();
    live["spec"]["template"]["spec"]["newField"] = json!("filled by a newer server");
    let known = differences(&rendered, &live, &policy()).expect("a comparison");
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].to_string(), "spec.template.spec.newField");
    assert_eq!(
        plan_knowing(&rendered, Some(&live), &policy(), &known),
        Ok(Change::Unchanged)
    );
    live["spec"]["template"]["spec"]["newField"] = json!("changed by hand");
    assert!(matches!(
        plan_knowing(&rendered, Some(&live), &policy(), &known),
        Ok(Change::Update(_))
    ));
}

#[test]
fn definition_keeps_derived_fields_of_server() {
    let crd = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &json!({"spec": {
        "group": "g", "scope": "Cluster", "preserveUnknownFields": false,
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}}}}]}}),
    );
    let mut live = live(
        &crd,
        &json!({"spec": {"conversion": {"strategy": "None"},
        "names": {"listKind": "ThingList", "singular": "thing"}}, "status": {"storedVersions": ["v1"]}}),
    );
    live["spec"]
        .as_object_mut()
        .expect("a spec")
        .shift_remove("preserveUnknownFields");
    assert_unchanged(&crd, &live);
    live["spec"]["versions"][0]
        .as_object_mut()
        .expect("a version")
        .shift_remove("subresources");
    update(&crd, &live);
}

#[test]
fn string_data_of_secret_is_compared_as_stored() {
    let rendered = object("v1", "Secret", &json!({"stringData": {"key": "value"}}));
    let live = object(
        "v1",
        "Secret",
        &json!({"type": "Opaque", "data": {"key": "dmFsdWU="}}),
    );
    assert_unchanged(&rendered, &live);
}
