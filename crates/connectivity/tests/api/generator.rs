//! The controller that generates checks.

use connectivity::generator::controller;
use kube_kit::queue::Queue;
use serde_json::{Value, json};

use crate::stage::{CONFIGS, NODE, NS, OPERATORS, POD, Stage, Task, checks, pod, services, until};

const ACCOUNT: &str = "system:serviceaccount:openshift-network-operator:cluster-network-operator";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/openshift-network-diagnostics/endpointslices";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podnetworkconnectivitychecks.controlplane.\
                   operator.openshift.io";
const ROLES: &str = r#"[
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"generator"},"rules":[
    {"apiGroups":["controlplane.operator.openshift.io"],"resources":["podnetworkconnectivitychecks"],
     "verbs":["get","list","watch","create","patch","delete"]},
    {"apiGroups":[""],"resources":["pods","services"],"verbs":["list","watch"]},
    {"apiGroups":[""],"resources":["nodes"],"verbs":["get"]},
    {"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]},
    {"apiGroups":["apiextensions.k8s.io"],"resources":["customresourcedefinitions"],"verbs":["list","watch","create"]},
    {"apiGroups":["config.openshift.io"],"resources":["networks"],"verbs":["list","watch","patch"]},
    {"apiGroups":["config.openshift.io"],"resources":["infrastructures","clusterversions"],"verbs":["list","watch"]},
    {"apiGroups":["operator.openshift.io"],"resources":["networks"],"verbs":["list","watch"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"generator"},
   "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"generator"},
   "subjects":[{"kind":"ServiceAccount","name":"cluster-network-operator","namespace":"openshift-network-operator"}]}]"#;

fn start(stage: &Stage) -> Task {
    let roles: Vec<Value> = serde_json::from_str(ROLES).expect("JSON");
    for role in &roles {
        stage.apply(role);
    }
    let config = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
        "spec": {
            "networkType": "Weft", "serviceNetwork": ["10.96.0.0/12"],
            "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }],
        },
    });
    stage.create(CONFIGS, &config);
    stage.task_as(ACCOUNT, |client, shutdown| async move {
        controller::run(client, Queue::with_longest(controller::LONGEST), &shutdown).await;
    })
}

/// Creates the service of targets, with one endpoint.
fn target(stage: &Stage, address: &str, node: &str) {
    let service = json!({
        "metadata": { "name": "network-check-target" },
        "spec": { "selector": { "app": "network-check-target" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    stage.create(&services(), &service);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "target", "labels": { "kubernetes.io/service-name": "network-check-target" },
        },
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [address], "nodeName": node, "conditions": { "ready": true } }],
    });
    stage.create(SLICES, &slice);
}

fn condition(stage: &Stage) -> Value {
    let config = stage.get(&format!("{CONFIGS}/cluster")).unwrap_or_default();
    config["status"]["conditions"][0].clone()
}

#[track_caller]
fn wait_for_reason(stage: &Stage, reason: &str) -> Value {
    until(reason, || {
        let condition = condition(stage);
        if condition["reason"] == reason {
            Ok(condition)
        } else {
            Err(format!("{condition:#}"))
        }
    })
}

const TARGET: &str = "network-check-source-node1-to-network-check-target-node2";

