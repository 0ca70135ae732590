//! The controllers beside the main loop, with the rights of the shipped roles.

use cluster_network::beside;
use cluster_network::report::Reports;
use serde_json::{Value, json};

use crate::stage::{ACCOUNT, CLUSTER, Stage, settings};

#[test]
fn parts_beside_the_loop_work_with_the_shipped_rights() {
    let stage = Stage::start();
    stage.configure("Weft");
    for namespace in [
        "openshift-config-managed",
        "openshift-network-diagnostics",
        "openshift-host-network",
    ] {
        stage.namespace(namespace, &[]);
    }
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a".to_owned()]).expect("names");
    let bundle = params.self_signed(&key).expect("a certificate").pem();
    let map = |namespace: &str, name: &str, labels: Value, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "data": { "ca-bundle.crt": text },
        })
    };
    stage.apply(&map(
        "openshift-config-managed",
        "trusted-ca-bundle",
        json!({}),
        &bundle,
    ));
    let labels = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    stage.apply(&map("default", "wants", labels, ""));
    let mark = stage.mark();
    let _task = stage.task_as(ACCOUNT, |client, shutdown| async move {
        beside::run(&client, &settings(), &Reports::default(), &shutdown).await;
    });
    stage.wait_for(
        "the bundle",
        "/api/v1/namespaces/default/configmaps/wants",
        |map| (map?["data"]["ca-bundle.crt"] == bundle.as_str()).then_some(()),
    );
    stage.wait_for("the condition", CLUSTER, |config| {
        let conditions = config?["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .any(|it| it["reason"] == "NoSources")
            .then_some(())
    });
    let node = stage.create(
        "/api/v1/nodes",
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } }),
    );
    stage.create(
        "/api/v1/namespaces/openshift-network-diagnostics/pods",
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "source", "labels": { "app": "network-check-source" } },
            "spec": { "nodeName": "node1", "containers": [{ "name": "main", "image": "registry.example/none" }] },
        }),
    );
    let check = "/apis/controlplane.operator.openshift.io/v1alpha1/namespaces/openshift-network-diagnostics/\
                 podnetworkconnectivitychecks/network-check-source-node1-to-kubernetes-default-service-cluster-0";
    let owner = stage.wait_for("a check", check, |check| {
        Some(check?["metadata"]["ownerReferences"][0]["uid"].clone())
    });
    assert_eq!(owner, node["metadata"]["uid"]);
    let refused: Vec<_> = stage
        .entries_since(mark)
        .into_iter()
        .filter(|entry| {
            entry["impersonatedUser"]["username"] == ACCOUNT && entry["responseStatus"]["code"] == 403
        })
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
