//! The status of the configuration resource: a pure function of the previous status and the finding of a reconcile
//! (operator §7).
//!
//! ```text
//! failures, by component ───────┐
//! workloads, by component ──────┼──> next ──> status to write, if it differs
//! containers that were rendered ┘        └──> events
//! ```
//!
//! Invariants for any sequence of findings: Available is never True together with Degraded or Progressing, nor while a
//! component's own condition is not True; neither becomes True while a workload has been ready for less than
//! [`HOLD`](workloads::HOLD); a finding that repeats the status changes nothing and emits no event.

use std::collections::BTreeSet;

use api::network_addons::{Condition, Container, NetworkAddonsConfigStatus};
use k8s_openapi::jiff::Timestamp;
use kube_kit::{conditions, events::Kind};

use crate::{
    failures::{Failure, Failures},
    messages,
    names::{condition, reason},
    workloads::{self, Progress, Workload},
};

/// Whether the requested components are available.
pub(crate) fn is_available(status: &NetworkAddonsConfigStatus) -> bool {
    let available = status
        .conditions
        .iter()
        .find(|found| found.kind == condition::AVAILABLE);
    available.is_some_and(|found| found.status == "True")
}

/// The result of a reconcile.
#[derive(Clone, Debug)]
pub(crate) enum Finding {
    /// The configuration as a whole was rejected; deployed components are unchanged.
    Rejected {
        failure: Failure,
        /// Components of the previous deployment; empty if unknown, such as after a restart.
        components: Vec<Component>,
    },
    /// A workload that was applied before is gone, and not restored yet.
    Lost {
        failure: Failure,
        /// Components of the previous deployment.
        components: Vec<Component>,
    },
    /// The configuration was applied, apart from the failures.
    Applied {
        failures: Failures,
        /// All deployed components, including those that failed.
        components: Vec<Component>,
        /// Rendered containers.
        containers: Vec<Container>,
    },
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Component {
    pub(crate) name: &'static str,
    pub(crate) workloads: Vec<Workload>,
}

/// Sums up the workloads of all components.
pub(crate) fn progress(components: &[Component]) -> Progress {
    workloads::progress(components.iter().flat_map(|component| &component.workloads))
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// Reason in CamelCase.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The status and the events that follow from a finding. The status equals `before` if nothing changed. An event is
/// emitted once, and not again while the status stays the same.
pub(crate) fn next(
    before: &NetworkAddonsConfigStatus,
    finding: &Finding,
    operator_version: &str,
    now: Timestamp,
) -> (NetworkAddonsConfigStatus, Vec<Event>) {
    let mut write = Write {
        status: before.clone(),
        events: Vec::new(),
        now,
    };
    write.keep_one_of_each();
    match finding {
        Finding::Rejected { failure, components } => {
            write.rejected(failure);
            write.components(components, &Failures::default());
        }
        Finding::Lost { failure, components } => {
            write.pods_failed(failure);
            write.components(components, &Failures::default());
        }
        Finding::Applied {
            failures,
            components,
            containers,
        } => {
            write.status.containers.clone_from(containers);
            match (failures.all(), progress(components)) {
                (Some(failure), _) => write.rejected(&failure),
                (None, Progress::Failed(failure)) => write.pods_failed(&failure),
                (None, Progress::JustReady(_)) if !write.has_to_wait(components) => {
                    write.progress(&[], operator_version);
                }
                (None, Progress::Lines(lines) | Progress::JustReady(lines)) => {
                    write.progress(&lines, operator_version);
                }
            }
            write.remove_all_but(components);
            write.components(components, failures);
        }
    }
    write
        .status
        .conditions
        .retain(|found| found.kind != condition::FAILING);
    operator_version.clone_into(&mut write.status.operator_version);
    operator_version.clone_into(&mut write.status.target_version);
    (write.status, write.events)
}

/// Whether two statuses differ only in messages, such as the nodes that a roll-out waits for.
pub(crate) fn differ_in_messages_alone(
    before: &NetworkAddonsConfigStatus,
    after: &NetworkAddonsConfigStatus,
) -> bool {
    let mute = |status: &NetworkAddonsConfigStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.message.clear();
        }
        status
    };
    before != after && mute(before) == mute(after)
}

struct Write {
    status: NetworkAddonsConfigStatus,
    events: Vec<Event>,
    now: Timestamp,
}

impl Write {
    /// Keeps the first of several conditions of one type. No operator writes several.
    fn keep_one_of_each(&mut self) {
        let mut seen = BTreeSet::new();
        self.status
            .conditions
            .retain(|found| seen.insert(found.kind.clone()));
    }