// cluster-network#185
#[test]
fn checks_follow_sources_and_targets() {
    let stage = Stage::start();
    stage.delete(CRD);
    until("the end of the definition", || match stage.get(CRD) {
        None => Ok(()),
        Some(_) => Err("still there"),
    });
    let mark = stage.mark();
    let _task = start(&stage);
    stage.wait_for("the definition again", CRD, |crd| crd.map(|_| ()));
    let condition = wait_for_reason(&stage, "NoSources");
    assert_eq!(condition["type"], "NetworkDiagnosticsAvailable");
    assert_eq!(condition["status"], "False");
    assert_eq!(condition["message"], "No source pods available");

    let node = stage.source();
    assert_eq!(
        wait_for_reason(&stage, "NoTargets")["message"],
        "No targets available"
    );
    target(&stage, "10.244.1.7", "node2.example.com");
    let check = stage.wait_for(TARGET, &format!("{}/{TARGET}", checks()), |check| {
        Some(check?.clone())
    });
    assert_eq!(
        check["spec"],
        json!({ "sourcePod": POD, "targetEndpoint": "10.244.1.7:8080" })
    );
    let labels = json!({ "networking.openshift.io/managedBy": "oc-connectivity-check-controller" });
    assert_eq!(check["metadata"]["labels"], labels);
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"] }]);
    assert_eq!(check["metadata"]["ownerReferences"], owner);
    assert_eq!(
        check["metadata"]["managedFields"][0]["manager"],
        "ConnectivityCheckController"
    );
    assert_eq!(check["metadata"]["managedFields"][0]["operation"], "Apply");
    assert_eq!(wait_for_reason(&stage, "AsExpected")["status"], "True");
    let service = "network-check-source-node1-to-network-check-target-service-cluster";
    let endpoint = stage.wait_for(service, &format!("{}/{service}", checks()), |check| {
        Some(check?["spec"]["targetEndpoint"].clone())
    });
    assert_eq!(endpoint, "network-check-target:80");

    // An administrator changes one check and deletes another.
    let path = format!("{}/{TARGET}", checks());
    stage
        .patch(&path, &json!({ "spec": { "targetEndpoint": "h:1" } }))
        .accepted();
    stage.wait_for("the endpoint again", &path, |check| {
        (check?["spec"]["targetEndpoint"] == "10.244.1.7:8080").then_some(())
    });
    stage.delete(&format!("{}/{service}", checks()));
    stage.wait_for(service, &format!("{}/{service}", checks()), |check| {
        check.map(|_| ())
    });

    // Another node with the same name replaces the node. The garbage collector deletes the checks of the former one.
    stage.delete(&format!("/api/v1/nodes/{NODE}"));
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    let node = stage.create("/api/v1/nodes", &node);
    stage.delete(&path);
    let owner = stage.wait_for("the check again", &path, |check| {
        Some(check?["metadata"]["ownerReferences"][0]["uid"].clone())
    });
    assert_eq!(owner, node["metadata"]["uid"]);

    // Another pod on the same node becomes the source.
    stage.delete(&format!("/api/v1/namespaces/{NS}/pods/{POD}"));
    stage.create(
        &format!("/api/v1/namespaces/{NS}/pods"),
        &pod("source-2", "network-check-source", NODE),
    );
    stage.wait_for("the other pod", &path, |check| {
        (check?["spec"]["sourcePod"] == "source-2").then_some(())
    });

    stage.delete(&format!("{SLICES}/target"));
    stage.wait_for("the end of a check", &path, |check| check.is_none().then_some(()));
    wait_for_reason(&stage, "NoTargets");
    let refused: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| it.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn node_of_a_missing_check_is_read_once_and_no_other() {
    const OTHER: &str = "node3.example.com";
    let stage = Stage::start();
    stage.source();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": OTHER } });
    stage.create("/api/v1/nodes", &node);
    let pods = format!("/api/v1/namespaces/{NS}/pods");
    stage.create(&pods, &pod("source-2", "network-check-source", OTHER));
    target(&stage, "10.244.1.7", "node2.example.com");
    let mut mark = stage.mark();
    let mut read = || {
        let requests = stage.requests_of(ACCOUNT, mark).into_iter();
        mark = stage.mark();
        let nodes = requests.filter_map(|it| Some(it.uri.strip_prefix("/api/v1/nodes/")?.to_owned()));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort();
        nodes
    };
    let _task = start(&stage);
    wait_for_reason(&stage, "AsExpected");
    assert_eq!(read(), [NODE, OTHER]);
    let check = "network-check-source-node3-to-network-check-target-node2";
    let path = format!("{}/{check}", checks());
    stage.delete(&path);
    stage.wait_for("the check again", &path, |check| check.map(|_| ()));
    assert_eq!(read(), [OTHER]);
}

#[test]
fn controller_at_rest_writes_nothing_and_deletes_all_checks_when_disabled() {
    let stage = Stage::start();
    stage.source();
    target(&stage, "10.244.1.7", "node2.example.com");
    let foreign = "foreign-check";
    stage.check(foreign, POD, "h:1");
    let _task = start(&stage);
    wait_for_reason(&stage, "AsExpected");
    let all = stage.list(&checks()).len();
    let mark = stage.mark();
    // An event without an effect, and then one with an effect: the controller has processed the first event when the
    // second takes effect.
    let source = format!("/api/v1/namespaces/{NS}/pods/{POD}");
    stage
        .patch(&source, &json!({ "metadata": { "labels": { "x": "y" } } }))
        .accepted();
    let operator = json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
        "spec": { "unsupportedConfigOverrides": { "operator": { "enableConnectivityCheckController": "False" } } },
    });
    stage.create(OPERATORS, &operator);
    until("only the foreign check", || {
        let checks = stage.list(&checks());
        if checks.len() == 1 {
            Ok(())
        } else {
            Err(format!("{checks:#?}"))
        }
    });
    assert_eq!(stage.list(&checks())[0]["metadata"]["name"], foreign);
    let writes: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| !["get", "list"].contains(&it.verb.as_str()) && it.verb != "delete")
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert!(all > 2, "{all} checks");
}
