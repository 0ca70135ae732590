//! The status of the configuration resource: a pure function of the status before and of what was found
//! out since (operator §7).
//!
//! ```text
//! failure of the configuration ─┐
//! workloads ────────────────────┼──> next ──> status to write, if it differs
//! containers that were rendered ┘        └──> events
//! ```

use api::network_addons::{Condition, Container, NetworkAddonsConfigStatus};
use k8s_openapi::jiff::Timestamp;
use kube_kit::{conditions, events::Kind};

use crate::{
    messages,
    names::{condition, reason},
    workloads::{Failure, Progress},
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
    /// The configuration could not be applied: nothing is said about workloads.
    Rejected(Failure),
    /// The configuration is applied.
    Applied {
        /// How far the workloads are.
        progress: Progress,
        /// Containers that were rendered.
        containers: Vec<Container>,
    },
    /// A workload that was applied before is gone; it is not restored yet.
    Lost(Failure),
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
    match finding {
        Finding::Rejected(failure) => write.rejected(failure),
        Finding::Lost(failure) => write.pods_failed(failure),
        Finding::Applied { progress, containers } => {
            write.status.containers.clone_from(containers);
            match progress {
                Progress::Failed(failure) => write.pods_failed(failure),
                Progress::Lines(lines) => write.progress(lines, operator_version),
            }
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

struct Write {
    status: NetworkAddonsConfigStatus,
    events: Vec<Event>,
    now: Timestamp,
}

impl Write {
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
