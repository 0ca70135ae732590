//! The program that checks endpoints.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use cluster::free_port;
use connectivity::metrics::Metrics;
use connectivity::source::{self, Settings};
use kube_kit::serve::Readiness;
use serde_json::Value;

use crate::stage::{NODE, NS, POD, Stage, Task, checks, until};

const ACCOUNT: &str = "system:serviceaccount:openshift-network-diagnostics:network-diagnostics";
const ROLES: &str = r#"[
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"checks"},"rules":[
    {"apiGroups":["controlplane.operator.openshift.io"],"resources":["podnetworkconnectivitychecks"],"verbs":["get","list","watch"]},
    {"apiGroups":["controlplane.operator.openshift.io"],"resources":["podnetworkconnectivitychecks/status"],"verbs":["update"]},
    {"apiGroups":[""],"resources":["pods","nodes"],"verbs":["get","list","watch"]},
    {"apiGroups":[""],"resources":["events"],"verbs":["create","patch"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"checks"},
   "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"checks"},
   "subjects":[{"kind":"ServiceAccount","name":"network-diagnostics","namespace":"openshift-network-diagnostics"}]}]"#;

pub(crate) fn start(stage: &Stage, interval: Duration) -> Task {
    let roles: Vec<Value> = serde_json::from_str(ROLES).expect("JSON");
    for role in &roles {
        stage.apply(role);
    }
    stage.task_as(ACCOUNT, move |client, shutdown| async move {
        let settings = Settings {
            pod: POD.to_owned(),
            namespace: NS.to_owned(),
            interval,
        };
        source::check(client, settings, Metrics::new(NS), &Readiness::new(), &shutdown).await;
    })
}

pub(crate) fn reachable(status: &Value) -> &str {
    status["conditions"][0]["status"].as_str().unwrap_or_default()
}

/// An address without a listener, which no other program takes meanwhile.
pub(crate) fn unused() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port().expect("a port")).into()
}

#[test]
fn outage_is_reported_in_status_and_events_until_it_ends() {
    let stage = Stage::start();
    stage.source();
    let address = unused();
    let listener = TcpListener::bind(address).expect("a listener");
    stage.check("a-to-target", POD, &address.to_string());
    stage.check("b-to-target", "another-pod", &address.to_string());
    let mark = stage.mark();
    let task = start(&stage, Duration::from_secs(1));
    let status = stage.wait_for_status("a-to-target", "reachable", |status| reachable(status) == "True");
    let condition = &status["conditions"][0];
    assert_eq!(condition["type"], "Reachable");
    assert_eq!(condition["reason"], "TCPConnectSuccess");
    let message = format!("target: tcp connection to {address} succeeded");
    assert_eq!(status["successes"][0]["message"], message);

    drop(listener);
    let status = stage.wait_for_status("a-to-target", "an outage", |status| reachable(status) == "False");
    let text = status["outages"][0]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(text.starts_with("Connectivity outage detected at "), "{status:#}");
    stage.wait_for_event(&format!(
        "Warning ConnectivityOutageDetected Node/{NODE} x1: Connectivity outage detected: target: failed to establish a \
         TCP connection to {address}: dial tcp {address}: connect: connection refused"
    ));

    let _listener = TcpListener::bind(address).expect("the same address");
    let status = stage.wait_for_status("a-to-target", "the end", |status| reachable(status) == "True");
    assert!(status["outages"][0]["end"].is_string(), "{status:#}");
    stage.wait_for_event(&format!(
        "Normal ConnectivityRestored Node/{NODE} x1: Connectivity restored after "
    ));
    drop(task);

    let other = stage
        .get(&format!("{}/b-to-target", checks()))
        .expect("the check exists");
    assert_eq!(other["status"], Value::Null, "another pod makes this check");
    let refused: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| it.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn events_within_the_limits_are_all_published() {
    let stage = Stage::start();
    stage.source();
    let address = unused().to_string();
    // The limit is 30 in half a minute.
    for number in 0..30 {
        stage.check(&format!("a-to-target{number}"), POD, &address);
    }
    let _task = start(&stage, Duration::from_secs(1));
    until("an event of each outage", || {
        let events = stage.events("");
        let outages = events
            .iter()
            .filter(|event| event.contains("ConnectivityOutageDetected"));
        match outages.count() {
            30 => Ok(()),
            count => Err(format!("{count} events")),
        }
    });
}

#[test]
fn refused_results_are_written_later() {
    let stage = Stage::start();
    stage.source();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address").to_string();
    stage.check("a-to-target", POD, &address);
    // A policy refuses results, like an API server that fails for writes.
    let closed = serde_json::json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "closed" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["controlplane.operator.openshift.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["podnetworkconnectivitychecks/status"],
            }] },
            "validations": [{ "expression": "false", "message": "closed" }],
        },
    });
    let binding = serde_json::json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "closed" }, "spec": { "policyName": "closed", "validationActions": ["Deny"] },
    });
    stage.apply(&closed);
    stage.apply(&binding);
    let path = format!("{}/a-to-target", checks());
    until("the policy", || {
        let answer = stage.patch(
            &format!("{path}/status"),
            &serde_json::json!({ "status": { "conditions": [] } }),
        );
        if answer.status.is_success() {
            Err("not yet")
        } else {
            Ok(())
        }
    });
    let mark = stage.mark();
    let task = start(&stage, Duration::from_secs(1));
    until("three results that are refused", || {
        let puts = stage
            .requests_of(ACCOUNT, mark)
            .into_iter()
            .filter(|it| it.verb == "update")
            .count();
        if puts >= 3 { Ok(()) } else { Err(format!("{puts}")) }
    });
    for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        stage.delete(&format!("/apis/admissionregistration.k8s.io/v1/{kind}/closed"));
    }
    let status = stage.wait_for_status("a-to-target", "all results", |status| {
        status["successes"].as_array().is_some_and(|all| all.len() >= 3)
    });
    let times: Vec<_> = status["successes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["time"].as_str())
        .collect();
    assert!(
        times.is_sorted_by(|one, two| one > two),
        "newest first, each once: {times:?}"
    );
    drop(task);
}
