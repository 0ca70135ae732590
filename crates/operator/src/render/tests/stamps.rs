//! Common metadata of all objects: labels, owners, placement, containers (operator §8.2, §8.3, §5.3).

use std::collections::BTreeMap;

use kube_kit::object::Owner;

use super::*;
use crate::labels::label_safe;

pub(super) fn stamp() -> Stamp {
    Stamp {
        operator_version: "Avalanches&of:water".into(),
        operator_namespace: "addons".into(),
        cr_labels: BTreeMap::new(),
        owner: Owner {
            api_version: "networkaddonsoperator.network.kubevirt.io/v1".into(),
            kind: "NetworkAddonsConfig".into(),
            name: "cluster".into(),
            uid: "1-2-3".into(),
        },
    }
}

const BOTH: &str = r#"{ "multus": {}, "linuxBridge": {} }"#;

fn both() -> Value {
    serde_json::from_str(BOTH).expect("JSON")
}

fn rendered(stamp: &Stamp) -> Vec<Value> {
    let setting = Setting {
        scc: true,
        ..Setting::default()
    };
    let groups = setting.with(both(), |context| {
        super::super::render(context, stamp).expect("objects")
    });
    groups.into_iter().flat_map(|group| group.objects).collect()
}

// operator#79
#[test]
fn label_safe_makes_valid_label_value() {
    assert_eq!(label_safe("Avalanches&of:water"), "Avalanches_of_water");
    assert_eq!(label_safe("1.2.3-rc_1"), "1.2.3-rc_1");
    assert_eq!(label_safe("a&&&b:/c"), "a_b_c");
    assert_eq!(label_safe(&"x".repeat(70)), "x".repeat(63));
    assert_eq!(label_safe(""), "");
    // The API server accepts values that begin and end with a letter or a digit.
    assert_eq!(label_safe("ü€"), "");
    assert_eq!(label_safe("(1.2.3-rc_1)."), "1.2.3-rc_1");
    let cut = format!("{}.1", "x".repeat(62));
    assert_eq!(label_safe(&cut), "x".repeat(62));
}

#[test]
fn objects_are_labelled_and_owned_with_three_exceptions() {
    for object in rendered(&stamp()) {
        assert_stamped(&object);
    }
}

/// Checks the labels of operator §8.2 and the owner of §8.3, as [`stamp`] has them.
pub(super) fn assert_stamped(object: &Value) {
    let owner = json!([{
        "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
        "name": "cluster", "uid": "1-2-3", "controller": true, "blockOwnerDeletion": true,
    }]);
    let (kind, metadata) = (object["kind"].as_str().expect("a kind"), &object["metadata"]);
    let what = format!("{kind} {}", metadata["name"]);
    let common = [
        ("prometheus.cnao.io", "true"),
        ("app.kubernetes.io/managed-by", "cnao-operator"),
        ("app.kubernetes.io/component", "network"),
    ];
    let version = "networkaddonsoperator.network.kubevirt.io/version";
    if kind == "Namespace" {
        assert_eq!(metadata.get("ownerReferences"), None, "{what}");
        for key in common
            .iter()
            .map(|(key, _)| *key)
            .chain([version, "control-plane"])
        {
            assert_eq!(
                metadata.pointer("/labels").and_then(|labels| labels.get(key)),
                None,
                "{what}: {key}"
            );
        }
        return;
    }
    assert_eq!(metadata["labels"][version], "Avalanches_of_water", "{what}");
    let template = object.pointer("/spec/template/metadata/labels");
    for (key, value) in common {
        assert_eq!(metadata["labels"][key], value, "{what}");
        match template {
            Some(template) => assert_eq!(template[key], value, "{what}"),
            None => assert!(kind != "DaemonSet" && kind != "Deployment", "{what}"),
        }
    }
    for copied in ["app.kubernetes.io/part-of", "app.kubernetes.io/version"] {
        assert_eq!(metadata["labels"].get(copied), None, "{what}");
    }
    if let Some(template) = template {
        assert_eq!(template.get(version), None, "the version is on the object only");
    }
    let owned = metadata.get("ownerReferences");
    assert_eq!(
        owned,
        (kind != "CustomResourceDefinition").then_some(&owner),
        "{what}"
    );
}

// operator#25
#[test]
fn relationship_labels_come_from_configuration_resource() {
    let labels = [
        ("app.kubernetes.io/component", "storage"),
        ("app.kubernetes.io/part-of", "platform"),
        ("app.kubernetes.io/version", "9"),
        ("app.kubernetes.io/managed-by", "somebody"),
        ("other", "label"),
    ];
    let labels = labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    for object in rendered(&Stamp {
        cr_labels: labels,
        ..stamp()
    }) {
        if object["kind"] == "Namespace" {
            continue;
        }
        let on_object = Some(&object["metadata"]["labels"]);
        for found in [on_object, object.pointer("/spec/template/metadata/labels")]
            .into_iter()
            .flatten()
        {
            assert_eq!(found["app.kubernetes.io/component"], "storage");
            assert_eq!(found["app.kubernetes.io/part-of"], "platform");
            assert_eq!(found["app.kubernetes.io/version"], "9");
            assert_eq!(found["app.kubernetes.io/managed-by"], "cnao-operator");
            assert_eq!(found.get("other"), None);
        }
        if object["kind"] != "DaemonSet" {
            assert_eq!(object.pointer("/spec/template"), None);
        }
    }
}

