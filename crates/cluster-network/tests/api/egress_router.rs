//! Egress routers, with the rights of the shipped roles.
//!
//! Nothing collects garbage here: the tests delete the objects of a deleted router themselves.

use std::time::Duration;

use cluster_network::egress_router::controller;
use cluster_network::report::Reports;
use serde_json::{Value, json};

use crate::stage::{
    ACCOUNT, CLUSTER_OPERATOR, OPERATOR, Stage, Task, condition, managers, networks, settings,
};

const SHOP: &str = "shop";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/egress-router-cni-deployment";

fn network() -> String {
    format!("{}/egress-router-cni-nad", networks(SHOP))
}

fn path(name: &str) -> String {
    format!("/apis/network.operator.openshift.io/v1/namespaces/{SHOP}/egressrouters/{name}")
}

fn router(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "network.operator.openshift.io/v1", "kind": "EgressRouter",
        "metadata": { "name": name, "namespace": SHOP },
        "spec": {
            "addresses": [{ "ip": address, "gateway": "192.168.3.1" }],
            "redirect": { "redirectRules": [
                { "destinationIP": "203.0.113.26", "port": 8080, "protocol": "TCP", "targetPort": 80 },
            ] },
        },
    })
}

/// A cluster whose default network is another installer's, at rest.
fn start(stage: &Stage, debounce: Duration) -> Task {
    stage.namespace(SHOP, &[]);
    let operator = stage.operator_with_all_that_waits(debounce);
    stage.configure("Calico");
    stage.wait_until_served("/apis/k8s.cni.cncf.io/v1/network-attachment-definitions");
    operator
}

fn config(object: &Value) -> Value {
    let config = object["spec"]["config"].as_str().unwrap_or_default();
    serde_json::from_str(config).expect("JSON")
}

/// Waits for a condition of a router, as `Status Reason: message`.
#[track_caller]
fn wait(stage: &Stage, name: &str, kind: &str, expected: &str) {
    stage.wait_for(&format!("{kind} {expected}"), &path(name), |object| {
        (condition(object?, kind)? == expected).then_some(())
    });
}

