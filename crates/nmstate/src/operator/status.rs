//! Conditions of the deployment in the status of the `NMState` (nmstate §10.2).

use api::node_state::{Condition, Status};
use k8s_openapi::jiff::Timestamp;
use kube_kit::object::{DAEMON_SET, ObjectId};
use kube_kit::workload;
use serde_json::{Value, json};

use super::messages;
use super::names::reason;
use crate::conditions;
use crate::names::condition;

/// Outcome of a reconcile.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The deployment failed, with the cause.
    Failed(String),
    /// Workloads that are not rolled out yet, a line each.
    Deploying(Vec<String>),
    /// Everything is rolled out.
    Deployed {
        /// Unsupported entries of the TLS profile.
        ignored: Option<String>,
    },
}

/// A rendered workload and its observed state; `None` if it was just created.
pub(crate) type Workload<'a> = (&'a ObjectId, Option<&'a Value>);

/// Workloads that are not rolled out yet, `DaemonSets` first.
pub(crate) fn deploying<'a>(workloads: impl Iterator<Item = Workload<'a>>) -> Vec<String> {
    let mut workloads: Vec<Workload<'_>> = workloads.collect();
    workloads.sort_by_key(|(id, _)| id.kind != DAEMON_SET.kind);
    let line = |(id, seen): Workload<'_>| {
        let subject = format!("{} \"{}\"", id.kind, id.name);
        match seen {
            Some(object) => workload::progress(&id.kind, &subject, object),
            None => Some(workload::processed(&subject, 1, 0)),
        }
    };
    workloads.into_iter().filter_map(line).collect()
}

/// The conditions of an outcome; `None` if they are unchanged, and nothing has to be written.
pub(crate) fn conditions(before: &[Condition], outcome: &Outcome, now: Timestamp) -> Option<Vec<Condition>> {
    use Status::{False, True};
    let (available, degraded, progressing) = match outcome {
        Outcome::Failed(why) => {
            let not = (False, reason::INTERNAL_ERROR, why.clone());
            (not.clone(), (True, reason::INTERNAL_ERROR, why.clone()), not)
        }
        Outcome::Deploying(lines) => {
            let not = (False, reason::DEPLOYING, messages::DEPLOYING.to_owned());
            (not.clone(), not, (True, reason::DEPLOYING, lines.join("\n")))
        }
        Outcome::Deployed { ignored } => {
            let there = |status| (status, reason::DEPLOYED, messages::DEPLOYED.to_owned());
            let degraded = match ignored {
                Some(what) => (True, reason::TLS_PROFILE, what.clone()),
                None => there(False),
            };
            (there(True), degraded, there(False))
        }
    };
    let desired = [
        (condition::AVAILABLE, available),
        (condition::DEGRADED, degraded),
        (condition::PROGRESSING, progressing),
    ];
    let is_so = |(kind, (status, reason, message)): &(&str, (Status, &str, String))| {
        before.iter().any(|it| {
            it.kind == *kind && it.status == *status && it.reason == *reason && it.message == *message
        })
    };
    if desired.iter().all(is_so) {
        return None;
    }
    let mut after = before.to_vec();
    for (kind, (status, reason, message)) in desired {
        conditions::set(&mut after, kind, status, reason, &message, now);
    }
    Some(after)
}

/// The patch of the status.
pub(crate) fn patch(name: &str, conditions: &[Condition]) -> Value {
    json!({
        "apiVersion": kube_kit::object::NMSTATE.api_version(),
        "kind": super::names::OWNER_KIND,
        "metadata": { "name": name },
        "status": { "conditions": conditions },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_kit::object::DEPLOYMENT;

    fn texts(conditions: &[Condition]) -> Vec<String> {
        let line = |it: &Condition| format!("{} {:?} {} {}", it.kind, it.status, it.reason, it.message);
        conditions.iter().map(line).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    // nmstate#68, the conditions
    #[test]
    fn conditions_report_deploying_and_deployed() {
        let lines = vec![
            "DaemonSet \"nmstate-handler\" is …".to_owned(),
            "another".to_owned(),
        ];
        let first = conditions(&[], &Outcome::Deploying(lines.clone()), at(1)).expect("a change");
        assert_eq!(
            texts(&first),
            [
                "Available False Deploying Deploying is in progress",
                "Degraded False Deploying Deploying is in progress",
                "Progressing True Deploying DaemonSet \"nmstate-handler\" is …\nanother",
            ]
        );
        assert_eq!(conditions(&first, &Outcome::Deploying(lines), at(2)), None);
        let there = Outcome::Deployed { ignored: None };
        let second = conditions(&first, &there, at(3)).expect("a change");
        assert_eq!(
            texts(&second),
            [
                "Available True SuccessfullyDeployed All components are available and ready",
                "Degraded False SuccessfullyDeployed All components are available and ready",
                "Progressing False SuccessfullyDeployed All components are available and ready",
            ]
        );
        assert_eq!(conditions(&second, &there, at(4)), None);
    }

    #[test]
    fn failure_sets_all_conditions_and_ignored_profile_only_degraded() {
        let failed = conditions(&[], &Outcome::Failed("no image".to_owned()), at(1)).expect("a change");
        assert_eq!(
            texts(&failed),
            [
                "Available False InternalError no image",
                "Degraded True InternalError no image",
                "Progressing False InternalError no image",
            ]
        );
        let ignored = Some("curve X".to_owned());
        let partly = conditions(&failed, &Outcome::Deployed { ignored }, at(2)).expect("a change");
        assert_eq!(
            texts(&partly)[1],
            "Degraded True TLSProfileNotFullyHonored curve X"
        );
        assert_eq!(
            texts(&partly)[0],
            "Available True SuccessfullyDeployed All components are available and ready"
        );
    }

    #[test]
    fn deploying_lists_daemon_sets_first() {
        let webhook = DEPLOYMENT.object(Some("nmstate"), "nmstate-webhook");
        let metrics = DEPLOYMENT.object(Some("nmstate"), "nmstate-metrics");
        let handler = DAEMON_SET.object(Some("nmstate"), "nmstate-handler");
        let waits = json!({ "status": { "unavailableReplicas": 1 } });
        let there = json!({ "metadata": { "generation": 2 },
                            "status": { "availableReplicas": 1, "updatedReplicas": 1, "observedGeneration": 2 } });
        let workloads = [
            (&webhook, Some(&waits)),
            (&metrics, Some(&there)),
            (&handler, None),
        ];
        assert_eq!(
            deploying(workloads.into_iter()),
            [
                "DaemonSet \"nmstate-handler\" update is being processed (generation 1, observed generation 0)",
                "Deployment \"nmstate-webhook\" is not available (awaiting 1 nodes)",
            ]
        );
    }
}
