//! Applied objects: apply, repair of drift, and prune.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{
    ACCOUNT, CLUSTER, CLUSTER_OPERATOR, KUBE_PROXY, MULTUS, OPERATOR, POD_NETWORK, RECORD, Stage, condition,
    managers, networks, until,
};

/// Limit of repairs that events of the watches cause, on a slow machine. Without events, an operator at rest looks again
/// after 30 seconds at the earliest.
const EVENT: Duration = Duration::from_secs(20);

#[test]
fn labels_on_objects_of_tenants_have_no_effect() {
    let stage = Stage::start();
    stage.namespace("tenant", &[]);
    let account = "/api/v1/namespaces/tenant/serviceaccounts";
    stage.create(
        account,
        &json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "mine", "labels": { "networkoperator.openshift.io/part": "Multus" } },
        }),
    );
    stage.create(
        "/apis/apps/v1/namespaces/tenant/daemonsets",
        &json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": "mine", "labels": {
                "k8s-app": "kube-proxy", "networkoperator.openshift.io/part": "Multus",
                "networkoperator.openshift.io/generates-operator-status": "stand-alone",
            } },
            "spec": {
                "selector": { "matchLabels": { "app": "mine" } },
                "template": {
                    "metadata": { "labels": { "app": "mine" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] },
                },
            },
        }),
    );
    let mark = stage.mark();
    let _operator = stage.operator_that_waits(Duration::ZERO);
    stage.configure("Weft");
    for path in [MULTUS, POD_NETWORK, KUBE_PROXY] {
        stage.roll_out(path);
    }
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    let daemon_set = "/apis/apps/v1/namespaces/tenant/daemonsets/mine";
    stage.report(
        daemon_set,
        &json!({ "desiredNumberScheduled": 2, "numberUnavailable": 2 }),
    );
    stage.at_rest();
    for kind in ["Degraded", "Progressing"] {
        stage.condition(kind, "False : ");
    }
    let operator = stage.there(CLUSTER_OPERATOR);
    let related = operator["status"]["relatedObjects"].as_array().expect("objects");
    assert!(
        related.iter().all(|it| it["namespace"] != "tenant"),
        "{related:?}"
    );
    let requests = stage.requests_of(ACCOUNT, mark);
    assert!(
        requests.iter().all(|it| !it.uri.contains("/tenant/")),
        "{requests:?}"
    );
}

