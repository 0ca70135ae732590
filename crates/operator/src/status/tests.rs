//! The rules of operator §7 as a table of steps.

use serde_json::json;

use super::*;

const VERSION: &str = "1.2.3";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn failure(reason: &'static str, message: &str) -> Failure {
    Failure {
        reason,
        message: message.to_owned(),
    }
}

fn applied(lines: &[&str]) -> Finding {
    let progress = Progress::Lines(lines.iter().map(|line| (*line).to_owned()).collect());
    Finding::Applied {
        progress,
        containers: containers(),
    }
}

fn containers() -> Vec<Container> {
    vec![Container {
        parent_kind: "DaemonSet".into(),
        parent_name: "multus".into(),
        name: "kube-multus".into(),
        image: "weft:1".into(),
    }]
}

/// `type status reason message` of each condition, sorted by type.
fn conditions(status: &NetworkAddonsConfigStatus) -> Vec<String> {
    let mut all: Vec<_> = status
        .conditions
        .iter()
        .map(|c| {
            format!("{} {} {} {}", c.kind, c.status, c.reason, c.message)
                .trim_end()
                .to_owned()
        })
        .collect();
    all.sort();
    all
}

fn events(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!("{} {} | {}", event.kind, event.reason, event.message))
        .collect()
}

fn step(
    before: &NetworkAddonsConfigStatus,
    finding: &Finding,
    second: i64,
) -> (NetworkAddonsConfigStatus, Vec<String>) {
    let (after, told) = next(before, finding, VERSION, at(second));
    (after, events(&told))
}

const AVAILABLE: [&str; 3] = ["Available True", "Degraded False", "Progressing False"];

#[test]
fn nothing_to_deploy_is_available_at_once() {
    let finding = Finding::Applied {
        progress: Progress::Lines(Vec::new()),
        containers: Vec::new(),
    };
    let (status, told) = step(&NetworkAddonsConfigStatus::default(), &finding, 1);
    assert_eq!(conditions(&status), AVAILABLE);
    // Available was absent, not False: no event.
    assert_eq!(told, Vec::<String>::new());
    let versions = [
        &status.operator_version,
        &status.target_version,
        &status.observed_version,
    ];
    assert_eq!(versions, [VERSION; 3]);
    assert_eq!(status.containers, []);
}

#[test]
fn a_roll_out_goes_from_progressing_to_available() {
    let (rolling, told) = step(
        &NetworkAddonsConfigStatus::default(),
        &applied(&["first", "second"]),
        1,
    );
    assert_eq!(
        conditions(&rolling),
        [
            "Available False Startup Configuration is in process",
            "Degraded False",
            "Progressing True Deploying first\nsecond",
        ]
    );
    assert_eq!(told, ["Normal Progressing | Operator is progressing"]);
    assert_eq!(
        (rolling.operator_version.as_str(), rolling.target_version.as_str()),
        (VERSION, VERSION)
    );
    assert_eq!(rolling.observed_version, "");
    assert_eq!(rolling.containers, containers());

    let (further, told) = step(&rolling, &applied(&["second"]), 2);
    assert!(conditions(&further).contains(&"Progressing True Deploying second".to_owned()));
    assert_eq!(told, Vec::<String>::new());

    let (done, told) = step(&further, &applied(&[]), 3);
    assert_eq!(conditions(&done), AVAILABLE);
    assert_eq!(told, ["Normal Available | All applied components are available"]);
    assert_eq!(done.observed_version, VERSION);
}

