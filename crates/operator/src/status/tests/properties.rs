//! Invariants after any findings in any order, from any status that an earlier operator or another client left.

use kube_kit::object::DEPLOYMENT;
use proptest::{prelude::*, sample::subsequence};

use super::*;

const NAMES: [&str; 4] = ["multus", "linuxBridge", "kubeMacPool", "monitoring"];

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => Just(State::Ready),
        2 => Just(State::JustReady),
        1 => "[ab]".prop_map(State::Progressing),
        1 => "[ab]".prop_map(|message| State::Gone(failure("NoDaemonSet", &message))),
    ]
}

fn a_workload() -> impl Strategy<Value = Workload> {
    (any::<bool>(), state()).prop_map(|(node, state)| {
        let kind = if node { DAEMON_SET } else { DEPLOYMENT };
        let id = kind.object(Some("ns"), "workload");
        Workload { id, state }
    })
}

fn components() -> impl Strategy<Value = Vec<Component>> {
    let names = subsequence(&NAMES[..], 0..=NAMES.len());
    let workloads = prop::collection::vec(prop::collection::vec(a_workload(), 0..3), NAMES.len());
    (names, workloads).prop_map(|(names, workloads)| {
        let pairs = names.into_iter().zip(workloads);
        pairs
            .map(|(name, workloads)| Component { name, workloads })
            .collect()
    })
}

fn a_failure() -> impl Strategy<Value = Failure> {
    let reasons = prop::sample::select(vec!["FailedToValidate", "FailedToRender", "FailedToApply"]);
    (reasons, "[ab]").prop_map(|(reason, message)| failure(reason, &message))
}

fn failures() -> impl Strategy<Value = Failures> {
    let one = (prop::option::of(prop::sample::select(&NAMES[..])), a_failure());
    prop_oneof![
        2 => Just(Failures::default()),
        1 => prop::collection::vec(one, 1..4).prop_map(|list| {
            let mut failures = Failures::default();
            for (component, failure) in list {
                match component {
                    Some(name) => failures.add(name, failure.reason, failure.message),
                    None => failures.add_general(failure.reason, failure.message),
                }
            }
            failures
        }),
    ]
}

fn finding() -> impl Strategy<Value = Finding> {
    prop_oneof![
        1 => (a_failure(), components())
            .prop_map(|(failure, components)| Finding::Rejected { failure, components }),
        1 => (a_failure(), components())
            .prop_map(|(failure, components)| Finding::Lost { failure, components }),
        3 => (failures(), components()).prop_map(|(failures, components)| Finding::Applied {
            failures,
            components,
            containers: containers(),
        }),
    ]
}

/// Any previous status, with contradictions and foreign conditions.
fn before() -> impl Strategy<Value = NetworkAddonsConfigStatus> {
    let kinds = prop::sample::select(vec![
        "Available",
        "Degraded",
        "Progressing",
        "Failing",
        "MultusAvailable",
        "OvsAvailable",
        "Stranger",
    ]);
    let status = prop::sample::select(vec!["True", "False", "Unknown"]);
    let condition =
        (kinds, status, prop::option::of(0..100_i64)).prop_map(|(kind, status, since)| Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: since.map(|second| conditions::since(None, status, at(second))),
            ..Condition::default()
        });
    prop::collection::vec(condition, 0..7).prop_map(|conditions| NetworkAddonsConfigStatus {
        conditions,
        ..NetworkAddonsConfigStatus::default()
    })
}

fn status_of<'a>(status: &'a NetworkAddonsConfigStatus, kind: &str) -> Option<&'a str> {
    let mut found = status.conditions.iter().filter(|found| found.kind == kind);
    let status = found.next().map(|found| found.status.as_str());
    assert_eq!(found.next(), None, "one condition of each type");
    status
}

fn is_true(status: &NetworkAddonsConfigStatus, kind: &str) -> bool {
    status_of(status, kind) == Some("True")
}

