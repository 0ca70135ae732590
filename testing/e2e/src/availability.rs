//! Checks with a record of a cluster that the operator reported availability correctly.
//!
//! ```text
//! watches of configuration, DaemonSets, Deployments ──> Event ──> sorted by revision ──> violations
//! ```
//!
//! * Available=True lasts a second or longer, unless the configuration changed meanwhile.
//! * Available becomes True only when every workload is rolled out, as defined by `kubectl rollout status`. After a
//!   workload broke, the operator has [`NEWS`] to notice. After an edit, it has no such time once it reported
//!   Available=False.
//! * Available=True ends within [`REACTION`] after a workload breaks. Time without a running operator does not count.
//!
//! All objects are in one etcd, so that revisions give the exact order of the changes, even if a watch is late. Times
//! are times of arrival, and are only compared with tolerances.

mod event;

use std::collections::BTreeMap;
use std::time::Duration;

pub use event::{Configuration, Event, News, Workload, unfinished};

/// Time until the operator must observe a change: its watches are late on a busy machine.
pub const NEWS: Duration = Duration::from_secs(10);

/// Time until the operator must report a change. It writes the status at the end of a reconciliation, which applies
/// many objects one after the other.
pub const REACTION: Duration = Duration::from_secs(30);

/// A workload that was rolled out for this time is settled. If it breaks afterwards, a test broke it, for instance by a
/// kill of a daemon.
const SETTLED: Duration = Duration::from_secs(3);

/// The minimum time for which Available may be True.
const SHORTEST: Duration = Duration::from_secs(1);

/// Describes each false report. The events may have any order.
pub fn violations(mut events: Vec<Event>) -> Vec<String> {
    events.sort_by_key(|event| event.revision);
    let mut view = View::default();
    let mut found = Vec::new();
    for event in &events {
        found.extend(view.overdue(event.at));
        match &event.news {
            News::Configuration(now) => {
                found.extend(view.configuration(event.revision, event.at, now.as_ref()));
            }
            News::Workload(name, now) => view.workload(event.revision, event.at, name, now.as_ref()),
            News::Operator(true) => {
                view.operator.get_or_insert(event.at);
            }
            News::Operator(false) => view.operator = None,
            News::Disturbance => view.disturbed = Some(event.at),
        }
    }
    found
}

/// The state of the cluster after some of the events.
#[derive(Default)]
struct View<'a> {
    configuration: Option<&'a Configuration>,
    available: Option<Available<'a>>,
    /// Revision of the last status with Available other than True.
    unavailable: u64,
    workloads: BTreeMap<&'a str, Known<'a>>,
    /// Start of the operator.
    operator: Option<Duration>,
    /// Time of the last change of the configuration, until the operator edits a workload for it.
    configured: Option<Duration>,
    /// Revision of the last edit or deletion of a workload.
    edited: u64,
    /// Time of the last damage by a test or an accident.
    disturbed: Option<Duration>,
}

/// A time in which Available is True.
struct Available<'a> {
    revision: u64,
    at: Duration,
    /// The transition time of the condition.
    since: &'a str,
}

/// The observed state of a workload.
struct Known<'a> {
    state: &'a Workload,
    /// Start of its current state, rolled out or not.
    since: Duration,
    /// Revision of an edit whose roll-out has not ended.
    rolling_since: Option<u64>,
    /// True if its current specification is or was [`SETTLED`].
    settled: bool,
    /// True if a violation in this state was found.
    reported: bool,
}

impl Known<'_> {
    fn is_broken(&self) -> bool {
        self.state.unfinished.is_some()
    }
}

impl<'a> View<'a> {
    fn configuration(&mut self, revision: u64, at: Duration, now: Option<&'a Configuration>) -> Vec<String> {
        let before = std::mem::replace(&mut self.configuration, now);
        let specification = |configuration: &Configuration| (configuration.generation, configuration.ending);
        if before.is_some() && before.map(specification) != now.map(specification) {
            self.configured = Some(at);
        }
        let found = match (self.available.take(), now.filter(|now| now.available)) {
            (None, Some(now)) => {
                self.available = Some(Available {
                    revision,
                    at,
                    since: &now.since,
                });
                // Without an earlier configuration, the record does not contain the transition to True.
                before.map_or_else(Vec::new, |_| self.premature(at))
            }
            (Some(began), None) => {
                let ended = now.map_or("", |now| now.since.as_str());
                let short = is_short(&began, at, ended) && !self.is_excused(&began);
                let text = || format!("Available was True for less than a second, at {}", began.since);
                short.then(text).into_iter().collect()
            }
            (before, _) => {
                self.available = before;
                Vec::new()
            }
        };
        if self.available.is_none() {
            self.unavailable = revision;
        }
        found
    }