fn stamped(object: Value, stamp: &Stamp) -> Value {
    let mut object = Manifest::from_value(object);
    stamp.put_on(&mut object).expect("a stamp");
    object.into_value()
}

// operator#26
#[test]
fn metrics_service_of_operator_excludes_mac_controller_manager() {
    let labels = json!({ "control-plane": "mac-controller-manager" });
    let deployment = stamped(
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "pool", "labels": labels },
            "spec": { "template": { "metadata": { "labels": labels }, "spec": {} } },
        }),
        &stamp(),
    );
    assert_eq!(deployment["metadata"]["labels"]["prometheus.cnao.io"], "false");
    assert_eq!(
        deployment["spec"]["template"]["metadata"]["labels"]["prometheus.cnao.io"],
        "false"
    );
}

#[test]
fn namespaces_are_labelled_apart_from_that_of_operator() {
    let namespace = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": { "control-plane": "manager", "app": "x" } },
        })
    };
    let own = stamped(namespace("addons"), &stamp());
    assert_eq!(
        own["metadata"],
        json!({ "name": "addons", "labels": { "app": "x" } })
    );
    let other = stamped(namespace("operands"), &stamp());
    assert_eq!(
        other["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "cnao-operator"
    );
    assert_eq!(other["metadata"]["ownerReferences"][0]["uid"], "1-2-3");
}

#[test]
fn annotated_object_gets_no_owner() {
    let annotation = "networkaddonsoperator.network.kubevirt.io/rejectOwner";
    let object = stamped(
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "x", "namespace": "addons", "annotations": { annotation: "" } },
        }),
        &stamp(),
    );
    assert_eq!(object["metadata"].get("ownerReferences"), None);
    assert_eq!(
        object["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "cnao-operator"
    );
}

#[test]
fn placement_is_set_on_every_workload() {
    let placements = |placement: Value| -> Vec<[Option<Value>; 3]> {
        let mut spec = both();
        spec["placementConfiguration"] = placement;
        let groups = Setting::default().with(spec, |context| {
            super::super::render(context, &stamp()).expect("objects")
        });
        let objects = groups.into_iter().flat_map(|group| group.objects);
        let pods = objects.filter_map(|object| object.pointer("/spec/template/spec").cloned());
        pods.map(|pod| ["nodeSelector", "affinity", "tolerations"].map(|key| pod.get(key).cloned()))
            .collect()
    };
    let default = [
        Some(json!({ "kubernetes.io/os": "linux" })),
        Some(json!({})),
        Some(json!([{ "key": DEFAULT_TOLERATION, "operator": "Exists", "effect": "NoSchedule" }])),
    ];
    assert_eq!(placements(json!(null)), vec![default.clone(); 3]);
    assert_eq!(
        placements(json!({ "infra": { "nodeSelector": { "a": "b" } } })),
        vec![default; 3]
    );
    let node = json!({ "nodeSelector": { "kubernetes.io/hostname": "node01" } });
    let there = [Some(node["nodeSelector"].clone()), Some(json!({})), None];
    assert_eq!(placements(json!({ "workloads": node })), vec![there; 3]);
    let anywhere = [None, Some(json!({})), None];
    assert_eq!(placements(json!({ "workloads": {} })), vec![anywhere; 3]);
}

#[test]
fn containers_equal_summary() {
    let groups = |native| {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        setting.with(both(), |context| {
            super::super::render(context, &stamp()).expect("objects")
        })
    };
    let listed = |native| -> Vec<_> {
        let all = containers(&groups(native)).into_iter();
        all.map(|c| format!("{} {} {} {}", c.parent_kind, c.parent_name, c.name, c.image))
            .collect()
    };
    assert_eq!(
        listed(false),
        [
            "DaemonSet multus install-multus-binary multus:4",
            "DaemonSet multus kube-multus multus:4",
            "DaemonSet kube-cni-linux-bridge-plugin cni-plugins plugins:1",
            "DaemonSet bridge-marker bridge-marker marker:1",
        ]
    );
    assert!(
        listed(true)
            .iter()
            .all(|container| container.ends_with(" weft:1"))
    );
    let workloads: Vec<_> = groups(true)
        .iter()
        .flat_map(workloads)
        .map(|id| id.name)
        .collect();
    assert_eq!(
        workloads,
        ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]
    );
}

#[test]
fn workloads_have_requests_and_no_limits() {
    for native in [false, true] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let groups = setting.with(both(), |context| {
            super::super::render(context, &stamp()).expect("objects")
        });
        for object in groups
            .iter()
            .flat_map(|group| &group.objects)
            .filter(|object| object["kind"] == "DaemonSet")
        {
            let pod = &object["spec"]["template"]["spec"];
            for list in ["initContainers", "containers"] {
                for container in pod.get(list).and_then(Value::as_array).into_iter().flatten() {
                    assert_eq!(container["resources"], requests());
                    assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
                }
            }
            let (priority, unavailable) = match object["metadata"]["name"].as_str() {
                Some("multus") => ("system-cluster-critical", json!(null)),
                Some("kube-cni-linux-bridge-plugin") => ("system-cluster-critical", json!("10%")),
                _ => ("system-node-critical", json!("10%")),
            };
            assert_eq!(pod["priorityClassName"], priority);
            let strategy = &object["spec"]["updateStrategy"];
            assert_eq!(strategy["type"], "RollingUpdate");
            assert_eq!(
                strategy
                    .pointer("/rollingUpdate/maxUnavailable")
                    .cloned()
                    .unwrap_or_default(),
                unavailable
            );
        }
    }
}
