//! The rules of operator §7 as a table of steps.

use kube_kit::object::DAEMON_SET;
use serde_json::json;

use super::*;
use crate::workloads::State;

mod properties;

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
    Finding::Applied {
        failures: Failures::default(),
        components: vec![multus(lines)],
        containers: containers(),
    }
}

/// Multus with workloads in these states.
fn multus(lines: &[&str]) -> Component {
    let progressing = lines.iter().map(|line| State::Progressing((*line).to_owned()));
    let mut workloads: Vec<_> = progressing.map(workload).collect();
    workloads.push(workload(State::Ready));
    Component {
        name: "multus",
        workloads,
    }
}

fn workload(state: State) -> Workload {
    let id = DAEMON_SET.object(Some("ns"), "multus");
    Workload { id, state }
}

fn rejected(failure: Failure) -> Finding {
    Finding::Rejected {
        failure,
        components: Vec::new(),
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

/// `type status reason message` of each of upstream's conditions, sorted by type.
fn conditions(status: &NetworkAddonsConfigStatus) -> Vec<String> {
    listed(status, |kind| !condition::is_of_component(kind))
}

/// Like [`conditions`], for the components' own conditions.
fn of_components(status: &NetworkAddonsConfigStatus) -> Vec<String> {
    listed(status, condition::is_of_component)
}

fn listed(status: &NetworkAddonsConfigStatus, of: impl Fn(&str) -> bool) -> Vec<String> {
    let mut all: Vec<_> = status
        .conditions
        .iter()
        .filter(|c| of(&c.kind))
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
    let (after, emitted) = next(before, finding, VERSION, at(second));
    (after, events(&emitted))
}

const AVAILABLE: [&str; 3] = ["Available True", "Degraded False", "Progressing False"];

#[test]
fn next_without_components_is_available_at_once() {
    let finding = Finding::Applied {
        failures: Failures::default(),
        components: Vec::new(),
        containers: Vec::new(),
    };
    let (status, emitted) = step(&NetworkAddonsConfigStatus::default(), &finding, 1);
    assert_eq!(conditions(&status), AVAILABLE);
    // Available was absent, not False: no event.
    assert_eq!(emitted, Vec::<String>::new());
    let versions = [
        &status.operator_version,
        &status.target_version,
        &status.observed_version,
    ];
    assert_eq!(versions, [VERSION; 3]);
    assert_eq!(status.containers, []);
}

#[test]
fn next_during_roll_out_is_progressing_then_available() {
    let (rolling, emitted) = step(
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
    assert_eq!(emitted, ["Normal Progressing | Operator is progressing"]);
    assert_eq!(
        (rolling.operator_version.as_str(), rolling.target_version.as_str()),
        (VERSION, VERSION)
    );
    assert_eq!(rolling.observed_version, "");
    assert_eq!(rolling.containers, containers());

    let (further, emitted) = step(&rolling, &applied(&["second"]), 2);
    assert!(conditions(&further).contains(&"Progressing True Deploying second".to_owned()));
    assert_eq!(emitted, Vec::<String>::new());

    let (done, emitted) = step(&further, &applied(&[]), 3);
    assert_eq!(conditions(&done), AVAILABLE);
    assert_eq!(
        emitted,
        ["Normal Available | All applied components are available"]
    );
    assert_eq!(done.observed_version, VERSION);
}

// operator#84
#[test]
fn next_holds_available_until_workloads_stayed_ready() {
    let just_ready = Finding::Applied {
        failures: Failures::default(),
        components: vec![Component {
            name: "multus",
            workloads: vec![workload(State::JustReady)],
        }],
        containers: containers(),
    };
    let line = "DaemonSet \"ns/multus\" has been available for less than a second";
    let (rolling, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&["a"]), 1);
    let (held, emitted) = step(&rolling, &just_ready, 2);
    assert_eq!(
        conditions(&held),
        [
            "Available False Startup Configuration is in process".to_owned(),
            "Degraded False".to_owned(),
            format!("Progressing True Deploying {line}"),
        ]
    );
    assert_eq!(
        of_components(&held),
        [format!("MultusAvailable False Deploying {line}")]
    );
    assert_eq!(emitted, Vec::<String>::new());
    assert_eq!(held.observed_version, "");
    let (done, emitted) = step(&held, &applied(&[]), 3);
    assert_eq!(conditions(&done), AVAILABLE);
    assert_eq!(
        emitted,
        ["Normal Available | All applied components are available"]
    );
    // A starting operator does not have the start of the workloads' readiness: a True condition stays True.
    assert_eq!(step(&done, &just_ready, 4), (done.clone(), Vec::new()));
    // The result is the same if an earlier operator wrote no conditions for components.
    let mut taken_over = done.clone();
    taken_over
        .conditions
        .retain(|found| !condition::is_of_component(&found.kind));
    let (after, emitted) = step(&taken_over, &just_ready, 5);
    assert_eq!(conditions(&after), AVAILABLE);
    assert_eq!(of_components(&after), ["MultusAvailable True"]);
    assert_eq!(emitted, Vec::<String>::new());
}

#[test]
fn next_with_same_finding_changes_nothing() {
    let (done, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    for second in [2, 1000] {
        assert_eq!(step(&done, &applied(&[]), second), (done.clone(), Vec::new()));
    }
    let invalid = rejected(failure("FailedToValidate", "text"));
    let (degraded, _) = step(&done, &invalid, 3);
    assert_eq!(step(&degraded, &invalid, 4), (degraded.clone(), Vec::new()));
}

#[test]
fn next_with_invalid_configuration_is_degraded() {
    let finding = rejected(failure("FailedToValidate", "text"));
    let (status, emitted) = step(&NetworkAddonsConfigStatus::default(), &finding, 1);
    let expected = [
        "Available False Failing Unable to apply desired configuration",
        "Degraded True FailedToValidate text",
        "Progressing False InvalidConfiguration Human interaction is needed, please fix the desired configuration",
    ];
    assert_eq!(conditions(&status), expected);
    assert_eq!(
        emitted,
        [
            "Warning Failed: FailedToValidate | Operator failed: text",
            "Warning Failed: Failing | Operator failed: Unable to apply desired configuration",
        ]
    );
    assert_eq!(status.observed_version, "");
    // Another failure has an event; the rejection itself was reported before.
    let (_, emitted) = step(&status, &rejected(failure("FailedToApply", "other")), 2);
    assert_eq!(
        emitted,
        ["Warning Failed: FailedToApply | Operator failed: other"]
    );
}

#[test]
fn next_with_corrected_configuration_is_available_again() {
    let (good, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    let (bad, _) = step(&good, &rejected(failure("FailedToValidate", "text")), 2);
    assert_eq!(bad.containers, containers(), "what runs is left untouched");
    assert_eq!(bad.observed_version, VERSION);
    let (fixed, emitted) = step(&bad, &applied(&[]), 3);
    assert_eq!(conditions(&fixed), AVAILABLE);
    assert_eq!(
        emitted,
        ["Normal Available | All applied components are available"]
    );
}

// operator#18, the condition, which may be too short to be observed in the api tier
#[test]
fn next_with_lost_workload_is_degraded_until_restored() {
    let (good, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&[]), 1);
    let gone = failure("NoDaemonSet", "Expected DaemonSet \"ns/multus\" does not exist");
    let lost = Finding::Lost {
        failure: gone.clone(),
        components: vec![Component {
            name: "multus",
            workloads: vec![workload(State::Gone(gone))],
        }],
    };
    let (lost, emitted) = step(&good, &lost, 2);
    assert_eq!(
        of_components(&lost),
        ["MultusAvailable False NoDaemonSet Expected DaemonSet \"ns/multus\" does not exist"]
    );
    assert_eq!(
        conditions(&lost),
        [
            "Available False Failing Some problems occurred while deploying components' pods",
            "Degraded True NoDaemonSet Expected DaemonSet \"ns/multus\" does not exist",
            "Progressing False",
        ]
    );
    assert_eq!(
        emitted,
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
fn transition_time_changes_with_status_alone() {
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
    // A new condition has a null heartbeat.
    let value = serde_json::to_value(&third.conditions[0]).expect("JSON");
    assert_eq!(value["lastHeartbeatTime"], json!(null));
}

#[test]
fn next_removes_condition_of_first_generation() {
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

// operator#69
#[test]
fn new_version_is_target_before_it_is_observed() {
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
        &rejected(failure("FailedToValidate", "text")),
        "2.0.0",
        at(4),
    );
    assert_eq!(versions(&bad), ["2.0.0", "2.0.0", "2.0.0"]);
}

#[test]
fn deployed_component_has_its_own_condition() {
    let bridge = Component {
        name: "linuxBridge",
        workloads: Vec::new(),
    };
    let finding = |failures: Failures, multus: Component| Finding::Applied {
        failures,
        components: vec![multus, bridge.clone()],
        containers: Vec::new(),
    };
    let before = NetworkAddonsConfigStatus::default();
    let (rolling, _) = step(&before, &finding(Failures::default(), multus(&["line"])), 1);
    assert_eq!(
        of_components(&rolling),
        [
            "LinuxBridgeAvailable True",
            "MultusAvailable False Deploying line"
        ]
    );
    let mut failures = Failures::default();
    failures.add("linuxBridge", "FailedToApply", "no way");
    failures.add("multus", "FailedToRender", "nothing there");
    failures.add_general("FailedToDeleteObjects", "still there");
    let (failed, emitted) = step(&rolling, &finding(failures, multus(&[])), 2);
    assert_eq!(
        of_components(&failed),
        [
            "LinuxBridgeAvailable False FailedToApply no way",
            "MultusAvailable False FailedToRender nothing there",
        ]
    );
    assert!(
        conditions(&failed)
            .contains(&"Degraded True FailedToApply no way\nnothing there\nstill there".to_owned())
    );
    assert_eq!(
        emitted,
        ["Warning Failed: FailedToApply | Operator failed: no way\nnothing there\nstill there"]
    );
    // One component recovers; the conditions of the others are unchanged.
    let mut failures = Failures::default();
    failures.add("linuxBridge", "FailedToApply", "no way");
    let (half, _) = step(&failed, &finding(failures, multus(&[])), 3);
    assert_eq!(
        of_components(&half),
        [
            "LinuxBridgeAvailable False FailedToApply no way",
            "MultusAvailable True"
        ]
    );
    let (invalid, _) = step(&half, &rejected(failure("FailedToValidate", "text")), 4);
    assert_eq!(of_components(&invalid), of_components(&half));
    // Bridges are no longer requested.
    let (done, _) = step(&invalid, &applied(&[]), 5);
    assert_eq!(of_components(&done), ["MultusAvailable True"]);
    assert_eq!(conditions(&done), AVAILABLE);
}

#[test]
fn condition_type_follows_component_name() {
    let types: Vec<_> = crate::components::ALL
        .iter()
        .map(|component| condition::of_component(component.name))
        .collect();
    assert_eq!(
        types,
        [
            "MultusAvailable",
            "MultusDynamicNetworksAvailable",
            "LinuxBridgeAvailable",
            "KubeMacPoolAvailable",
            "OvsAvailable",
            "MacvtapAvailable",
            "KubeSecondaryDNSAvailable",
            "KubevirtIpamControllerAvailable",
            "NmstateAvailable",
            "MonitoringAvailable",
            "NetworkPoliciesAvailable",
        ]
    );
    assert!(types.iter().all(|kind| condition::is_of_component(kind)));
    for general in ["Available", "Degraded", "Progressing", "Failing"] {
        assert!(!condition::is_of_component(general));
    }
}

#[test]
fn differ_in_messages_alone_detects_other_changes() {
    let (first, _) = step(&NetworkAddonsConfigStatus::default(), &applied(&["a"]), 1);
    let (second, _) = step(&first, &applied(&["b"]), 2);
    let (done, _) = step(&second, &applied(&[]), 3);
    assert!(differ_in_messages_alone(&first, &second));
    assert!(!differ_in_messages_alone(&first, &first));
    assert!(!differ_in_messages_alone(&second, &done));
}
