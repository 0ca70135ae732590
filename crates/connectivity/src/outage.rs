//! Adds a result to the status of a check: to the lists of results, the outages, and the condition (cluster-network
//! §13.3, §13.4).
//!
//! ```text
//!             failure: an outage starts            failure: continues
//!           ┌───────────────────────────┐        ┌──────────────────┐
//! reachable ┤                           ├─> outage                  │
//!           └───────────────────────────┘        └──────────────────┘
//!             success: the outage ends
//! ```
//!
//! The last step of a result decides: a host with a resolved name that refuses connections is unreachable.

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
pub(crate) const ENTRIES: usize = 10;
/// Entries of the list of outages.
pub(crate) const OUTAGES: usize = 20;
/// Entries in each of the two logs of an outage.
pub(crate) const OUTAGE_ENTRIES: usize = 5;

/// One step of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Step {
    /// Start of the step.
    pub at: Timestamp,
    pub success: bool,
    /// The step and its result, as a reason of entries.
    pub reason: &'static str,
    /// The step and its result, as text.
    pub message: String,
    pub latency: Duration,
}

/// The result of one check of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Outcome {
    /// The resolution of the host name. `None` if it failed, or if the host is an IP address.
    pub resolved: Option<Step>,
    /// The last step, which decides about success.
    pub last: Step,
}

/// The start or the end of an outage.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Edge {
    Started {
        /// Message of the failed step.
        failure: String,
    },
    Ended {
        /// Duration of the outage.
        after: GoDuration,
        /// Message of the successful step.
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
    /// Start of the check.
    pub(crate) fn at(&self) -> Timestamp {
        self.resolved.as_ref().map_or(self.last.at, |step| step.at)
    }

    /// True if the endpoint was reached.
    pub(crate) fn success(&self) -> bool {
        self.last.success
    }

    /// True if the host name was not resolved.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.last.reason == entry::DNS_ERROR
    }

    /// Compares the start times of two results.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.at().cmp(&other.at())
    }
}

/// Adds the latest result to a status. Returns the start or the end of an outage, if the result causes one.
///
/// The order of the calls decides, not the clock: an outage is recorded even if the clock is set back.
pub(crate) fn record(status: &mut Status, outcome: &Outcome) -> Option<Edge> {
    if let Some(resolved) = &outcome.resolved {
        log(status, resolved);
    }
    log(status, &outcome.last);
    let open = status.outages.first_mut().filter(|outage| outage.end.is_none());
    let edge = match (open, outcome.success()) {
        (None, true) => None,
        (None, false) => {
            status.outages.insert(0, start_outage(&outcome.last));
            status.outages.truncate(OUTAGES);
            let failure = outcome.last.message.clone();
            Some(Edge::Started { failure })
        }
        (Some(outage), false) => {
            continue_outage(outage, outcome.last.entry());
            None
        }
        (Some(outage), true) => Some(end_outage(outage, &outcome.last)),
    };
    set_reachable(status, &outcome.last);
    edge
}

/// The starts and ends of outages, each with the result that causes it.
pub(crate) type Edges = Vec<(Outcome, Edge)>;

/// Adds the results that a status lacks. Returns false if it has all of them.
///
/// `edges` are those of earlier attempts to write these results, whose answers may have been lost: those of results that
/// were stored nevertheless stay, so that afterwards `edges` are all that have to be published.
pub(crate) fn catch_up(status: &mut Status, results: &[Outcome], edges: &mut Edges) -> bool {
    let missing = missing(status, results);
    edges.retain(|(outcome, _)| results.contains(outcome) && !missing.contains(outcome));
    for outcome in missing {
        let edge = record(status, outcome);
        edges.extend(edge.map(|edge| (outcome.clone(), edge)));
    }
    !missing.is_empty()
}

/// The results that a status lacks. Results are written together and in order, so that all results up to a
/// recorded one are recorded.
fn missing<'a>(status: &Status, results: &'a [Outcome]) -> &'a [Outcome] {
    let recorded = results
        .iter()
        .rposition(|outcome| is_recorded(status, &outcome.last));
    recorded.map_or(results, |last| results.get(last + 1..).unwrap_or_default())
}

fn is_recorded(status: &Status, step: &Step) -> bool {
    let entry = step.entry();
    // Stored times have no fractions of a second.
    let second = |entry: &LogEntry| entry.time.as_ref().map(|time| time.0.as_second());
    list(status, step.success).iter().any(|known| {
        second(known) == second(&entry)
            && (&known.reason, &known.message, &known.latency)
                == (&entry.reason, &entry.message, &entry.latency)
    })
}

fn list(status: &Status, success: bool) -> &[LogEntry] {
    if success {
        &status.successes
    } else {
        &status.failures
    }
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

fn start_outage(failure: &Step) -> Outage {
    let entry = failure.entry();
    Outage {
        start: Some(Time(failure.at)),
        end: None,
        start_logs: vec![entry.clone()],
        end_logs: vec![entry],
        message: messages::outage(failure.at),
    }
}

fn continue_outage(outage: &mut Outage, failure: LogEntry) {
    let before = outage.start_logs.first().map(|entry| &entry.message);
    if outage.start_logs.len() < OUTAGE_ENTRIES && before != Some(&failure.message) {
        outage.start_logs.insert(0, failure.clone());
    }
    outage.end_logs.insert(0, failure);
    outage.end_logs.truncate(OUTAGE_ENTRIES);
}

fn end_outage(outage: &mut Outage, success: &Step) -> Edge {
    let lasted = outage
        .start
        .as_ref()
        .map(|start| success.at.duration_since(start.0));
    // The duration is negative if the clock was set back.
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
