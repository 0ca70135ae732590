//! What becomes of a check's status by one more result: lists of the latest entries, outages, and the condition
//! (cluster-network §13.3, §13.4).
//!
//! ```text
//!             failure: an outage begins            failure: goes on
//!           ┌───────────────────────────┐        ┌──────────────────┐
//! reachable ┤                           ├─> outage                  │
//!           └───────────────────────────┘        └──────────────────┘
//!             success: it ends
//! ```
//!
//! The last step of a result decides: a host whose name is resolved, and that refuses connections, is out of reach.

use std::cmp::Ordering;
use std::time::Duration;

use api::connectivity_check::{Condition, LogEntry, Outage, PodNetworkConnectivityCheckStatus as Status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube_kit::conditions;
use kube_kit::duration::GoDuration;

use crate::messages;
use crate::names::{REACHABLE, entry, reason};

#[cfg(test)]
pub(crate) mod tests;

/// Entries of a list of successes or failures.
pub const ENTRIES: usize = 10;
/// Outages that are kept.
pub const OUTAGES: usize = 20;
/// Entries in each of the two lists of an outage.
pub const OUTAGE_ENTRIES: usize = 5;

/// One step of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    /// When it began.
    pub at: Timestamp,
    /// Whether it succeeded.
    pub success: bool,
    /// Which step it was and how it ended.
    pub reason: &'static str,
    /// The same in words.
    pub message: String,
    /// How long it took.
    pub latency: Duration,
}

/// The result of one check of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outcome {
    /// The host's name was resolved; there is no such step for an address.
    pub resolved: Option<Step>,
    /// The last step, which decides.
    pub last: Step,
}

/// An outage began or ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Edge {
    /// It began with this failure.
    Began {
        /// Message of the failure.
        failure: String,
    },
    /// It ended with this success.
    Ended {
        /// How long the outage lasted.
        after: GoDuration,
        /// Message of the success.
        success: String,
    },
}

impl Step {
    fn entry(&self) -> LogEntry {
        LogEntry {
            time: Some(Time(self.at)),
            success: self.success,
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            latency: Some(GoDuration::from(self.latency).to_string()),
        }
    }
}

impl Outcome {
    /// When the check began.
    pub fn at(&self) -> Timestamp {
        self.resolved.as_ref().map_or(self.last.at, |step| step.at)
    }

    /// Whether the endpoint was reached.
    pub fn success(&self) -> bool {
        self.last.success
    }

    /// Whether the host's name is known not to be resolved.
    pub fn is_unresolved(&self) -> bool {
        self.last.reason == entry::DNS_ERROR
    }

    /// Which result is the earlier one.
    pub fn order(&self, other: &Self) -> Ordering {
        self.at().cmp(&other.at())
    }
}

/// Takes one more result into a status, the latest so far. Tells when an outage began or ended by it.
///
/// The order of calls counts, and not the clock: a clock that is set back must not hide an outage.
pub fn record(status: &mut Status, outcome: &Outcome) -> Option<Edge> {
    if let Some(resolved) = &outcome.resolved {
        log(status, resolved);
    }
    log(status, &outcome.last);
    let open = status.outages.first_mut().filter(|outage| outage.end.is_none());
    let edge = match (open, outcome.success()) {
        (None, true) => None,
        (None, false) => {
            status.outages.insert(0, begin(&outcome.last));
            status.outages.truncate(OUTAGES);
            let failure = outcome.last.message.clone();
            Some(Edge::Began { failure })
        }
        (Some(outage), false) => {
            go_on(outage, outcome.last.entry());
            None
        }
        (Some(outage), true) => Some(end(outage, &outcome.last)),
    };
    set_reachable(status, &outcome.last);
    edge
}

fn log(status: &mut Status, step: &Step) {
    let list = if step.success {
        &mut status.successes
    } else {
        &mut status.failures
    };
    list.insert(0, step.entry());
    list.truncate(ENTRIES);
}

fn begin(failure: &Step) -> Outage {
    let entry = failure.entry();
    Outage {
        start: Some(Time(failure.at)),
        end: None,
        start_logs: vec![entry.clone()],
        end_logs: vec![entry],
        message: messages::outage(failure.at),
    }
}

fn go_on(outage: &mut Outage, failure: LogEntry) {
    let before = outage.start_logs.first().map(|entry| &entry.message);
    if outage.start_logs.len() < OUTAGE_ENTRIES && before != Some(&failure.message) {
        outage.start_logs.insert(0, failure.clone());
    }
    outage.end_logs.insert(0, failure);
    outage.end_logs.truncate(OUTAGE_ENTRIES);
}

fn end(outage: &mut Outage, success: &Step) -> Edge {
    let lasted = outage
        .start
        .as_ref()
        .map(|start| success.at.duration_since(start.0));
    // A clock that was set back makes it less than nothing.
    let lasted = lasted.and_then(|lasted| Duration::try_from(lasted).ok());
    let after = GoDuration::from(lasted.unwrap_or_default());
    outage.end = Some(Time(success.at));
    outage.end_logs.insert(0, success.entry());
    outage.end_logs.truncate(OUTAGE_ENTRIES);
    outage.message = messages::restored(after);
    Edge::Ended {
        after,
        success: success.message.clone(),
    }
}

fn set_reachable(status: &mut Status, last: &Step) {
    let (value, why) = if last.success {
        ("True", reason::SUCCESS)
    } else {
        ("False", last.reason)
    };
    let at = status
        .conditions
        .iter()
        .position(|condition| condition.type_ == REACHABLE);
    let before = at.and_then(|at| status.conditions.get(at));
    let before = before.map(|it| (it.status.as_str(), it.last_transition_time.as_ref()));
    let condition = Condition {
        type_: REACHABLE.to_owned(),
        status: value.to_owned(),
        reason: why.to_owned(),
        message: last.message.clone(),
        last_transition_time: Some(conditions::since(before, value, last.at)),
    };
    match at.and_then(|at| status.conditions.get_mut(at)) {
        Some(slot) => *slot = condition,
        None => status.conditions.push(condition),
    }
}