/// The invariants of a status.
fn check(status: &NetworkAddonsConfigStatus, finding: &Finding) {
    let (available, degraded) = (is_true(status, "Available"), is_true(status, "Degraded"));
    assert!(!(available && degraded), "available and degraded");
    assert!(
        !(available && is_true(status, "Progressing")),
        "available and progressing"
    );
    assert!(status_of(status, "Available").is_some() && status_of(status, "Degraded").is_some());
    assert_eq!(status_of(status, "Failing"), None);
    let own: Vec<_> = status
        .conditions
        .iter()
        .filter(|found| condition::is_of_component(&found.kind))
        .collect();
    if available {
        assert!(own.iter().all(|found| found.status == "True"), "{own:#?}");
        assert_eq!(status.observed_version, VERSION);
    }
    match finding {
        Finding::Rejected { failure, .. } | Finding::Lost { failure, .. } => {
            let degraded_condition = status.conditions.iter().find(|found| found.kind == "Degraded");
            assert!(degraded && degraded_condition.is_some_and(|found| found.reason == failure.reason));
        }
        Finding::Applied {
            failures, components, ..
        } => {
            assert!(failures.all().is_none() || degraded, "a failure is reported");
            for found in &own {
                assert_eq!(found.status == "False", !found.reason.is_empty(), "{found:?}");
            }
            let expected: Vec<_> = components
                .iter()
                .map(|component| condition::of_component(component.name))
                .collect();
            let mut found: Vec<_> = own.iter().map(|found| found.kind.clone()).collect();
            found.sort_by_key(|kind| expected.iter().position(|other| other == kind));
            assert_eq!(found, expected, "a condition for each component, and no other");
        }
    }
}

/// A condition's time changes if and only if its status does.
fn check_times(before: &NetworkAddonsConfigStatus, after: &NetworkAddonsConfigStatus, second: i64) {
    for found in &after.conditions {
        let old = before.conditions.iter().find(|old| old.kind == found.kind);
        let since = found.last_transition_time.as_ref();
        match old {
            Some(old) if old.status == found.status && old.last_transition_time.is_some() => {
                assert_eq!(since, old.last_transition_time.as_ref(), "{}", found.kind);
            }
            Some(old) if old == found => {}
            _ => assert_eq!(
                since.map(|time| time.0.as_second()),
                Some(second),
                "{}",
                found.kind
            ),
        }
    }
}

/// A condition that is not True does not become True while workloads just became ready.
fn check_hold(before: &NetworkAddonsConfigStatus, after: &NetworkAddonsConfigStatus, finding: &Finding) {
    let Finding::Applied { components, .. } = finding else {
        return;
    };
    let denied = |kind: &str| {
        let found = before.conditions.iter().find(|found| found.kind == kind);
        found.is_some_and(|found| found.status != "True")
    };
    for component in components {
        let progress = workloads::progress(component.workloads.iter());
        if !matches!(progress, Progress::JustReady(_)) {
            continue;
        }
        for kind in [condition::of_component(component.name), "Available".to_owned()] {
            assert!(!(denied(&kind) && is_true(after, &kind)), "{kind} is held");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn next_keeps_invariants_for_any_findings(
        before in before(),
        findings in prop::collection::vec(finding(), 1..12),
    ) {
        let mut status = before;
        for (second, finding) in (1000..).zip(&findings) {
            let (after, emitted) = next(&status, finding, VERSION, at(second));
            check(&after, finding);
            check_times(&status, &after, second);
            check_hold(&status, &after, finding);
            prop_assert!(emitted.is_empty() || after != status, "an event without a change: {emitted:?}");
            // The same finding much later changes nothing, and emits no event.
            let again = next(&after, finding, VERSION, at(second + 100_000));
            prop_assert_eq!(&again, &(after.clone(), Vec::new()));
            status = after;
        }
    }

    /// A starting operator does not remember the deployed components, and keeps their conditions.
    #[test]
    fn next_after_restart_keeps_unobserved_conditions(
        findings in prop::collection::vec(finding(), 1..4),
        failure in a_failure(),
    ) {
        let mut status = NetworkAddonsConfigStatus::default();
        for finding in &findings {
            status = next(&status, finding, VERSION, at(1)).0;
        }
        let (after, _) = next(&status, &rejected(failure), VERSION, at(2));
        prop_assert_eq!(of_components(&after), of_components(&status));
        prop_assert_eq!(&after.containers, &status.containers);
        prop_assert_eq!(&after.observed_version, &status.observed_version);
    }
}
