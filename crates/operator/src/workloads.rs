//! States of the deployed workloads, from the status that the cluster reports (operator §7.2).

use std::{collections::BTreeMap, time::Duration};

use kube_kit::object::{DAEMON_SET, ObjectId};
use kube_kit::workload::progress as progress_of;
use serde_json::Value;
use tokio::time::Instant;

use crate::{failures::Failure, names::reason};

/// A condition becomes True only after workloads were ready for this time.
pub(crate) const HOLD: Duration = Duration::from_secs(1);

/// The observed state of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Observation<'a> {
    Seen(&'a Value),
    /// The workload does not exist.
    Gone {
        /// Whether its namespace exists.
        namespace: bool,
    },
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Workload {
    /// A DaemonSet or a Deployment; or an `NMState` in place of the operands of its operator.
    pub(crate) id: ObjectId,
    pub(crate) state: State,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// All of its pods are ready.
    Ready,
    /// All pods are ready, for less than [`HOLD`].
    JustReady,
    /// The workload is being rolled out; the text is a line of the message.
    Progressing(String),
    /// The workload does not exist.
    Gone(Failure),
}

/// State of several workloads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Progress {
    /// A workload does not exist.
    Failed(Failure),
    /// A line for each workload that is being rolled out; empty when all are ready.
    Lines(Vec<String>),
    /// All are ready, some of them for less than [`HOLD`]: a line for each of those.
    JustReady(Vec<String>),
}

impl Workload {
    pub(crate) fn observed(id: ObjectId, observation: &Observation<'_>) -> Self {
        let state = match observation {
            Observation::Gone { namespace } => State::Gone(gone(&id, *namespace)),
            Observation::Seen(object) => {
                progress_of(&id.kind, &subject(&id), object).map_or(State::Ready, State::Progressing)
            }
        };
        Self { id, state }
    }
}

/// Sums up workloads, `DaemonSet`s first. The first missing one decides.
pub(crate) fn progress<'a>(workloads: impl Iterator<Item = &'a Workload>) -> Progress {
    let mut workloads: Vec<_> = workloads.collect();
    workloads.sort_by_key(|workload| workload.id.kind != DAEMON_SET.kind);
    let (mut lines, mut just_ready) = (Vec::new(), Vec::new());
    for workload in workloads {
        match &workload.state {
            State::Gone(failure) => return Progress::Failed(failure.clone()),
            State::Progressing(line) => lines.push(line.clone()),
            State::JustReady => just_ready.push(format!(
                "{} has been available for less than a second",
                subject(&workload.id)
            )),
            State::Ready => {}
        }
    }
    if lines.is_empty() && !just_ready.is_empty() {
        Progress::JustReady(just_ready)
    } else {
        Progress::Lines(lines)
    }
}

/// The unfinished steps of existing workloads, with the texts of the status.
pub fn unfinished(live: &[&Value]) -> Vec<String> {
    let workloads: Vec<_> = live
        .iter()
        .map(|object| Workload::observed(ObjectId::of(object), &Observation::Seen(object)))
        .collect();
    match progress(workloads.iter()) {
        Progress::Lines(lines) | Progress::JustReady(lines) => lines,
        Progress::Failed(failure) => vec![failure.message],
    }
}

/// The time since when workloads are ready without an observed interruption.
#[derive(Debug, Default)]
pub(crate) struct ReadySince(BTreeMap<ObjectId, Instant>);

impl ReadySince {
    /// Marks workloads that became ready less than [`HOLD`] before `now`, and returns the end of the first hold.
    /// Forgets workloads that are not ready or not given.
    pub(crate) fn mark<'a>(
        &mut self,
        workloads: impl Iterator<Item = &'a mut Workload>,
        now: Instant,
    ) -> Option<Instant> {
        let before = std::mem::take(&mut self.0);
        let mut first: Option<Instant> = None;
        for workload in workloads.filter(|workload| workload.state == State::Ready) {
            let since = before.get(&workload.id).copied().unwrap_or(now);
            self.0.insert(workload.id.clone(), since);
            let end = since + HOLD;
            if end > now {
                workload.state = State::JustReady;
                first = Some(first.map_or(end, |first| first.min(end)));
            }
        }
        first
    }
}

