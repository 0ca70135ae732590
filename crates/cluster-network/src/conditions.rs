//! The conditions of the operator (§10.2).

use api::cluster_network::Condition;
use k8s_openapi::jiff::Timestamp;
use kube_kit::conditions::since;

use crate::{failures::Failure, messages, observability};

/// The result of one reconciliation, as reported in the conditions.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'a> {
    /// Cause of `Degraded`.
    pub failure: Option<&'a Failure>,
    /// Reason and message of `Progressing`.
    pub progressing: Option<(&'a str, &'a str)>,
    /// True if all critical workloads are available, and all workloads have this version.
    pub reached: bool,
    /// State of the installation of network observability. `None` leaves its condition unchanged.
    pub observability: Option<&'a observability::State>,
}

/// Builds conditions with the status, the reason and the message: the transition time is that of the previous condition
/// if the status is the same.
pub fn builder(before: &[Condition], now: Timestamp) -> impl Fn(&str, &str, &str, &str) -> Condition {
    move |kind, status, reason, message| {
        let previous = before.iter().find(|condition| condition.kind == kind);
        let previous = previous.map(|it| (it.status.as_str(), it.last_transition_time.as_ref()));
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(since(previous, status, now)),
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }
}

/// The next conditions, from a finding and the previous conditions.
pub fn next(finding: &Finding<'_>, before: &[Condition], now: Timestamp) -> Vec<Condition> {
    let condition = builder(before, now);
    let mut conditions = Vec::new();
    conditions.push(match finding.failure {
        Some(failure) => condition("Degraded", "True", failure.reason, &failure.message),
        None => condition("Degraded", "False", "", ""),
    });
    conditions.push(match finding.progressing {
        Some((reason, message)) => condition("Progressing", "True", reason, message),
        None => condition("Progressing", "False", "", ""),
    });
    let available = before.iter().find(|condition| condition.kind == "Available");
    if finding.reached || available.is_some_and(|condition| condition.status == "True") {
        // `Available` stays true afterwards: the other conditions report failures.
        conditions.push(condition("Available", "True", "", ""));
    } else if finding.progressing.is_some() || available.is_some() {
        conditions.push(condition("Available", "False", "Startup", messages::STARTING_UP));
    }
    conditions.push(condition("Upgradeable", "True", "", ""));
    if let Some(state) = finding.observability {
        let (status, reason, message) = state.condition();
        conditions.push(condition(observability::CONDITION, status, reason, message));
    }
    // Conditions of other controllers stay.
    let ours: Vec<String> = conditions
        .iter()
        .map(|condition| condition.kind.clone())
        .collect();
    conditions.extend(
        before
            .iter()
            .filter(|condition| !ours.contains(&condition.kind))
            .cloned(),
    );
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    // cluster-network#199
    #[test]
    fn network_observability_stays_deployed() {
        use crate::observability::{CONDITION, State};
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut conditions = Vec::new();
        for (second, state, expected) in [
            (1, None, None),
            (
                2,
                Some(State::InProgress("a".to_owned())),
                Some(("False", "a", 2)),
            ),
            (3, Some(State::Failed("b".to_owned())), Some(("False", "b", 2))),
            (
                4,
                Some(State::Complete),
                Some(("True", "Network Observability has been deployed", 4)),
            ),
            (
                5,
                None,
                Some(("True", "Network Observability has been deployed", 4)),
            ),
        ] {
            let finding = Finding {
                failure: None,
                progressing: None,
                reached: false,
                observability: state.as_ref(),
            };
            conditions = next(&finding, &conditions, at(second));
            let found = conditions.iter().find(|it| it.kind == CONDITION);
            let found = found.map(|it| {
                let since = it.last_transition_time.as_ref().map(|time| time.0.as_second());
                (it.status.as_str(), it.message.as_str(), since.unwrap_or_default())
            });
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn conditions_follow_rollouts_and_failures() {
        use crate::workloads::{State, assess};
        let at = |second| Timestamp::from_second(second).expect("a time");
        let workload = |unavailable: i64| {
            serde_json::json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": { "name": "a", "namespace": "ns", "generation": 1,
                    "annotations": { "release.openshift.io/version": "1" } },
                "status": { "currentNumberScheduled": 2, "updatedNumberScheduled": 2, "numberUnavailable": unavailable,
                    "numberAvailable": 2 - unavailable, "observedGeneration": 1 },
            })
        };
        let reported = |conditions: &[Condition], kind: &str| {
            let condition = conditions
                .iter()
                .find(|condition| condition.kind == kind)
                .expect("a condition");
            let since = condition
                .last_transition_time
                .as_ref()
                .map(|time| time.0.as_second());
            format!(
                "{} {} {} @{}",
                condition.status,
                condition.reason,
                condition.message,
                since.unwrap_or_default()
            )
        };
        let (mut conditions, mut state) = (Vec::new(), State::read(None, false));
        let awaiting = |nodes: i64| {
            format!("True Deploying DaemonSet \"/ns/a\" is not available (awaiting {nodes} nodes) @1")
        };
        for (second, unavailable, progressing, available) in [
            (
                1,
                None,
                "True Deploying Deploying @1".to_owned(),
                "False Startup The network is starting up @1",
            ),
            (
                2,
                Some(2),
                awaiting(2),
                "False Startup The network is starting up @1",
            ),
            (
                3,
                Some(1),
                awaiting(1),
                "False Startup The network is starting up @1",
            ),
            (4, Some(0), "False   @4".to_owned(), "True   @4"),
        ] {
            let workload = unavailable.map(workload);
            let found = assess(
                &workload.iter().collect::<Vec<_>>(),
                &state,
                "1",
                true,
                at(second),
            );
            let lines = found.progress();
            let finding = Finding {
                failure: None,
                progressing: (!lines.is_empty()).then_some(("Deploying", lines.as_str())),
                reached: found.reached,
                observability: None,
            };
            conditions = next(&finding, &conditions, at(second));
            state = found.state;
            assert_eq!(reported(&conditions, "Progressing"), progressing);
            assert_eq!(reported(&conditions, "Available"), available);
            assert_eq!(reported(&conditions, "Degraded"), "False   @1");
            assert_eq!(reported(&conditions, "Upgradeable"), "True   @1");
        }
    }
}