// cluster-network#110, cluster-network#112, cluster-network#115-116
#[test]
fn router_has_network_and_pod_that_drift_does_not_change() {
    let stage = Stage::start();
    let begin = stage.mark();
    let _operator = start(&stage, Duration::from_secs(120));
    stage.apply(&router("out", "192.168.3.10/24"));
    let deployment = stage.there(DEPLOYMENT);
    let owner = stage.there(&path("out"));
    // The API server fills the defaults of the definition.
    assert_eq!(owner["spec"]["mode"], "Redirect");
    assert_eq!(
        owner["spec"]["networkInterface"],
        json!({ "macvlan": { "mode": "Bridge" } })
    );
    let network_object = stage.there(&network());
    for object in [&network_object, &deployment] {
        assert_eq!(
            object["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "network.operator.openshift.io/v1", "kind": "EgressRouter", "name": "out",
                "uid": owner["metadata"]["uid"], "controller": true,
            }])
        );
        assert!(managers(object).contains(&"cluster-network-operator/egress_router Apply ".to_owned()));
    }
    let cni = config(&network_object);
    assert_eq!(cni["type"], "egress-router");
    assert_eq!(
        cni["ip"],
        json!({
            "addresses": ["192.168.3.10/24"], "destinations": ["8080 TCP 203.0.113.26 80"], "gateway": "192.168.3.1",
        })
    );
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example/weft:v1");

    wait(
        &stage,
        "out",
        "Available",
        "False NoPodAvailable: Deployment egress-router-cni-deployment has no available pod",
    );
    stage.roll_out(DEPLOYMENT);
    wait(&stage, "out", "Available", "True PodAvailable: ");
    wait(&stage, "out", "Degraded", "False AsExpected: ");

    let quiet = stage.at_rest();
    stage.change(
        &path("out"),
        &json!({ "metadata": { "labels": { "look": "again" } } }),
    );
    stage.at_rest();
    let writes = writes(&stage, quiet);
    assert!(writes.is_empty(), "{writes:#?}");

    stage.change(&network(), &json!({ "spec": { "config": "{}" } }));
    stage.wait_for("the network again", &network(), |object| {
        (config(object?) == cni).then_some(())
    });
    let image = json!([{ "name": "egress-router-cni-pod", "image": "registry.example/other" }]);
    stage.change(
        DEPLOYMENT,
        &json!({ "spec": { "replicas": 2, "template": { "spec": { "containers": image } } } }),
    );
    stage.wait_for("the Deployment again", DEPLOYMENT, |object| {
        let spec = &object?["spec"];
        let image = &spec["template"]["spec"]["containers"][0]["image"];
        (*image == "registry.example/weft:v1" && spec["replicas"] == 1).then_some(())
    });
    // As upstream's Deployment has them, which names no strategy.
    let rolling =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } });
    stage.change(DEPLOYMENT, &json!({ "spec": { "strategy": rolling } }));
    stage.wait_for("the strategy again", DEPLOYMENT, |object| {
        (object?["spec"]["strategy"] == json!({ "type": "Recreate" })).then_some(())
    });
    for object in [network().as_str(), DEPLOYMENT] {
        let uid = stage.there(object)["metadata"]["uid"].clone();
        stage.remove(object);
        stage.wait_for("the object again", object, |object| {
            (object?["metadata"]["uid"] != uid).then_some(())
        });
    }

    let mut rule = owner["spec"]["redirect"]["redirectRules"][0].clone();
    rule["port"] = json!(8081);
    let annotations = |object: &Value| object["spec"]["template"]["metadata"]["annotations"].clone();
    let before = annotations(&stage.there(DEPLOYMENT));
    stage.change(
        &path("out"),
        &json!({ "spec": { "redirect": { "redirectRules": [rule] } } }),
    );
    stage.wait_for("the changed rule", &network(), |object| {
        (config(object?)["ip"]["destinations"] == json!(["8081 TCP 203.0.113.26 80"])).then_some(())
    });
    stage.wait_for("another pod", DEPLOYMENT, |object| {
        (annotations(object?) != before).then_some(())
    });
    let refused: Vec<_> = stage
        .requests_of(ACCOUNT, begin)
        .into_iter()
        .filter(|it| it.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

fn writes(stage: &Stage, mark: u64) -> Vec<stage::Request> {
    let mut requests = stage.requests_of(ACCOUNT, mark);
    requests.retain(|it| !["get", "list", "watch"].contains(&it.verb.as_str()));
    requests
}

// cluster-network#111
#[test]
fn invalid_router_is_reported_and_changes_nothing() {
    let stage = Stage::start();
    let _operator = start(&stage, Duration::from_secs(1));
    let mut wrong = router("out", "192.168.3.10");
    wrong["spec"]["addresses"][0]["gateway"] = json!("2001:db8::1");
    stage.apply(&wrong);
    let bad = "spec.addresses[0].ip \"192.168.3.10\" is not an IP address with a prefix length";
    let cluster = format!("True EgressRouterError: could not reconcile Egress Router shop/out: {bad}");
    stage.condition("Degraded", &cluster);
    stage.wait_for("the condition of the platform", CLUSTER_OPERATOR, |object| {
        (condition(object?, "Degraded")? == cluster).then_some(())
    });
    wait(&stage, "out", "Degraded", &format!("True InvalidSpec: {bad}"));
    wait(&stage, "out", "Available", &format!("False InvalidSpec: {bad}"));
    assert_eq!(stage.get(&network()), None);
    assert_eq!(stage.get(DEPLOYMENT), None);

    stage.apply(&router("out", "192.168.3.10/24"));
    let before = stage.there(DEPLOYMENT);
    stage.condition("Degraded", "False : ");
    wait(&stage, "out", "Degraded", "False AsExpected: ");
    // An invalid change leaves the running pod as it is.
    stage.apply(&wrong);
    stage.condition("Degraded", &cluster);
    stage.at_rest();
    assert_eq!(stage.there(DEPLOYMENT)["spec"], before["spec"]);
    assert_eq!(
        config(&stage.there(&network()))["ip"]["addresses"],
        json!(["192.168.3.10/24"])
    );
    // The failure ends with the router.
    stage.remove(&path("out"));
    stage.condition("Degraded", "False : ");
    assert_eq!(
        condition(&stage.there(OPERATOR), "Degraded").as_deref(),
        Some("False : ")
    );
}

// cluster-network#113
#[test]
fn namespace_has_one_router() {
    let stage = Stage::start();
    let operator = start(&stage, Duration::from_secs(1));
    stage.apply(&router("first", "192.168.3.10/24"));
    stage.there(DEPLOYMENT);
    stage.apply(&router("a-second", "192.168.3.11/24"));
    let taken = "EgressRouter first of this namespace owns egress-router-cni-nad and egress-router-cni-deployment: a \
                 namespace has one egress router at most";
    wait(
        &stage,
        "a-second",
        "Degraded",
        &format!("True NamesTaken: {taken}"),
    );
    stage.condition(
        "Degraded",
        &format!("True EgressRouterError: could not reconcile Egress Router shop/a-second: {taken}"),
    );
    stage.at_rest();
    let addresses = |object: &Value| config(object)["ip"]["addresses"].clone();
    assert_eq!(addresses(&stage.there(&network())), json!(["192.168.3.10/24"]));
    // A restarted operator keeps the owner.
    drop(operator);
    let mark = stage.mark();
    let _operator = stage.operator_with_all_that_waits(Duration::from_secs(1));
    stage.wait_for("a request of the new operator", &path("first"), |_| {
        let requests = stage.requests_of(ACCOUNT, mark);
        requests
            .iter()
            .any(|it| it.uri.contains("egress-router-cni-nad"))
            .then_some(())
    });
    stage.at_rest();
    assert_eq!(addresses(&stage.there(&network())), json!(["192.168.3.10/24"]));

    stage.remove(&path("first"));
    let second = stage.there(&path("a-second"))["metadata"]["uid"].clone();
    for object in [network().as_str(), DEPLOYMENT] {
        let owners = stage.wait_for("the other owner", object, |object| {
            let owners = &object?["metadata"]["ownerReferences"];
            (owners[0]["uid"] == second).then(|| owners.clone())
        });
        assert_eq!(owners.as_array().map(Vec::len), Some(1), "{owners:#}");
    }
    assert_eq!(addresses(&stage.there(&network())), json!(["192.168.3.11/24"]));
    wait(&stage, "a-second", "Degraded", "False AsExpected: ");
    stage.condition("Degraded", "False : ");
}

/// The example of the user guide.
fn documented() -> Value {
    let guide = include_str!("../../../../docs/cluster-network.md");
    let examples = guide.split("```yaml\n").skip(1);
    let mut examples = examples.filter_map(|rest| rest.split("```").next());
    let example = examples.find(|example| example.contains("kind: EgressRouter"));
    serde_saphyr::from_str(example.expect("an example")).expect("YAML")
}

// cluster-network#111
#[test]
fn nothing_is_applied_by_halves_without_the_definition_of_networks() {
    let stage = Stage::start();
    stage.namespace(SHOP, &[]);
    let _controller = stage.task_as(ACCOUNT, |client, shutdown| async move {
        controller::run(client, &settings(), &Reports::default(), &shutdown).await;
    });
    stage.apply(&documented());
    let failure = stage.wait_for("a failure", &path("payments"), |object| {
        condition(object?, "Degraded").filter(|it| it.starts_with("True ApplyFailed: "))
    });
    assert!(failure.contains("NetworkAttachmentDefinition"), "{failure}");
    assert_eq!(stage.get(DEPLOYMENT), None);
    let definition = api::net_attach_def::crd().expect("a definition");
    stage.apply(&serde_json::to_value(definition).expect("JSON"));
    stage.there(DEPLOYMENT);
    wait(&stage, "payments", "Degraded", "False AsExpected: ");
    // The watch of networks has begun: drift is repaired.
    stage.remove(&network());
    stage.there(&network());
}