fn gone(id: &ObjectId, namespace: bool) -> Failure {
    let place = id.namespace.as_deref().unwrap_or_default();
    let name = &id.name;
    if !namespace {
        let message = format!("Namespace \"{place}\" does not exist");
        return Failure {
            reason: reason::NO_NAMESPACE,
            message,
        };
    }
    let reason = if id.kind == "DaemonSet" {
        reason::NO_DAEMON_SET
    } else {
        reason::NO_DEPLOYMENT
    };
    Failure {
        reason,
        message: format!("Expected {} \"{place}/{name}\" does not exist", id.kind),
    }
}

fn subject(id: &ObjectId) -> String {
    let ObjectId { kind, name, .. } = id;
    match &id.namespace {
        Some(namespace) => format!("{kind} \"{namespace}/{name}\""),
        None => format!("{kind} \"{name}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_kit::object::DEPLOYMENT;
    use serde_json::json;

    fn evaluate(observations: &[(ObjectId, Observation<'_>)]) -> Progress {
        let workloads: Vec<_> = observations
            .iter()
            .map(|(id, observation)| Workload::observed(id.clone(), observation))
            .collect();
        progress(workloads.iter())
    }

    fn lines(id: ObjectId, object: &Value) -> Vec<String> {
        match evaluate(&[(id, Observation::Seen(object))]) {
            Progress::Lines(lines) => lines,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn progress_of_daemon_set_is_first_unfinished_step() {
        let status = |unavailable, available, updated, desired, generation, observed| {
            json!({
                "metadata": { "generation": generation },
                "status": {
                    "numberUnavailable": unavailable, "numberAvailable": available,
                    "updatedNumberScheduled": updated, "desiredNumberScheduled": desired,
                    "observedGeneration": observed,
                },
            })
        };
        for (object, line) in [
            (
                status(2, 0, 0, 2, 2, 1),
                Some("is not available (awaiting 2 nodes)"),
            ),
            (
                status(0, 0, 0, 2, 2, 1),
                Some("is not yet scheduled on any nodes"),
            ),
            (
                status(0, 2, 1, 2, 2, 1),
                Some("update is rolling out (1 out of 2 updated)"),
            ),
            (
                status(0, 2, 2, 2, 2, 1),
                Some("update is being processed (generation 2, observed generation 1)"),
            ),
            (status(0, 2, 2, 2, 2, 2), None),
            (status(0, 0, 0, 0, 1, 1), None),
            (
                json!({ "metadata": { "generation": 1 } }),
                Some("update is being processed (generation 1, observed generation 0)"),
            ),
        ] {
            let expected: Vec<_> = line
                .map(|line| format!("DaemonSet \"ns/multus\" {line}"))
                .into_iter()
                .collect();
            assert_eq!(lines(DAEMON_SET.object(Some("ns"), "multus"), &object), expected);
        }
    }

    #[test]
    fn progress_of_deployment_is_first_unfinished_step() {
        let status = |unavailable, available, updated, generation, observed| {
            json!({
                "metadata": { "generation": generation },
                "status": {
                    "unavailableReplicas": unavailable, "availableReplicas": available,
                    "updatedReplicas": updated, "observedGeneration": observed,
                },
            })
        };
        for (object, line) in [
            (status(1, 0, 0, 2, 1), Some("is not available (awaiting 1 nodes)")),
            (status(0, 0, 0, 2, 1), Some("is not yet scheduled on any nodes")),
            (
                status(0, 1, 0, 2, 2),
                Some("update is rolling out (0 out of 1 updated)"),
            ),
            (
                status(0, 1, 1, 2, 1),
                Some("update is being processed (generation 2, observed generation 1)"),
            ),
            (status(0, 1, 1, 2, 2), None),
        ] {
            let expected: Vec<_> = line
                .map(|line| format!("Deployment \"ns/pool\" {line}"))
                .into_iter()
                .collect();
            assert_eq!(lines(DEPLOYMENT.object(Some("ns"), "pool"), &object), expected);
        }
    }

    #[test]
    fn absent_workload_is_failure() {
        let daemon_set = DAEMON_SET.object(Some("ns"), "multus");
        let deployment = DEPLOYMENT.object(Some("ns"), "pool");
        let rolling = json!({ "status": { "numberUnavailable": 1 } });
        let failure = |reason, message: &str| {
            Progress::Failed(Failure {
                reason,
                message: message.to_owned(),
            })
        };
        assert_eq!(
            evaluate(&[
                (deployment.clone(), Observation::Gone { namespace: true }),
                (daemon_set.clone(), Observation::Gone { namespace: true }),
            ]),
            failure("NoDaemonSet", "Expected DaemonSet \"ns/multus\" does not exist"),
        );
        assert_eq!(
            evaluate(&[
                (daemon_set.clone(), Observation::Seen(&rolling)),
                (deployment, Observation::Gone { namespace: true }),
            ]),
            failure("NoDeployment", "Expected Deployment \"ns/pool\" does not exist"),
        );
        assert_eq!(
            evaluate(&[(daemon_set, Observation::Gone { namespace: false })]),
            failure("NoNamespace", "Namespace \"ns\" does not exist"),
        );
    }

    #[test]
    fn progress_lists_daemon_sets_before_deployments() {
        let object = json!({ "metadata": { "generation": 1 } });
        let progress = evaluate(&[
            (DEPLOYMENT.object(Some("ns"), "pool"), Observation::Seen(&object)),
            (
                DAEMON_SET.object(Some("ns"), "multus"),
                Observation::Seen(&object),
            ),
        ]);
        assert_eq!(
            progress,
            Progress::Lines(vec![
                "DaemonSet \"ns/multus\" update is being processed (generation 1, observed generation 0)"
                    .into(),
                "Deployment \"ns/pool\" is not yet scheduled on any nodes".into(),
            ])
        );
    }
    // operator#84
    #[test]
    fn ready_since_marks_workload_until_it_stayed_ready_for_a_second() {
        let id = DEPLOYMENT.object(Some("ns"), "pool");
        let mut ready = ReadySince::default();
        let begin = Instant::now();
        let mut look = |state: State, millis: u64| {
            let mut workload = Workload {
                id: id.clone(),
                state,
            };
            let now = begin + Duration::from_millis(millis);
            let end = ready.mark(std::iter::once(&mut workload), now);
            (workload.state, end.map(|end| (end - begin).as_millis()))
        };
        assert_eq!(look(State::Ready, 0), (State::JustReady, Some(1000)));
        assert_eq!(look(State::Ready, 999), (State::JustReady, Some(1000)));
        assert_eq!(look(State::Ready, 1000), (State::Ready, None));
        // An interruption restarts the hold.
        let rolling = State::Progressing("line".into());
        assert_eq!(look(rolling.clone(), 1500), (rolling, None));
        assert_eq!(look(State::Ready, 2000), (State::JustReady, Some(3000)));
        assert_eq!(look(State::Ready, 3500), (State::Ready, None));
    }

    // operator#84
    #[test]
    fn progress_of_workloads_that_just_became_ready_has_lines_only_while_nothing_rolls_out() {
        let of = |state| Workload {
            id: DEPLOYMENT.object(Some("ns"), "pool"),
            state,
        };
        let rolling = of(State::Progressing("line".into()));
        let both = [of(State::JustReady), rolling];
        assert_eq!(progress(both.iter()), Progress::Lines(vec!["line".into()]));
        let one = [of(State::JustReady), of(State::Ready)];
        assert_eq!(
            progress(one.iter()),
            Progress::JustReady(vec![
                "Deployment \"ns/pool\" has been available for less than a second".into()
            ])
        );
    }
}