#[test]
fn plain_cluster_gets_its_network() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Weft");
    for path in [MULTUS, POD_NETWORK, KUBE_PROXY] {
        let workload = stage.there(path);
        let owner = &workload["metadata"]["ownerReferences"][0];
        let operator = stage.there(OPERATOR);
        assert_eq!(owner["apiVersion"], "operator.openshift.io/v1");
        assert_eq!(
            (&owner["kind"], &owner["name"]),
            (&json!("Network"), &json!("cluster"))
        );
        assert_eq!(owner["uid"], operator["metadata"]["uid"]);
        assert_eq!(
            (&owner["controller"], &owner["blockOwnerDeletion"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(
            managers(&workload),
            ["cluster-network-operator/operconfig Apply "]
        );
        let annotations = &workload["metadata"]["annotations"];
        assert_eq!(annotations["release.openshift.io/version"], "1.2.3");
    }
    let config = stage.there("/api/v1/namespaces/openshift-kube-proxy/configmaps/proxy-config");
    let file = config["data"]["kube-proxy-config.yaml"].as_str().expect("a file");
    assert!(file.contains("clusterCIDR: 10.244.0.0/16"), "{file}");
    let pod_network = stage.there(POD_NETWORK);
    let container = &pod_network["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["--cluster-cidr", "10.244.0.0/16"]));
    assert_eq!(container["image"], "registry.example/weft:v1");
    let variables = container["env"].as_array().expect("variables");
    assert!(
        variables.contains(&json!({ "name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.1" })),
        "{variables:?}"
    );

    let record = stage.there(RECORD);
    let applied: serde_json::Value =
        serde_json::from_str(record["data"]["applied"].as_str().expect("text")).expect("JSON");
    assert_eq!(applied["defaultNetwork"]["type"], "Weft");
    assert_eq!(applied["deployKubeProxy"], true);

    let cluster = stage.wait_for("the status of the cluster configuration", CLUSTER, |object| {
        object
            .filter(|object| object["status"]["networkType"] == "Weft")
            .cloned()
    });
    assert_eq!(
        cluster["status"]["clusterNetwork"],
        json!([{ "cidr": "10.244.0.0/16" }])
    );
    assert_eq!(cluster["status"]["serviceNetwork"], json!(["10.96.0.0/12"]));
}

#[test]
fn operator_at_rest_sends_no_request_and_repairs_drift() {
    let stage = Stage::start();
    let operator = stage.operator();
    stage.configure("Weft");
    stage.there(KUBE_PROXY);
    let mark = stage.at_rest();
    let begin = Instant::now();
    stage.remove(MULTUS);
    stage.there(MULTUS);
    stage.change(
        POD_NETWORK,
        &json!({ "spec": { "template": { "spec": { "hostNetwork": false } } } }),
    );
    stage.wait_for("the host's network", POD_NETWORK, |object| {
        (object?["spec"]["template"]["spec"]["hostNetwork"] == true).then_some(())
    });
    assert!(begin.elapsed() < EVENT, "{:?}", begin.elapsed());
    stage.at_rest();
    let writes: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| it.verb != "get")
        .collect();
    let of_objects: Vec<_> = writes
        .iter()
        .filter(|it| it.uri.contains("/daemonsets/"))
        .collect();
    assert_eq!(of_objects.len(), 2, "{writes:#?}");
    // A restarted operator finds no difference.
    let before = stage.there(MULTUS)["metadata"]["resourceVersion"].clone();
    drop(operator);
    let _operator = stage.operator();
    stage.at_rest();
    assert_eq!(stage.there(MULTUS)["metadata"]["resourceVersion"], before);
}

// cluster-network#60
#[test]
fn fields_of_others_stay_and_ours_are_forced_back() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Weft");
    stage.there(KUBE_PROXY);
    stage.change(
        MULTUS,
        &json!({
            "metadata": { "annotations": { "mine": "kept" } },
            "spec": { "minReadySeconds": 7, "template": { "spec": { "priorityClassName": "system-cluster-critical" } } },
        }),
    );
    let multus = stage.wait_for("our priority", MULTUS, |object| {
        let priority = &object?["spec"]["template"]["spec"]["priorityClassName"];
        (priority == "system-node-critical")
            .then(|| object.cloned())
            .flatten()
    });
    assert_eq!(multus["metadata"]["annotations"]["mine"], "kept");
    assert_eq!(multus["spec"]["minReadySeconds"], 7);
    stage.at_rest();
    assert_eq!(stage.there(MULTUS)["spec"]["minReadySeconds"], 7);
}

#[test]
fn object_that_is_not_rendered_any_more_is_pruned() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(KUBE_PROXY);
    assert!(stage.get(POD_NETWORK).is_none());
    stage.change(OPERATOR, &json!({ "spec": { "deployKubeProxy": false } }));
    stage.gone(KUBE_PROXY);
    stage.there(MULTUS);
    let source = "/apis/apps/v1/namespaces/openshift-network-diagnostics/deployments/network-check-source";
    stage.there(source);
    stage.change(
        CLUSTER,
        &json!({ "spec": { "networkDiagnostics": { "mode": "Disabled" } } }),
    );
    stage.gone(source);
    let related = stage.wait_for("related objects without kube-proxy", CLUSTER_OPERATOR, |object| {
        let related = object?["status"]["relatedObjects"].as_array()?.clone();
        let is_gone = !related.iter().any(|it| it["namespace"] == "openshift-kube-proxy");
        is_gone.then_some(related)
    });
    let multus = json!({ "group": "apps", "resource": "daemonsets", "namespace": "openshift-multus", "name": "multus" });
    assert!(related.contains(&multus), "{related:#?}");
}