    fn find(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|found| found.kind == kind)
    }

    fn says(&self, kind: &str, status: &str) -> bool {
        self.find(kind).is_some_and(|found| found.status == status)
    }

    fn set(&mut self, kind: &str, status: bool, reason: &str, message: &str) {
        let status = if status { "True" } else { "False" };
        let old = self.status.conditions.iter_mut().find(|found| found.kind == kind);
        let before = old
            .as_ref()
            .map(|old| (old.status.as_str(), old.last_transition_time.as_ref()));
        let condition = Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_heartbeat_time: old.as_ref().and_then(|old| old.last_heartbeat_time.clone()),
            last_transition_time: Some(conditions::since(before, status, self.now)),
        };
        match old {
            Some(old) => *old = condition,
            None => self.status.conditions.push(condition),
        }
    }

    fn event(&mut self, kind: Kind, reason: impl Into<String>, message: impl Into<String>) {
        self.events.push(Event {
            kind,
            reason: reason.into(),
            message: message.into(),
        });
    }

    fn failed_event(&mut self, reason: &str, message: &str) {
        self.event(
            Kind::Warning,
            messages::failed_reason(reason),
            messages::operator_failed(message),
        );
    }

    /// Sets Degraded to True, with an event if that is a change.
    fn degraded(&mut self, failure: &Failure) {
        let known = self.find(condition::DEGRADED).is_some_and(|found| {
            found.status == "True" && found.reason == failure.reason && found.message == failure.message
        });
        if !known {
            self.failed_event(failure.reason, &failure.message);
        }
        self.set(condition::DEGRADED, true, failure.reason, &failure.message);
    }

    fn rejected(&mut self, failure: &Failure) {
        self.degraded(failure);
        if !self.says(condition::AVAILABLE, "False") {
            self.failed_event(reason::FAILING, messages::UNABLE_TO_APPLY);
        }
        self.set(
            condition::AVAILABLE,
            false,
            reason::FAILING,
            messages::UNABLE_TO_APPLY,
        );
        self.set(
            condition::PROGRESSING,
            false,
            reason::INVALID_CONFIGURATION,
            messages::HUMAN_NEEDED,
        );
    }

    fn pods_failed(&mut self, failure: &Failure) {
        self.degraded(failure);
        if !self.says(condition::AVAILABLE, "False") {
            self.failed_event(reason::FAILING, messages::PODS_FAILING);
        }
        self.set(
            condition::AVAILABLE,
            false,
            reason::FAILING,
            messages::PODS_FAILING,
        );
    }

    /// Whether a condition must wait for [`HOLD`](workloads::HOLD) before it becomes True: it is not True now. An
    /// absent condition counts as equal to Available, because earlier operators write none for components.
    fn waits(&self, kind: &str) -> bool {
        let found = self.find(kind).or_else(|| self.find(condition::AVAILABLE));
        found.is_some_and(|found| found.status != "True")
    }

    /// Whether Available has to wait for workloads that just became ready, directly or through the condition of a
    /// component.
    fn has_to_wait(&self, components: &[Component]) -> bool {
        let just_ready = |component: &&Component| {
            matches!(
                workloads::progress(component.workloads.iter()),
                Progress::JustReady(_)
            )
        };
        let mut all = components.iter().filter(just_ready);
        self.waits(condition::AVAILABLE)
            || all.any(|component| self.waits(&condition::of_component(component.name)))
    }

    /// Sets each component's own condition to whether that component is available.
    fn components(&mut self, components: &[Component], failures: &Failures) {
        for component in components {
            let kind = condition::of_component(component.name);
            let failed = failures.of(component.name);
            match (failed, workloads::progress(component.workloads.iter())) {
                (Some(failure), _) | (None, Progress::Failed(failure)) => {
                    self.set(&kind, false, failure.reason, &failure.message);
                }
                (None, Progress::JustReady(_)) if !self.waits(&kind) => self.set(&kind, true, "", ""),
                (None, Progress::Lines(lines)) if lines.is_empty() => self.set(&kind, true, "", ""),
                (None, Progress::Lines(lines) | Progress::JustReady(lines)) => {
                    self.set(&kind, false, reason::DEPLOYING, &lines.join("\n"));
                }
            }
        }
    }

    /// Removes the conditions of components that are no longer deployed.
    fn remove_all_but(&mut self, components: &[Component]) {
        self.status.conditions.retain(|found| {
            !condition::is_of_component(&found.kind)
                || components
                    .iter()
                    .any(|component| condition::of_component(component.name) == found.kind)
        });
    }

    fn progress(&mut self, lines: &[String], operator_version: &str) {
        self.set(condition::DEGRADED, false, "", "");
        if lines.is_empty() {
            self.set(condition::PROGRESSING, false, "", "");
            if self.says(condition::AVAILABLE, "False") {
                self.event(Kind::Normal, reason::AVAILABLE, messages::AVAILABLE);
            }
            self.set(condition::AVAILABLE, true, "", "");
            operator_version.clone_into(&mut self.status.observed_version);
        } else {
            if !self.says(condition::PROGRESSING, "True") {
                self.event(Kind::Normal, reason::PROGRESSING, messages::PROGRESSING);
            }
            self.set(condition::PROGRESSING, true, reason::DEPLOYING, &lines.join("\n"));
            self.set(condition::AVAILABLE, false, reason::STARTUP, messages::IN_PROCESS);
        }
    }
}

#[cfg(test)]
mod tests;
