//! The status of the configuration resource: a pure function of the status before and of what was found
//! out since (operator §7).
//!
//! ```text
//! failures, by component ───────┐
//! workloads, by component ──────┼──> next ──> status to write, if it differs
//! containers that were rendered ┘        └──> events
//! ```
//!
//! What holds whatever is found, in whatever order: Available is never True together with Degraded or Progressing, nor
//! while a component's own condition is not True; neither becomes True while a workload has been ready for less than
//! [`HOLD`](workloads::HOLD); a finding that says nothing new changes nothing and tells nothing.

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

/// Whether everything that is asked for is there.
pub fn is_available(status: &NetworkAddonsConfigStatus) -> bool {
    let available = status
        .conditions
        .iter()
        .find(|found| found.kind == condition::AVAILABLE);
    available.is_some_and(|found| found.status == "True")
}

/// What was found out in a reconcile.
#[derive(Clone, Debug)]
pub enum Finding {
    /// Nothing of the configuration was applied; what was deployed before is left as it is.
    Rejected {
        /// Why.
        failure: Failure,
        /// What was deployed before; empty when that is not known, such as after a restart.
        components: Vec<Component>,
    },
    /// A workload that was applied before is gone; it is not restored yet.
    Lost {
        /// Which.
        failure: Failure,
        /// What was deployed before.
        components: Vec<Component>,
    },
    /// The configuration was applied, as far as it could be.
    Applied {
        /// What could not.
        failures: Failures,
        /// All components that are deployed, also those that failed.
        components: Vec<Component>,
        /// Containers that were rendered.
        containers: Vec<Container>,
    },
}

/// A deployed component.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Component {
    /// Its name.
    pub name: &'static str,
    /// Its workloads, and how far they are.
    pub workloads: Vec<Workload>,
}

/// Sums up the workloads of all components.
pub fn progress(components: &[Component]) -> Progress {
    workloads::progress(components.iter().flat_map(|component| &component.workloads))
}

/// An event about the configuration resource.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// How it is meant.
    pub kind: Kind,
    /// One word, or two.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Status and events that follow from a finding. The status is equal to `before` when nothing changed.
/// Events are told once: not again as long as the status says the same.
pub fn next(
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
            write.forget_all_but(components);
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

/// Whether two statuses differ in nothing but messages, such as which nodes a roll-out waits for.
pub fn differ_in_messages_alone(
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
    /// Of conditions of one type, which no operator writes, the first one stays.
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

    /// Degraded is True for the failure; its event is told when that is news.
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

    /// Whether a condition becomes True only after [`HOLD`](workloads::HOLD): it says otherwise by now. One that is not
    /// there, as under an operator that writes none for components, counts as saying what Available says.
    fn waits(&self, kind: &str) -> bool {
        let found = self.find(kind).or_else(|| self.find(condition::AVAILABLE));
        found.is_some_and(|found| found.status != "True")
    }

    /// Whether Available waits for workloads that just became ready, itself or because their component's condition does.
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

    /// Each component's own condition says whether it alone is available.
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

    /// What is not deployed any more has no condition.
    fn forget_all_but(&mut self, components: &[Component]) {
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
