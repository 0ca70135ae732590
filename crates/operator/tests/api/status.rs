//! Frequency and author of status writes.

use std::time::{Duration, Instant};

use cluster::wait;
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Fixture, component_conditions, message};

const POOL: [&str; 2] = ["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"];
const ROLLING: [&str; 3] = [
    "Available False Startup",
    "Degraded False",
    "Progressing True Deploying",
];

#[test]
fn messages_of_roll_out_are_written_once_a_second_at_most() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_for_operand("daemonset", "multus", |_| Some(()));
    fixture.wait_for_conditions(&ROLLING);
    let mark = fixture.mark();
    let begun = Instant::now();
    for unavailable in (1..=12).rev() {
        let status = json!({ "status": {
            "desiredNumberScheduled": 12, "currentNumberScheduled": 12, "numberUnavailable": unavailable,
            "numberReady": 0, "numberMisscheduled": 0,
        } });
        fixture.report("daemonset", "multus", &status);
    }
    // The last message is written without another change.
    let last = "DaemonSet \"networking/multus\" is not available (awaiting 1 nodes)";
    wait::until("the last message", DEADLINE, || {
        let found = message(&fixture.configuration(), "Progressing");
        if found == last { Ok(()) } else { Err(found) }
    })
    .expect("the last message");
    let requests = fixture.requests_since(mark).into_iter();
    let writes = requests
        .filter(|request| request.uri.contains("/networkaddonsconfigs/cluster/status"))
        .count();
    let seconds = usize::try_from(begun.elapsed().as_secs()).expect("a number");
    assert!(writes <= seconds + 2, "{writes} writes in {seconds} seconds");
    let configuration = fixture.configuration();
    assert_eq!(message(&configuration, "MultusAvailable"), last);
    // A change beyond messages is written at once.
    fixture.report(
        "daemonset",
        "multus",
        &json!({ "status": { "numberUnavailable": 0 } }),
    );
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
}

#[test]
fn held_back_messages_are_dropped_with_their_configuration() {
    let fixture = Fixture::running();
    let observer = fixture.observer();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_for_operand("daemonset", "multus", |_| Some(()));
    fixture.wait_for_conditions(&ROLLING);
    for unavailable in (1..=4).rev() {
        let status = json!({ "status": {
            "desiredNumberScheduled": 4, "currentNumberScheduled": 4, "numberUnavailable": unavailable,
            "numberReady": 0, "numberMisscheduled": 0,
        } });
        fixture.report("daemonset", "multus", &status);
    }
    fixture
        .kubectl()
        .run(["delete", "networkaddonsconfig", "cluster", "--wait=false"])
        .expect("deleted");
    fixture.wait_until_gone("clusterrolebinding", "multus");
    let gone = Instant::now();
    wait::until("the held back messages", DEADLINE, || {
        // Each attempt sends a request of the test: the operator shares this process.
        let found = fixture.object("networkaddonsconfig", "cluster");
        if found.is_none() && gone.elapsed() > Duration::from_secs(2) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .expect("the held back messages");
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_progressing();
    let reconciles = observer.figure(&fixture, "controller_runtime_reconcile_total{", "success");
    assert!(reconciles < 100.0, "{reconciles} reconciles");
}

// operator#16, the conditions
#[test]
fn restart_with_rejected_configuration_keeps_status() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    let before = fixture.wait_until_available();
    fixture.configure(&json!({ "multus": {}, "imagePullPolicy": "BAD" }));
    let rejected = [
        "Available False Failing",
        "Degraded True FailedToValidate",
        "Progressing False InvalidConfiguration",
    ];
    let invalid = fixture.wait_for_conditions(&rejected);
    let components = ["MultusAvailable True", "NetworkPoliciesAvailable True"];
    assert_eq!(component_conditions(&invalid), components);
    fixture.stop();
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "imagePullPolicy": "WORSE" }));
    let after = wait::until("a new complaint", DEADLINE, || {
        let configuration = fixture.configuration();
        if message(&configuration, "Degraded").contains("'WORSE'") {
            Ok(configuration)
        } else {
            Err(format!("{configuration:#}"))
        }
    })
    .expect("a new complaint");
    assert_eq!(component_conditions(&after), components);
    for part in ["containers", "observedVersion"] {
        assert_eq!(after["status"][part], before["status"][part], "{part}");
    }
    fixture.configure(&json!({ "multus": {} }));
    let valid = fixture.wait_until_available();
    // An unchanged condition keeps its time.
    let since = |configuration: &Value, kind: &str| {
        let conditions = configuration["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        conditions
            .find(|found| found["type"] == kind)
            .map(|found| found["lastTransitionTime"].clone())
    };
    assert_eq!(
        since(&valid, "MultusAvailable"),
        since(&before, "MultusAvailable")
    );
}

// operator#83
#[test]
fn deployment_whose_old_pod_still_runs_is_progressing() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "kubeMacPool": {} }));
    fixture.roll_out_deployments(&POOL);
    fixture.wait_until_available();
    let generation = |deployment: &Value| deployment["metadata"]["generation"].as_i64();
    let before = POOL.map(|name| generation(&fixture.operand("deployment", name).expect("the pool")));
    fixture.configure(&json!({ "kubeMacPool": {}, "placementConfiguration": { "infra": {} } }));
    for (name, before) in POOL.into_iter().zip(before) {
        let changed = fixture.wait_for_operand("deployment", name, |deployment| {
            generation(deployment).filter(|now| Some(*now) != before)
        });
        // The status that the controller writes before it deletes the old pod.
        let old_pod = json!({ "status": {
            "observedGeneration": changed, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1,
            "updatedReplicas": null,
        } });
        fixture.report("deployment", name, &old_pod);
    }
    for name in POOL {
        let line = format!("Deployment \"networking/{name}\" update is rolling out (0 out of 1 updated)");
        fixture.wait_for_operand("networkaddonsconfig", "cluster", |configuration| {
            message(configuration, "Progressing")
                .contains(&line)
                .then_some(())
        });
    }
    fixture.roll_out_deployments(&POOL);
    fixture.wait_until_available();
}

// operator#84
#[test]
fn available_comes_after_the_workloads_stayed_ready_for_a_second() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_progressing();
    let begun = Instant::now();
    fixture.roll_out(&["multus"]);
    // No further change wakes the operator.
    fixture.wait_until_available();
    let held = begun.elapsed();
    assert!(held >= Duration::from_secs(1), "available after {held:?}");
}
