//! Conditions, versions and related objects.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{CLUSTER_OPERATOR, MULTUS, OPERATOR, Stage, condition, managers};

// cluster-network#61
#[test]
fn network_becomes_available_with_all_workloads() {
    let stage = Stage::start();
    let _operator = stage.operator();
    // No object exists yet.
    let progressing = |object: &serde_json::Value| condition(object, "Progressing").unwrap_or_default();
    stage.wait_for("Deploying", CLUSTER_OPERATOR, |object| {
        (progressing(object?) == "True Deploying: Deploying").then_some(())
    });
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    let begin = stage.wait_for("the beginning", OPERATOR, |object| {
        let available = condition(object?, "Available")?;
        (available == "False Startup: The network is starting up")
            .then(|| object.cloned())
            .flatten()
    });
    assert!(begin["status"].get("version").is_none(), "{begin:#}");
    let since = |object: &serde_json::Value, kind: &str| {
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let condition = conditions
            .into_iter()
            .find(|it| it["type"] == kind)
            .unwrap_or_default();
        condition["lastTransitionTime"].clone()
    };
    for nodes in [2, 1] {
        stage.report(
            MULTUS,
            &json!({
                "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 0,
                "numberMisscheduled": 0, "numberUnavailable": nodes, "observedGeneration": 1,
            }),
        );
        let line =
            format!("DaemonSet \"/openshift-multus/multus\" is not available (awaiting {nodes} nodes)");
        let now = stage.wait_for(&line, OPERATOR, |object| {
            progressing(object?)
                .contains(&line)
                .then(|| object.cloned())
                .flatten()
        });
        assert_eq!(since(&now, "Progressing"), since(&begin, "Progressing"));
    }
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    stage.condition("Progressing", "False : ");
    stage.condition("Degraded", "False : ");
    let operator = stage.there(OPERATOR);
    assert_eq!(operator["status"]["version"], "1.2.3");
    assert!(managers(&operator).contains(&"cluster-network-operator/status-manager Apply status".to_owned()));
    stage.wait_for("the version", CLUSTER_OPERATOR, |object| {
        let versions = &object?["status"]["versions"];
        (*versions == json!([{ "name": "operator", "version": "1.2.3" }])).then_some(())
    });
    // A pod that becomes unavailable later is not reported.
    stage.at_rest();
    stage.report(
        MULTUS,
        &json!({
            "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 1,
            "numberMisscheduled": 0, "numberUnavailable": 1, "observedGeneration": 1,
        }),
    );
    stage.at_rest();
    let operator = stage.there(OPERATOR);
    assert_eq!(condition(&operator, "Progressing").as_deref(), Some("False : "));
    assert_eq!(condition(&operator, "Available").as_deref(), Some("True : "));
}

// cluster-network#66
#[test]
fn missing_operator_configuration_is_reported_to_the_platform() {
    let stage = Stage::start();
    let _operator = stage.operator();
    let expected = "True NoOperConfig: Failed to get networks.operator.openshift.io cluster";
    stage.wait_for(expected, CLUSTER_OPERATOR, |object| {
        (condition(object?, "Degraded")? == expected).then_some(())
    });
}

