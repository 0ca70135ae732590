//! The `ClusterServiceVersion` against operator §13.3, transcribed by hand.

use super::*;

fn install() -> Install<'static> {
    Install {
        image: "registry.example:5000/weft@sha256:0123",
        namespace: "addons",
        version: "1.2.3",
        pull_policy: "Always",
    }
}

#[test]
fn name_of_each_version_is_name_of_an_object() {
    for (version, expected) in [
        ("1.2.3", "cluster-network-addons-operator.1.2.3"),
        ("1.2.3-RC.1", "cluster-network-addons-operator.1.2.3-rc.1"),
        ("1.2.3+Build.5", "cluster-network-addons-operator.1.2.3-build.5"),
    ] {
        assert_eq!(name(version), expected);
    }
    let csv = cluster_service_version(&install(), &Choice::default(), "1.2.4+Build", Some("1.2.3+Build"));
    let csv = csv.expect("a version");
    assert_eq!(csv["metadata"]["name"], name("1.2.4+Build"));
    assert_eq!(csv["spec"]["replaces"], name("1.2.3+Build"));
    for replaced in ["1.2.4-Build", "1.2.4-build", "1.2.4+Build"] {
        let refused = cluster_service_version(&install(), &Choice::default(), "1.2.4+Build", Some(replaced));
        assert_eq!(
            refused.expect_err("one name").to_string(),
            format!(
                "version \"1.2.4+Build\" cannot replace {replaced:?}: both have the name {}",
                name("1.2.4+Build")
            )
        );
    }
    // Not a name: OLM compares it.
    assert_eq!(csv["spec"]["version"], "1.2.4+Build");
}

#[test]
fn cluster_service_version_equals_specification() {
    let csv = cluster_service_version(&install(), &Choice::default(), "1.2.3", None).expect("a version");
    assert_eq!(csv["apiVersion"], "operators.coreos.com/v1alpha1");
    assert_eq!(csv["kind"], "ClusterServiceVersion");
    let metadata = &csv["metadata"];
    assert_eq!(metadata["name"], "cluster-network-addons-operator.1.2.3");
    assert_eq!(metadata["namespace"], "placeholder");
    assert_eq!(metadata["annotations"]["capabilities"], "Full Lifecycle");
    assert_eq!(metadata["annotations"]["categories"], "Networking");
    let examples = metadata["annotations"]["alm-examples"]
        .as_str()
        .expect("examples");
    assert_eq!(
        serde_json::from_str::<Value>(examples).expect("JSON"),
        json!([{
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" },
            "spec": {
                "multus": {}, "linuxBridge": {}, "ovs": {},
                "kubeMacPool": { "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:FF:FF:FF:FF:FF" },
                "imagePullPolicy": "IfNotPresent",
            },
        }])
    );
    let spec = &csv["spec"];
    for (field, value) in [
        ("displayName", "Cluster Network Addons"),
        ("version", "1.2.3"),
        ("maturity", "alpha"),
        ("minKubeVersion", "1.10.0"),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    assert_eq!(spec.get("replaces"), None);
    let labels = json!({
        "alm-owner-kubevirt": "cluster-network-addons", "operated-by": "cluster-network-addons",
    });
    assert_eq!(spec["labels"], labels);
    assert_eq!(spec["selector"], json!({ "matchLabels": labels }));
    assert_eq!(
        spec["installModes"],
        json!([
            { "type": "OwnNamespace", "supported": true },
            { "type": "SingleNamespace", "supported": true },
            { "type": "MultiNamespace", "supported": true },
            { "type": "AllNamespaces", "supported": true },
        ])
    );
    let owned = &spec["customresourcedefinitions"]["owned"][0];
    assert_eq!(
        owned["name"],
        "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io"
    );
    assert_eq!(owned["version"], "v1");
    assert_eq!(owned["group"], "networkaddonsoperator.network.kubevirt.io");
    assert_eq!(owned["kind"], "NetworkAddonsConfig");
}

#[test]
fn cluster_service_version_installs_objects_of_manifests() {
    let csv =
        cluster_service_version(&install(), &Choice::default(), "1.2.3", Some("1.2.2")).expect("a version");
    assert_eq!(csv["spec"]["replaces"], "cluster-network-addons-operator.1.2.2");
    let strategy = &csv["spec"]["install"];
    assert_eq!(strategy["strategy"], "deployment");
    let spec = &strategy["spec"];
    let files = crate::render_install(&install()).expect("files");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&files[2].1).expect("YAML");
    let shipped = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("it");
    let cluster_roles = objects.iter().filter(|object| {
        object["kind"] == "ClusterRole"
            && !object["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("cluster-network-addons-nmstate-operator"))
    });
    let rules = cluster_roles.map(|role| role["rules"].as_array().cloned().expect("rules"));
    let all = rules.collect::<Vec<_>>().concat();
    assert_eq!(
        spec["permissions"],
        json!([{ "serviceAccountName": "cluster-network-addons-operator", "rules": shipped("Role")["rules"] }])
    );
    assert_eq!(
        spec["clusterPermissions"],
        json!([{ "serviceAccountName": "cluster-network-addons-operator", "rules": all }])
    );
    assert_eq!(
        spec["deployments"],
        json!([{ "name": "cluster-network-addons-operator", "spec": shipped("Deployment")["spec"] }])
    );
}

#[test]
fn related_images_are_all_pullable_images() {
    let images = |choice: &Choice| {
        let csv = cluster_service_version(&install(), choice, "1.2.3", Some("")).expect("a version");
        assert_eq!(csv["spec"].get("replaces"), None);
        csv["spec"]["relatedImages"].clone()
    };
    let own = json!({ "name": "weft", "image": "registry.example:5000/weft@sha256:0123" });
    assert_eq!(images(&Choice::default()), json!([own]));
    let all = operator::images::variables()
        .map(|variable| (variable, format!("r.example/o/{}:1", variable.to_lowercase())));
    let choice = Choice {
        images: all.into(),
        allow_multus: false,
    };
    let name = |name: &str| json!({ "name": name, "image": format!("r.example/o/{name}:1") });
    assert_eq!(
        images(&choice),
        json!([
            name("multus_image"),
            name("multus_dynamic_networks_controller_image"),
            name("linux_bridge_image"),
            name("linux_bridge_marker_image"),
            name("kubemacpool_image"),
            name("ovs_cni_image"),
            name("macvtap_cni_image"),
            name("kube_secondary_dns_image"),
            name("core_dns_image"),
            name("kubevirt_ipam_controller_image"),
            own,
        ])
    );
}

#[test]
fn short_name_lacks_registry_tag_and_digest() {
    for (reference, name) in [
        ("weft", "weft"),
        ("localhost:5000/weft", "weft"),
        ("r.example/a/b/weft:v1", "weft"),
        ("r.example:5000/weft:v1@sha256:0123", "weft"),
    ] {
        assert_eq!(short_name(reference), name, "{reference}");
    }
}
