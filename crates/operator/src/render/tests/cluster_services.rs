//! Common properties of the components that serve the whole cluster: placement, labels, containers.

use super::*;

const SERVICES: &str = r#"{ "kubeMacPool": {}, "kubeSecondaryDNS": {}, "nmstate": {} }"#;

fn services() -> Value {
    serde_json::from_str(SERVICES).expect("JSON")
}

fn rendered(setting: Setting, spec: Value) -> Vec<Group> {
    setting.with(spec, render_enabled)
}

fn workload_pods(spec: Value) -> Vec<(String, Value)> {
    let groups = rendered(Setting::default(), spec);
    let objects = groups.into_iter().flat_map(|group| group.objects);
    objects
        .filter_map(|object| {
            let pod = object.pointer("/spec/template/spec")?.clone();
            Some((object["metadata"]["name"].as_str()?.to_owned(), pod))
        })
        .collect()
}

const DEPLOYMENTS: [&str; 4] = [
    "kubemacpool-cert-manager",
    "kubemacpool-mac-controller-manager",
    "secondary-dns",
    "nmstate-operator",
];

/// Node selector, affinity and tolerations of a pod.
fn constraints(pod: &Value) -> [Option<Value>; 3] {
    ["nodeSelector", "affinity", "tolerations"].map(|key| pod.get(key).cloned())
}

fn default_constraints(put: fn(&mut Value)) -> [Option<Value>; 3] {
    let mut pod = json!({});
    put(&mut pod);
    constraints(&pod)
}

// operator#21, operator#22
#[test]
fn placement_of_infrastructure_differs_from_that_of_workloads() {
    let nowhere_special = [None, Some(json!({})), None];
    let node = json!({ "kubernetes.io/hostname": "node01" });
    let there = [Some(node.clone()), Some(json!({})), None];
    for (placement, expected) in [
        (json!(null), default_constraints(place_infra)),
        (json!({ "workloads": {} }), default_constraints(place_infra)),
        (json!({ "infra": { "nodeSelector": node } }), there),
        (json!({ "infra": {} }), nowhere_special),
    ] {
        let mut spec = services();
        spec["linuxBridge"] = json!({});
        spec["placementConfiguration"] = placement.clone();
        let mut infra = Vec::new();
        for (name, pod) in workload_pods(spec) {
            if DEPLOYMENTS.contains(&name.as_str()) {
                assert_eq!(constraints(&pod), expected, "{name} {placement}");
                infra.push(name);
            } else if placement.get("workloads").is_none() {
                assert_eq!(
                    constraints(&pod),
                    default_constraints(place),
                    "{name} {placement}"
                );
            }
        }
        assert_eq!(infra, DEPLOYMENTS);
    }
}

#[test]
fn objects_of_cluster_services_are_labelled_and_owned() {
    let setting = Setting {
        monitoring: true,
        ..Setting::default()
    };
    for object in rendered(setting, services())
        .iter()
        .flat_map(|group| &group.objects)
    {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        if object["kind"] == "Namespace" {
            continue;
        }
        let labels = &object["metadata"]["labels"];
        assert_eq!(
            labels["networkaddonsoperator.network.kubevirt.io/version"], "Avalanches_of_water",
            "{what}"
        );
        let template = object.pointer("/spec/template/metadata/labels");
        assert_eq!(template.is_some(), object["kind"] == "Deployment", "{what}");
        for labels in [Some(labels), template].into_iter().flatten() {
            assert_eq!(labels["app.kubernetes.io/managed-by"], "cnao-operator", "{what}");
            assert_eq!(labels["app.kubernetes.io/component"], "network", "{what}");
        }
        let owners = object["metadata"].get("ownerReferences");
        let definition = object["kind"] == "CustomResourceDefinition";
        assert_eq!(
            owners.is_some_and(|owners| owners[0]["uid"] == "1-2-3"),
            !definition,
            "{what}"
        );
    }
}

#[test]
fn containers_of_cluster_services_equal_summary() {
    let listed = |native| -> Vec<_> {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let all = containers(&rendered(setting, services())).into_iter();
        all.map(|c| format!("{} {} {} {}", c.parent_kind, c.parent_name, c.name, c.image))
            .collect()
    };
    assert_eq!(
        listed(false),
        [
            "Deployment kubemacpool-cert-manager manager pool:1",
            "Deployment kubemacpool-mac-controller-manager manager pool:1",
            "Deployment secondary-dns secondary-dns dns:1",
            "Deployment secondary-dns status-monitor zones:1",
            "Deployment nmstate-operator nmstate-operator weft:1",
        ]
    );
    assert!(
        listed(true)
            .iter()
            .all(|container| container.ends_with(" weft:1"))
    );
}
