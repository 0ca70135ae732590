//! Both configurations: the merge, rejections, and unsafe changes.

use std::time::Duration;

use cluster_network::settings::Settings;
use serde_json::json;

use crate::stage::{
    CLUSTER, CLUSTER_OPERATOR, KUBE_PROXY, MULTUS, OPERATOR, POD_NETWORK, RECORD, Stage, condition, managers,
    settings,
};

// cluster-network#9
#[test]
fn fields_of_the_cluster_configuration_are_reverted_and_others_stay() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    stage.change(
        OPERATOR,
        &json!({ "spec": { "clusterNetwork": [{ "cidr": "10.9.0.0/16" }] } }),
    );
    stage.wait_for("the block of pods", OPERATOR, |object| {
        (object?["spec"]["clusterNetwork"] == json!([{ "cidr": "10.244.0.0/16" }])).then_some(())
    });
    stage.change(
        &format!("{OPERATOR}?fieldManager=user"),
        &json!({
            "spec": {
                "managementState": "Unmanaged", "disableNetworkDiagnostics": true,
                "migration": { "mtu": { "machine": { "to": 1500 } } },
            },
        }),
    );
    stage.change(
        OPERATOR,
        &json!({ "spec": { "clusterNetwork": [{ "cidr": "10.8.0.0/16" }] } }),
    );
    let object = stage.wait_for("the block of pods", OPERATOR, |object| {
        let reverted = object?["spec"]["clusterNetwork"] == json!([{ "cidr": "10.244.0.0/16" }]);
        reverted.then(|| object.cloned()).flatten()
    });
    assert_eq!(object["spec"]["managementState"], "Unmanaged");
    assert_eq!(object["spec"]["disableNetworkDiagnostics"], true);
    let entries = object["metadata"]["managedFields"].as_array().expect("managers");
    let owners: Vec<_> = entries
        .iter()
        .filter(|entry| entry["fieldsV1"]["f:spec"].get("f:migration").is_some())
        .collect();
    assert_eq!(owners.len(), 1, "{:#?}", managers(&object));
    assert_eq!(owners[0]["manager"], "user");
}

// cluster-network#10
#[test]
fn wrong_cluster_configuration_leaves_the_operator_configuration_alone() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    let before = stage.there(OPERATOR)["spec"].clone();
    stage.change(CLUSTER, &json!({ "spec": { "serviceNetwork": ["1q"] } }));
    stage.condition(
        "Degraded",
        "True InvalidClusterConfig: The cluster configuration is invalid (could not parse spec.serviceNetwork 1q: invalid \
         CIDR address: 1q). Use 'oc edit network.config.openshift.io cluster' to fix.",
    );
    assert_eq!(stage.there(OPERATOR)["spec"], before);
    stage.configure("Calico");
    stage.condition("Degraded", "False : ");
}

// cluster-network#32
#[test]
fn unsafe_change_is_applied_when_it_is_forced() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    let multus = stage.there(MULTUS)["metadata"]["resourceVersion"].clone();
    let record = stage.there(RECORD)["data"].clone();
    stage.change(OPERATOR, &json!({ "spec": { "disableMultiNetwork": true } }));
    stage.condition(
        "Degraded",
        "True InvalidOperatorConfig: Not applying unsafe configuration change: invalid configuration: [cannot change \
         DisableMultiNetwork]. Use 'oc edit network.operator.openshift.io cluster' to undo the change.",
    );
    stage.at_rest();
    assert_eq!(stage.there(MULTUS)["metadata"]["resourceVersion"], multus);
    assert_eq!(stage.there(RECORD)["data"], record);
    stage.remove(RECORD);
    stage.gone(MULTUS);
    let record = stage.there(RECORD)["data"]["applied"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(record.contains(r#""disableMultiNetwork":true"#), "{record}");
    stage.condition("Degraded", "False : ");
}

#[test]
fn wrong_operator_configuration_stops_the_pass() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.change(
        OPERATOR,
        &json!({ "spec": { "kubeProxyConfig": { "bindAddress": "abc" } } }),
    );
    stage.condition(
        "Degraded",
        "True InvalidOperatorConfig: The operator configuration is invalid (invalid configuration: [BindAddress must be a \
         valid IP address]). Use 'oc edit network.operator.openshift.io cluster' to fix.",
    );
}

#[test]
fn deleted_operator_configuration_is_made_anew() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    let before = stage.there(OPERATOR)["metadata"]["uid"].clone();
    stage.there(MULTUS);
    stage.remove(OPERATOR);
    stage.wait_for("another one", OPERATOR, |object| {
        (object?["metadata"]["uid"] != before && object?["spec"]["defaultNetwork"]["type"] == "Calico")
            .then_some(())
    });
}

#[test]
fn missing_image_of_kube_proxy_is_reported_and_the_other_parts_are_applied() {
    let stage = Stage::start();
    let without = || Settings {
        kube_proxy_image: None,
        ..settings()
    };
    let operator = stage.operator_of(without(), Duration::ZERO);
    stage.configure("Weft");
    let expected = "True RenderError: kube-proxy is to be deployed, and its image is not known: set environment variable \
                    KUBE_PROXY_IMAGE of the operator, or deployKubeProxy to false";
    stage.condition("Degraded", expected);
    stage.wait_for(expected, CLUSTER_OPERATOR, |object| {
        (condition(object?, "Degraded")? == expected).then_some(())
    });
    for path in [MULTUS, POD_NETWORK] {
        stage.there(path);
    }
    stage.at_rest();
    assert_eq!(stage.get(KUBE_PROXY), None);
    // An operator with the image deploys it, and one without the image leaves it alone.
    drop(operator);
    let operator = stage.operator_of(settings(), Duration::ZERO);
    stage.condition("Degraded", "False : ");
    let before = stage.there(KUBE_PROXY)["metadata"]["resourceVersion"].clone();
    drop(operator);
    let _operator = stage.operator_of(without(), Duration::ZERO);
    stage.condition("Degraded", expected);
    stage.at_rest();
    assert_eq!(stage.there(KUBE_PROXY)["metadata"]["resourceVersion"], before);
    // A cluster that has its own kube-proxy needs no image.
    stage.change(OPERATOR, &json!({ "spec": { "deployKubeProxy": false } }));
    stage.condition("Degraded", "False : ");
    stage.gone(KUBE_PROXY);
}
