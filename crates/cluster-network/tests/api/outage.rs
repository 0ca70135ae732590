//! An API server that is unreachable for a while.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use axum::http::Request;
use kube::{Client, client::Body};
use serde_json::json;
use stage::{Line, Method};
use tower::service_fn;

use crate::stage::{KUBE_PROXY, MULTUS, OPERATOR, Stage, condition, networks, until};

/// The write that an outage interrupts, of several dozen.
const INTERRUPTED: usize = 12;
/// Deadline of the writes before it.
const DEADLINE: Duration = Duration::from_mins(2);

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
    // Meanwhile other clients change the configuration, and delete an object.
    let network = json!({ "name": "a", "type": "Raw", "rawCNIConfig": "{}" });
    stage.change(
        OPERATOR,
        &json!({ "spec": { "additionalNetworks": [network], "deployKubeProxy": false } }),
    );
    stage.remove(MULTUS);
    stage.there(KUBE_PROXY);
    assert_eq!(stage.get(MULTUS), None, "the operator is cut off");
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
    let line = Arc::new(Line::to(stage.api().url()));
    let (cutting, (sender, cut)) = (Arc::clone(&line), mpsc::channel());
    let _operator =
        stage.operator_through_with_client(&line, move |client| cut_in_a_write(client, cutting, sender));
    stage.configure("Weft");
    cut.recv_timeout(DEADLINE).expect("an outage");
    assert_eq!(stage.get(KUBE_PROXY), None, "the application is interrupted");
    line.mend();
    becomes_available(&stage);
    stage.there(KUBE_PROXY);
    stage.there(MULTUS);
    stage.condition("Degraded", "False : ");
}

/// Returns a client that cuts its line before it sends write [`INTERRUPTED`], and reports the cut.
fn cut_in_a_write(client: Client, line: Arc<Line>, cut: mpsc::Sender<()>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let mut writes = 0;
    let service = service_fn(move |request: Request<Body>| {
        if request.method() != Method::GET {
            writes += 1;
            if writes == INTERRUPTED {
                line.cut();
                cut.send(()).expect("a test");
            }
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
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
