//! An API server that is unreachable for a while.

use serde_json::json;
use stage::Line;

use crate::stage::{ACCOUNT, KUBE_PROXY, MULTUS, OPERATOR, Stage, condition, networks, until};

// cluster-network#204
#[test]
fn configuration_of_an_outage_is_applied_after_it() {
    let stage = Stage::start();
    let line = Line::to(stage.api().url());
    let _operator = stage.operator_through(&line);
    stage.configure("Calico");
    becomes_available(&stage);
    let multus = stage.there(MULTUS)["metadata"]["uid"].clone();
    stage.at_rest();

    line.cut();
    let mark = stage.mark();
    // Meanwhile other clients change the configuration, and delete an object.
    let network = json!({ "name": "a", "type": "Raw", "rawCNIConfig": "{}" });
    stage.change(
        OPERATOR,
        &json!({ "spec": { "additionalNetworks": [network], "deployKubeProxy": false } }),
    );
    stage.remove(MULTUS);
    stage.there(KUBE_PROXY);
    assert_eq!(stage.get(MULTUS), None, "the operator is cut off");
    let requests = stage.requests_of(ACCOUNT, mark);
    assert!(requests.is_empty(), "{requests:#?}");
    line.mend();

    stage.there(&format!("{}/a", networks("default")));
    stage.gone(KUBE_PROXY);
    assert_ne!(stage.there(MULTUS)["metadata"]["uid"], multus);
    stage.condition("Degraded", "False : ");
    stage.at_rest();
}

// cluster-network#204
#[test]
fn application_that_an_outage_interrupts_is_completed_after_it() {
    let stage = Stage::start();
    let line = Line::to(stage.api().url());
    let _operator = stage.operator_through(&line);
    stage.configure("Weft");
    // One of the first objects: the others are on the way.
    stage.there("/api/v1/namespaces/openshift-multus");
    line.cut();
    line.mend();
    becomes_available(&stage);
    stage.there(KUBE_PROXY);
    stage.there(MULTUS);
    stage.condition("Degraded", "False : ");
}

/// Reports the pods of all workloads as available until the operator has applied all of them.
fn becomes_available(stage: &Stage) {
    until("the network to be available", || {
        stage.roll_out_all();
        let operator = stage.get(OPERATOR);
        let available = operator.and_then(|operator| condition(&operator, "Available"));
        match available.as_deref() {
            Some("True : ") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}