#[test]
fn nothing_new_changes_nothing() {
    let (done, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    for second in [2, 1000] {
        assert_eq!(step(&done, &applied(&[]), second), (done.clone(), Vec::new()));
    }
    let invalid = Finding::Rejected(failure("FailedToValidate", "text"));
    let (degraded, _) = step(&done, &invalid, 3);
    assert_eq!(step(&degraded, &invalid, 4), (degraded.clone(), Vec::new()));
}

#[test]
fn an_invalid_configuration_is_degraded_from_the_beginning() {
    let finding = Finding::Rejected(failure("FailedToValidate", "text"));
    let (status, told) = step(&NetworkAddonsConfigStatus::default(), &finding, 1);
    let expected = [
        "Available False Failing Unable to apply desired configuration",
        "Degraded True FailedToValidate text",
        "Progressing False InvalidConfiguration Human interaction is needed, please fix the desired configuration",
    ];
    assert_eq!(conditions(&status), expected);
    assert_eq!(
        told,
        [
            "Warning Failed: FailedToValidate | Operator failed: text",
            "Warning Failed: Failing | Operator failed: Unable to apply desired configuration",
        ]
    );
    assert_eq!(status.observed_version, "");
    // Another failure is told, that nothing can be applied was told.
    let (_, told) = step(&status, &Finding::Rejected(failure("FailedToApply", "other")), 2);
    assert_eq!(told, ["Warning Failed: FailedToApply | Operator failed: other"]);
}

#[test]
fn a_fixed_configuration_is_available_again() {
    let (good, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    let (bad, _) = step(&good, &Finding::Rejected(failure("FailedToValidate", "text")), 2);
    assert_eq!(bad.containers, containers(), "what runs is left untouched");
    assert_eq!(bad.observed_version, VERSION);
    let (fixed, told) = step(&bad, &applied(&[]), 3);
    assert_eq!(conditions(&fixed), AVAILABLE);
    assert_eq!(told, ["Normal Available | All applied components are available"]);
}

#[test]
fn a_lost_workload_is_degraded_until_it_is_restored() {
    let (good, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    let gone = failure("NoDaemonSet", "Expected DaemonSet \"ns/multus\" does not exist");
    let (lost, told) = step(&good, &Finding::Lost(gone), 2);
    assert_eq!(
        conditions(&lost),
        [
            "Available False Failing Some problems occurred while deploying components' pods",
            "Degraded True NoDaemonSet Expected DaemonSet \"ns/multus\" does not exist",
            "Progressing False",
        ]
    );
    assert_eq!(
        told,
        [
            "Warning Failed: NoDaemonSet | Operator failed: Expected DaemonSet \"ns/multus\" does not exist",
            "Warning Failed: Failing | Operator failed: Some problems occurred while deploying components' pods",
        ]
    );
    assert_eq!(lost.containers, containers());
    let (rolling, _) = step(&lost, &applied(&["line"]), 3);
    assert_eq!(conditions(&rolling)[1], "Degraded False");
    let (restored, _) = step(&rolling, &applied(&[]), 4);
    assert_eq!(conditions(&restored), AVAILABLE);
}

#[test]
fn the_transition_time_follows_the_status_alone() {
    let since = |status: &NetworkAddonsConfigStatus, kind: &str| {
        let found = status
            .conditions
            .iter()
            .find(|c| c.kind == kind)
            .expect("a condition");
        found.last_transition_time.as_ref().expect("a time").0.as_second()
    };
    let (first, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&["a"]), 1);
    let (second, _) = step(&first, &applied(&["b"]), 2);
    assert_eq!(
        (since(&second, "Progressing"), since(&second, "Available")),
        (1, 1)
    );
    let (third, _) = step(&second, &applied(&[]), 3);
    assert_eq!(
        (
            since(&third, "Progressing"),
            since(&third, "Available"),
            since(&third, "Degraded")
        ),
        (3, 3, 1)
    );
    // A new condition has no heartbeat, and says so.
    let value = serde_json::to_value(&third.conditions[0]).expect("JSON");
    assert_eq!(value["lastHeartbeatTime"], json!(null));
}

#[test]
fn the_condition_of_the_first_generation_goes() {
    let old = NetworkAddonsConfigStatus {
        conditions: vec![Condition {
            kind: "Failing".into(),
            status: "False".into(),
            ..Condition::default()
        }],
        ..NetworkAddonsConfigStatus::default()
    };
    let (status, _) = step(&old, &applied(&[]), 1);
    assert_eq!(conditions(&status), AVAILABLE);
}

#[test]
fn a_new_version_is_a_target_before_it_is_observed() {
    let (old, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    let (rolling, _) = next(&old, &applied(&["a"]), "2.0.0", at(2));
    let versions = |s: &NetworkAddonsConfigStatus| {
        [
            s.operator_version.clone(),
            s.target_version.clone(),
            s.observed_version.clone(),
        ]
    };
    assert_eq!(versions(&rolling), ["2.0.0", "2.0.0", VERSION]);
    let (done, _) = next(&rolling, &applied(&[]), "2.0.0", at(3));
    assert_eq!(versions(&done), ["2.0.0", "2.0.0", "2.0.0"]);
    let (bad, _) = next(
        &done,
        &Finding::Rejected(failure("FailedToValidate", "text")),
        "2.0.0",
        at(4),
    );
    assert_eq!(versions(&bad), ["2.0.0", "2.0.0", "2.0.0"]);
}