// cluster-network#63
#[test]
fn hanging_roll_out_is_reported_until_it_progresses() {
    let stage = Stage::start();
    let operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    let rolling = |updated: i64| {
        json!({
            "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "updatedNumberScheduled": updated, "numberReady": 3,
            "numberAvailable": 3, "numberMisscheduled": 0, "numberUnavailable": 0, "observedGeneration": 1,
        })
    };
    stage.report(MULTUS, &rolling(1));
    let line = "DaemonSet \"/openshift-multus/multus\" update is rolling out (1 out of 3 updated)";
    stage.condition("Progressing", &format!("True Deploying: {line}"));
    stage.at_rest();
    // The edited annotation simulates a longer time without progress.
    drop(operator);
    let annotation = "network.operator.openshift.io/last-seen-state";
    let object = stage.there(CLUSTER_OPERATOR);
    let state = object["metadata"]["annotations"][annotation]
        .as_str()
        .expect("a state");
    let mut state: serde_json::Value = serde_json::from_str(state).expect("JSON");
    state["DaemonsetStates"][0]["LastChangeTime"] = json!("2020-01-02T03:04:05Z");
    stage.change(
        CLUSTER_OPERATOR,
        &json!({ "metadata": { "annotations": { annotation: state.to_string() } } }),
    );
    let _operator = stage.operator();
    stage.condition(
        "Degraded",
        "True RolloutHung: DaemonSet \"/openshift-multus/multus\" rollout is not making progress - last change \
         2020-01-02T03:04:05Z",
    );
    let is_marked = |object: Option<&serde_json::Value>| {
        Some(
            object?["metadata"]["annotations"]
                .get("networkoperator.openshift.io/rollout-hung")
                .is_some(),
        )
    };
    stage.wait_for("the mark", MULTUS, |object| is_marked(object)?.then_some(()));
    stage.report(MULTUS, &rolling(2));
    stage.condition("Degraded", "False : ");
    stage.wait_for("no mark", MULTUS, |object| (!is_marked(object)?).then_some(()));
}

// cluster-network#64
#[test]
fn crash_loop_of_a_critical_pod_is_reported() {
    let stage = Stage::start();
    let wait = Duration::from_secs(5);
    let _operator = stage.operator_that_waits(wait);
    stage.configure("Calico");
    let admission = "/apis/apps/v1/namespaces/openshift-multus/deployments/multus-admission-controller";
    stage.there(MULTUS);
    stage.there(admission);
    stage.at_rest();
    stage.roll_out_all();
    // A non-critical workload does not decide condition `Available`.
    waiting_pod(
        &stage,
        "webhook",
        "multus-admission-controller",
        "CrashLoopBackOff",
    );
    stage.report(
        admission,
        &json!({ "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "unavailableReplicas": 1, "availableReplicas": 1,
            "observedGeneration": 1 }),
    );
    waiting_pod(&stage, "m", "multus", "CrashLoopBackOff");
    let begin = Instant::now();
    stage.report(
        MULTUS,
        &json!({
            "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 1,
            "numberAvailable": 1, "numberMisscheduled": 0, "numberUnavailable": 1, "observedGeneration": 1,
        }),
    );
    let reported = stage.wait_for("Degraded", OPERATOR, |object| {
        condition(object?, "Degraded").filter(|it| it.starts_with("True"))
    });
    assert_eq!(
        reported,
        "True CrashLoopBackOff: DaemonSet \"/openshift-multus/multus\" rollout is not making progress - pod m is in \
         CrashLoopBackOff State"
    );
    // A unit test proves the default of two minutes.
    assert!(begin.elapsed() >= wait, "{:?}", begin.elapsed());
    stage.roll_out(MULTUS);
    stage.condition("Degraded", "False : ");
}

// cluster-network#202
#[test]
fn image_that_cannot_be_pulled_is_named() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    waiting_pod(&stage, "m", "multus", "ImagePullBackOff");
    stage.report(
        MULTUS,
        &json!({
            "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 0,
            "numberMisscheduled": 0, "numberUnavailable": 2, "observedGeneration": 1,
        }),
    );
    let line = "DaemonSet \"/openshift-multus/multus\" is not available (awaiting 2 nodes): image i: ImagePullBackOff";
    stage.wait_for(line, OPERATOR, |object| {
        condition(object?, "Progressing")?.contains(line).then_some(())
    });
    stage.roll_out_all();
    stage.condition("Progressing", "False : ");
}

/// Creates a pod in Multus' namespace whose container waits for this reason.
fn waiting_pod(stage: &Stage, name: &str, app: &str, reason: &str) {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
    stage.create("/api/v1/namespaces/openshift-multus/serviceaccounts", &account);
    let pods = "/api/v1/namespaces/openshift-multus/pods";
    stage.create(
        pods,
        &json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": app } },
            "spec": {
                "containers": [{ "name": "c", "image": "i" }],
                "serviceAccountName": name, "automountServiceAccountToken": false,
            },
        }),
    );
    let waiting = json!({ "waiting": { "reason": reason } });
    stage.report(
        &format!("{pods}/{name}"),
        &json!({ "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 9, "state": waiting,
        }] }),
    );
}