    /// Returns true if Available may have ended at once, because of a change that the operator had not observed when it
    /// became True.
    fn is_excused(&self, began: &Available<'_>) -> bool {
        let recent = |time: Option<Duration>| time.is_some_and(|time| time + NEWS >= began.at);
        self.edited > began.revision || recent(self.configured) || recent(self.disturbed)
    }

    fn workload(&mut self, revision: u64, at: Duration, name: &'a str, now: Option<&'a Workload>) {
        let before = self.workloads.remove(name);
        let Some(state) = now else {
            if before.is_some() {
                self.edit(revision);
            }
            return;
        };
        let broken = state.unfinished.is_some();
        let known = match before {
            // A workload whose first state is not rolled out is new.
            None => Known {
                state,
                since: at,
                rolling_since: broken.then_some(revision),
                settled: !broken,
                reported: false,
            },
            Some(before) => {
                let edited = before.state.generation != state.generation;
                let lasted = !before.is_broken() && at.saturating_sub(before.since) >= SETTLED;
                let settled = !edited && (before.settled || lasted);
                let same = broken == before.is_broken();
                if edited {
                    self.edit(revision);
                } else if settled && broken && !same {
                    self.disturbed = Some(at);
                }
                let rolling_since = if edited {
                    Some(revision)
                } else {
                    before.rolling_since
                };
                Known {
                    state,
                    since: if same { before.since } else { at },
                    rolling_since: rolling_since.filter(|_| broken),
                    settled,
                    reported: same && before.reported,
                }
            }
        };
        self.workloads.insert(name, known);
    }

    /// Records the edit of a workload. The operator has observed earlier changes of the configuration.
    fn edit(&mut self, revision: u64) {
        self.edited = revision;
        self.configured = None;
    }

    /// Workloads that are not rolled out when Available becomes True, and that the operator has observed.
    fn premature(&mut self, now: Duration) -> Vec<String> {
        let reported = self.unavailable;
        let tolerated = |known: &Known<'_>| match known.rolling_since {
            Some(edit) if edit < reported => Duration::ZERO,
            _ => NEWS,
        };
        self.blame(now, tolerated, Duration::ZERO, "became True")
    }

    /// Workloads that have not been rolled out for so long that the operator must have reported it.
    fn overdue(&mut self, now: Duration) -> Vec<String> {
        match (&self.available, &self.operator) {
            (Some(began), Some(operator)) => {
                let from = began.at.max(*operator);
                self.blame(now, |_| REACTION, from, "stayed True")
            }
            _ => Vec::new(),
        }
    }

    /// Workloads that have not been rolled out for longer than tolerated, in the time since `from`.
    fn blame(
        &mut self,
        now: Duration,
        tolerated: impl Fn(&Known<'_>) -> Duration,
        from: Duration,
        what: &str,
    ) -> Vec<String> {
        let node_state = self
            .configuration
            .is_some_and(|configuration| configuration.node_state);
        let mut found = Vec::new();
        for (name, known) in &mut self.workloads {
            let Some(why) = &known.state.unfinished else {
                continue;
            };
            if known.state.of_node_state && !node_state {
                continue;
            }
            let time = now.saturating_sub(known.since.max(from));
            if time > tolerated(known) && !known.reported {
                known.reported = true;
                found.push(format!(
                    "Available {what} while {name} was not rolled out for {:.1} s: {why}",
                    time.as_secs_f64()
                ));
            }
        }
        found
    }
}

/// Returns true if Available was True for less than [`SHORTEST`]. Its condition has whole seconds: across a change of
/// the second, the times of arrival decide, unless the times of the condition contradict them.
fn is_short(began: &Available<'_>, at: Duration, ended: &str) -> bool {
    let (Some(first), Some(last)) = (second_of_day(began.since), second_of_day(ended)) else {
        return false;
    };
    let arrived_together = at.saturating_sub(began.at) < SHORTEST;
    first == last || (arrived_together && last.checked_sub(first) == Some(1))
}

/// Returns the second of the day of an API server's time, `2026-01-02T03:04:05Z`.
fn second_of_day(time: &str) -> Option<u32> {
    let (_, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let numbers: Option<Vec<u32>> = clock.split(':').map(|number| number.parse().ok()).collect();
    match numbers?.as_slice() {
        [hour, minute, second] => Some((hour * 60 + minute) * 60 + second),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