#[test]
fn one_wrong_network_stops_nothing_else() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    let raw = |name: &str, config: &str| json!({ "name": name, "type": "Raw", "rawCNIConfig": config });
    let set = |networks: serde_json::Value| {
        stage.change(OPERATOR, &json!({ "spec": { "additionalNetworks": networks } }));
    };
    set(json!([raw("a", r#"{"type":"a"}"#), raw("b", r#"{"type":"b"}"#)]));
    let path = |name: &str| format!("{}/{name}", networks("default"));
    for (name, config) in [("a", r#"{"type":"a"}"#), ("b", r#"{"type":"b"}"#)] {
        assert_eq!(stage.there(&path(name))["spec"]["config"], config);
    }
    // A network becomes invalid: its object stays unchanged, and the other networks are applied.
    set(json!([raw("a", "wrong"), raw("c", r#"{"type":"c"}"#)]));
    stage.there(&path("c"));
    stage.gone(&path("b"));
    assert_eq!(stage.there(&path("a"))["spec"]["config"], r#"{"type":"a"}"#);
    // A network in a missing namespace does not block the others.
    let mut homeless = raw("d", r#"{"type":"d"}"#);
    homeless["namespace"] = json!("nowhere");
    set(json!([homeless, raw("e", r#"{"type":"e"}"#)]));
    stage.there(&path("e"));
    stage.gone(&path("a"));
    stage.namespace("nowhere", &[]);
    until("the network of a namespace that came later", || {
        let found = stage.get(&format!("{}/d", networks("nowhere")));
        found.map(drop).ok_or("there is none")
    });
}

// cluster-network#52
#[test]
fn removed_network_is_pruned_alone_and_a_missing_namespace_is_reported() {
    let stage = Stage::start();
    let wait = Duration::from_secs(5);
    let _operator = stage.operator_that_waits(wait);
    stage.configure("Calico");
    stage.there(MULTUS);
    let raw = |name: &str, namespace: &str| json!({ "name": name, "namespace": namespace, "type": "Raw", "rawCNIConfig": "{}" });
    let set = |networks: serde_json::Value| {
        stage.change(OPERATOR, &json!({ "spec": { "additionalNetworks": networks } }));
    };
    set(json!([raw("a", ""), raw("b", "")]));
    let path = |name: &str| format!("{}/{name}", networks("default"));
    stage.there(&path("a"));
    stage.there(&path("b"));
    set(json!([raw("b", "")]));
    stage.gone(&path("a"));
    stage.there(&path("b"));
    let begin = Instant::now();
    set(json!([raw("lost", "nowhere"), raw("b", ""), raw("c", "")]));
    stage.there(&path("c"));
    let expected = "True ApplyOperatorConfig: Error while updating operator configuration: could not apply \
                    (k8s.cni.cncf.io/v1, Kind=NetworkAttachmentDefinition) nowhere/lost: namespaces \"nowhere\" not \
                    found: Namespace error for networkattachment definition, consider possible solutions: (1) Edit config \
                    files to include existing namespace (2) Create non-existent namespace (3) Delete erroneous \
                    network-attachment-definition";
    let is_reported = |object: Option<&serde_json::Value>| {
        condition(object?, "Degraded").filter(|it| it.starts_with("True"))
    };
    let reported = stage.wait_for("Degraded", OPERATOR, is_reported);
    assert_eq!(reported, expected);
    // The condition follows only after the debounce time. A unit test proves the default of two minutes.
    assert!(begin.elapsed() >= wait, "{:?}", begin.elapsed());
}
