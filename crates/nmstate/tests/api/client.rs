//! The handler in client mode, which does everything once, and the whole handler.

use std::sync::mpsc;

use axum::http::Method;
use serde_json::{Value, json};
use weft_nmstate::handler;

use crate::fixture::{Kind, Stage, pipeline, settings, shared, status_of};
use crate::host::{self, Host};

const NODE: &str = "node01";

fn policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": name },
        "spec": spec,
    })
}

fn mtu(mtu: u32) -> Value {
    json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu }] })
}

/// Reports and applies once; whether everything was applied.
fn once(stage: &Stage, host: &Host) -> bool {
    let (done, outcome) = mpsc::channel();
    let host = host.clone();
    let task = stage.task(move |client, _| async move {
        let mut settings = settings();
        settings.max_retries = 2;
        let shared = shared(NODE, &host, client, settings);
        let pipeline = pipeline(&shared);
        let applied = handler::work_once(shared, pipeline).await.expect("it works");
        done.send(applied).expect("a test");
    });
    let applied = outcome.recv().expect("an outcome");
    drop(task);
    applied
}

fn reported_mtu(stage: &Stage) -> Value {
    let state = stage.get(Kind::State, NODE).expect("a report");
    let interfaces = state["status"]["currentState"]["interfaces"].as_array();
    let eth1 = interfaces
        .into_iter()
        .flatten()
        .find(|interface| interface["name"] == "eth1");
    eth1.map(|eth1| eth1["mtu"].clone()).unwrap_or_default()
}

// nmstate#94
#[test]
fn client_mode_reports_and_applies_once() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    assert!(once(&stage, &host), "nothing is to be applied");
    assert_eq!(reported_mtu(&stage), 1500);
    assert!(host.applied().is_empty());

    stage.create(
        Kind::Policy,
        &policy("larger", &json!({ "desiredState": mtu(4000) })),
    );
    let elsewhere = json!({ "nodeSelector": { "zone": "b" }, "desiredState": mtu(1280) });
    stage.create(Kind::Policy, &policy("elsewhere", &elsewhere));
    assert!(once(&stage, &host), "it is applied");
    assert_eq!(host.applied(), [mtu(4000)]);
    assert_eq!(reported_mtu(&stage), 4000);
    let enactment = stage.get(Kind::Enactment, "node01.larger").expect("an enactment");
    assert_eq!(status_of(&enactment, "Available"), "True");
    let larger = stage.get(Kind::Policy, "larger").expect("a policy");
    assert_eq!(status_of(&larger, "Available"), "True");
    assert!(stage.get(Kind::Enactment, "node01.elsewhere").is_none());

    // The desired state in the node's own object is applied too.
    let spec = json!({ "managed": true, "desiredState": mtu(4096) });
    stage
        .patch(Kind::State, NODE, &json!({ "spec": spec }))
        .accepted();
    stage.delete(Kind::Policy, "larger");
    assert!(once(&stage, &host), "it is applied");
    assert_eq!(reported_mtu(&stage), 4096);

    host.refuse(host::error("PluginFailure", "no"));
    stage.create(
        Kind::Policy,
        &policy("fails", &json!({ "desiredState": mtu(9000) })),
    );
    assert!(!once(&stage, &host), "it could not be applied");
    let enactment = stage.get(Kind::Enactment, "node01.fails").expect("an enactment");
    assert_eq!(status_of(&enactment, "Failing"), "True");
    let fails = stage.get(Kind::Policy, "fails").expect("a policy");
    assert_eq!(status_of(&fails, "Degraded"), "True");
}

#[test]
fn client_mode_fails_without_the_status_of_a_policy() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    stage.create(
        Kind::Policy,
        &policy("larger", &json!({ "desiredState": mtu(4000) })),
    );
    stage.forbid_pods();
    assert!(!once(&stage, &host), "the status could not be written");
    assert_eq!(host.applied(), [mtu(4000)]);
    let larger = stage.get(Kind::Policy, "larger").expect("a policy");
    assert_eq!(status_of(&larger, "Available"), "Unknown");
}

// nmstate#5; nmstate#67, its application
#[test]
fn applied_policy_is_reported_within_seconds() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    // The change causes no event, and the next read at the interval is minutes away.
    let _handler = stage.handler(NODE, &host.unheard());
    stage.wait_until_reported(NODE);
    // As users of the former version wrote it.
    let mut larger = policy("larger", &json!({ "desiredState": mtu(4000) }));
    larger["apiVersion"] = json!("nmstate.io/v1beta1");
    let path = "/apis/nmstate.io/v1beta1/nodenetworkconfigurationpolicies";
    stage.send(Method::POST, path, Some(&larger)).accepted();
    stage.wait_until_true(Kind::Policy, "larger", "Available");
    stage.wait_for("the report", (Kind::State, NODE), |_| {
        (reported_mtu(&stage) == 4000).then_some(())
    });
    let state = stage.get(Kind::State, NODE).expect("a report");
    let label = state["metadata"]["labels"]["nmstate.io/force-nns-refresh"].as_str();
    let nanoseconds = label.and_then(|label| label.parse::<u64>().ok());
    assert!(
        nanoseconds > Some(1_600_000_000_000_000_000),
        "{:#}",
        state["metadata"]
    );
}
