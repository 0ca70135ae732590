//! Refused configurations, and the running components meanwhile.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::fixture::{AVAILABLE, Fixture, message};

const DEGRADED: [&str; 3] = [
    "Available False Failing",
    "Degraded True FailedToValidate",
    "Progressing False InvalidConfiguration",
];

fn time(value: &Value) -> Timestamp {
    value.as_str().expect("a time").parse().expect("a time")
}

fn created(configuration: &Value) -> Timestamp {
    time(&configuration["metadata"]["creationTimestamp"])
}

/// Time of a condition's last transition.
fn since(configuration: &Value, kind: &str) -> Timestamp {
    let conditions = configuration["status"]["conditions"]
        .as_array()
        .expect("conditions");
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    time(&found.expect("the condition")["lastTransitionTime"])
}

// operator#37, operator#39, operator#40
#[test]
fn invalid_configuration_is_degraded_and_corrected_one_available() {
    let fixture = Fixture::running();
    let invalid = json!({ "imagePullPolicy": "BAD" });
    let delay = |configuration: &Value| {
        let reported = since(configuration, "Degraded").duration_since(created(configuration));
        reported.as_secs()
    };
    fixture.configure(&invalid);
    let mut configuration = fixture.wait_for_conditions(&DEGRADED);
    // A busy machine may be late, but not each time.
    for _ in 0..3 {
        if delay(&configuration) <= 5 {
            break;
        }
        fixture
            .kubectl()
            .run(["delete", "networkaddonsconfig", "cluster"])
            .expect("deleted");
        fixture.configure(&invalid);
        configuration = fixture.wait_for_conditions(&DEGRADED);
    }
    let reported = delay(&configuration);
    assert!(reported <= 5, "reported after {reported} s");
    assert_eq!(
        message(&configuration, "Degraded"),
        "failed to validate NetworkConfig.Spec: invalid configuration:\nrequested imagePullPolicy 'BAD' is not valid"
    );
    assert_eq!(
        message(&configuration, "Available"),
        "Unable to apply desired configuration"
    );
    fixture.wait_for_event(
        "Warning Failed: FailedToValidate: Operator failed: failed to validate NetworkConfig.Spec: invalid \
         configuration:\nrequested imagePullPolicy 'BAD' is not valid",
    );
    fixture.wait_for_event("Warning Failed: Failing: Operator failed: Unable to apply desired configuration");
    assert!(
        fixture
            .operand("networkpolicy", "cnao-allow-egress-to-cluster-api")
            .is_none(),
        "nothing is applied"
    );

    fixture.configure(&json!({ "imagePullPolicy": "Always" }));
    fixture.wait_until_available();
    fixture.wait_for_event(AVAILABLE);
}

// operator#38, operator#54
#[test]
fn all_errors_are_reported_at_once() {
    let fixture = Fixture::running();
    fixture.configure(&json!({
        "imagePullPolicy": "BAD", "multusDynamicNetworks": {}, "kubeMacPool": { "rangeEnd": "02:00:00:00:00:00" },
        "tlsSecurityProfile": {},
    }));
    let configuration = fixture.wait_for_conditions(&DEGRADED);
    assert_eq!(
        message(&configuration, "Degraded"),
        "failed to validate NetworkConfig.Spec: invalid configuration:\n\
         both or none of the KubeMacPool ranges needs to be configured\n\
         requested imagePullPolicy 'BAD' is not valid\n\
         the `multus` configuration is required\n\
         failed to validate tlsSecurityProfile: type is missing"
    );
    fixture.configure(&json!({ "tlsSecurityProfile": { "type": "Custom" } }));
    fixture.wait_for_event(
        "Warning Failed: FailedToValidate: Operator failed: failed to validate NetworkConfig.Spec: invalid \
         configuration:\nfailed to validate tlsSecurityProfile: custom is missing for type Custom",
    );
    fixture.wait_for_conditions(&DEGRADED);
    // The operator recovers.
    fixture.configure(&json!({}));
    fixture.wait_until_available();
}

// operator#41
#[test]
fn refused_change_leaves_running_components_unchanged() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "linuxBridge": {}, "imagePullPolicy": "Always" }));
    fixture.wait_until_progressing();
    fixture.roll_out(&["kube-cni-linux-bridge-plugin", "bridge-marker"]);
    let good = fixture.wait_until_available();
    let before = fixture.operand("daemonset", "bridge-marker").expect("the marker");

    fixture.configure(&json!({ "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" }));
    let configuration = fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToGetPreviousConfigSpec",
        "Progressing False InvalidConfiguration",
    ]);
    assert_eq!(
        message(&configuration, "Degraded"),
        "not applying unsafe change: invalid configuration:\n\
         cannot modify ImagePullPolicy configuration once components were deployed"
    );
    let after = fixture.operand("daemonset", "bridge-marker").expect("the marker");
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    assert_eq!(
        configuration["status"]["containers"],
        good["status"]["containers"]
    );

    // Without a policy, the applied one is kept.
    fixture.configure(&json!({ "linuxBridge": {} }));
    fixture.wait_until_available();
    let policy =
        |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"].clone();
    assert_eq!(
        policy(&fixture.operand("daemonset", "bridge-marker").expect("the marker")),
        "Always"
    );
}

// operator#2
#[test]
fn configuration_with_other_name_is_ignored() {
    let fixture = Fixture::running();
    fixture.configure_as("v1", "other", &json!({ "multus": {}, "imagePullPolicy": "BAD" }));
    // The configuration with the right name is created later: when it is applied, the other one was processed, too.
    fixture.configure(&json!({}));
    fixture.wait_until_available();
    let other = fixture
        .object("networkaddonsconfig", "other")
        .expect("the other one");
    assert_eq!(other.get("status"), None);
    assert!(fixture.operand("daemonset", "multus").is_none());
    let events = fixture.kubectl().json(["get", "events", "-A"]).expect("events");
    let about_other = |event: &&Value| event["involvedObject"]["uid"] == other["metadata"]["uid"];
    assert_eq!(
        events["items"]
            .as_array()
            .expect("items")
            .iter()
            .find(about_other),
        None
    );
}
