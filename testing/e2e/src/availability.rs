//! Judges from a record of a cluster whether the operator reported availability truly.
//!
//! ```text
//! watches of configuration, DaemonSets, Deployments ──> Event ──> sorted by revision ──> violations
//! ```
//!
//! * Available=True never ends in the second in which it began, unless a change was asked for. Conditions have whole
//!   seconds: True for a short time over the turn of a second is not found, and True for longer is never found.
//! * Available becomes True only when every workload is rolled out, as `kubectl rollout status` defines it. A workload that
//!   broke within [`NEWS`] before does not count.
//! * Available=True ends within [`REACTION`] after a workload breaks. The time in which the operator does not run does not
//!   count.
//!
//! All objects are in one etcd, so that revisions give the exact order of the changes, also where a watch is late. Times
//! are times of arrival, and are only compared with the two tolerances.

mod event;

use std::collections::BTreeMap;
use std::time::Duration;

pub use event::{Configuration, Event, News, Workload};

/// How long the operator may not know of a change: its own watches are late on a busy machine.
pub const NEWS: Duration = Duration::from_secs(3);

/// How long the operator may take to report a change. It writes the status at the end of a reconcile, which applies many
/// objects one after the other.
pub const REACTION: Duration = Duration::from_secs(30);

/// A workload that was rolled out for so long is settled. When it breaks after that, a test broke it, for instance by
/// killing a daemon.
const SETTLED: Duration = Duration::from_secs(3);

/// Describes each false report. The events may be in any order.
pub fn violations(mut events: Vec<Event>) -> Vec<String> {
    events.sort_by_key(|event| event.revision);
    let mut view = View::default();
    let mut found = Vec::new();
    for event in &events {
        found.extend(view.overdue(event.at));
        match &event.news {
            News::Configuration(now) => found.extend(view.configuration(event.at, now.as_ref())),
            News::Workload(name, now) => view.workload(event.at, name, now.as_ref()),
            News::Operator(true) => {
                view.operator.get_or_insert(event.at);
            }
            News::Operator(false) => view.operator = None,
            News::Disturbance => view.asked = Some(event.at),
        }
    }
    found
}

/// The cluster after some of the events.
#[derive(Default)]
struct View<'a> {
    configuration: Option<&'a Configuration>,
    /// Since when Available is True, and that time as the condition has it.
    available: Option<(Duration, &'a str)>,
    workloads: BTreeMap<&'a str, Known<'a>>,
    /// Since when the operator runs.
    operator: Option<Duration>,
    /// The time of the last change that was asked for: of the configuration, of a workload, or by breaking one.
    asked: Option<Duration>,
}

/// A workload, as far as it is known.
struct Known<'a> {
    state: &'a Workload,
    /// Since when it is rolled out, or is not.
    since: Duration,
    /// Whether its current specification is or was [`SETTLED`].
    settled: bool,
    /// Whether a violation because of this state was found.
    told: bool,
}

impl Known<'_> {
    fn is_broken(&self) -> bool {
        self.state.unfinished.is_some()
    }
}

impl<'a> View<'a> {
    fn configuration(&mut self, at: Duration, now: Option<&'a Configuration>) -> Vec<String> {
        let before = std::mem::replace(&mut self.configuration, now);
        let wish = |configuration: &Configuration| (configuration.generation, configuration.ending);
        if before.is_some() && before.map(wish) != now.map(wish) {
            self.asked = Some(at);
        }
        let available = now.filter(|now| now.available);
        match (self.available, available) {
            (None, Some(now)) => {
                self.available = Some((at, now.since.as_str()));
                // Without an earlier configuration, the record does not show when it became True.
                before.map_or_else(Vec::new, |_| self.premature(at))
            }
            (Some((began, since)), None) => {
                self.available = None;
                let same_second = !since.is_empty() && now.is_some_and(|now| now.since == since);
                let asked = self.asked.is_some_and(|asked| asked + NEWS >= began);
                if same_second && !asked {
                    vec![format!("Available was True for less than a second, at {since}")]
                } else {
                    Vec::new()
                }
            }
            (None, None) | (Some(_), Some(_)) => Vec::new(),
        }
    }

    fn workload(&mut self, at: Duration, name: &'a str, now: Option<&'a Workload>) {
        let before = self.workloads.remove(name);
        let Some(state) = now else {
            if before.is_some() {
                self.asked = Some(at);
            }
            return;
        };
        let broken = state.unfinished.is_some();
        let known = match before {
            // A workload that is first seen before it is rolled out is new.
            None => Known {
                state,
                since: at,
                settled: !broken,
                told: false,
            },
            Some(before) => {
                let edited = before.state.generation != state.generation;
                let lasted = !before.is_broken() && at.saturating_sub(before.since) >= SETTLED;
                let settled = !edited && (before.settled || lasted);
                let same = broken == before.is_broken();
                if edited || (settled && broken && !same) {
                    self.asked = Some(at);
                }
                Known {
                    state,
                    since: if same { before.since } else { at },
                    settled,
                    told: same && before.told,
                }
            }
        };
        self.workloads.insert(name, known);
    }

    /// Workloads that are not rolled out when Available becomes True, and that the operator knows of.
    fn premature(&mut self, now: Duration) -> Vec<String> {
        self.blame(now, NEWS, Duration::ZERO, "became True")
    }

    /// Workloads that have not been rolled out for so long that the operator should have reported it by now.
    fn overdue(&mut self, now: Duration) -> Vec<String> {
        match (self.available, self.operator) {
            (Some((began, _)), Some(operator)) => {
                self.blame(now, REACTION, began.max(operator), "stayed True")
            }
            _ => Vec::new(),
        }
    }

    /// Workloads that have not been rolled out for longer than tolerated, of the time from `from` on.
    fn blame(&mut self, now: Duration, tolerated: Duration, from: Duration, what: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (name, known) in &mut self.workloads {
            let Some(why) = &known.state.unfinished else {
                continue;
            };
            let time = now.saturating_sub(known.since.max(from));
            if time > tolerated && !known.told {
                known.told = true;
                found.push(format!(
                    "Available {what} while {name} was not rolled out for {:.1} s: {why}",
                    time.as_secs_f64()
                ));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "DaemonSet multus";

    fn event(revision: u64, seconds: f64, news: News) -> Event {
        Event {
            revision,
            at: Duration::from_secs_f64(seconds),
            news,
        }
    }

    /// The configuration of this generation, whose condition changed last at `since`.
    fn says(revision: u64, seconds: f64, generation: i64, available: bool, since: &str) -> Event {
        let configuration = Configuration {
            generation,
            ending: false,
            available,
            since: since.to_owned(),
        };
        event(revision, seconds, News::Configuration(Some(configuration)))
    }

    fn rolling(revision: u64, seconds: f64, generation: i64) -> Event {
        let workload = Workload {
            generation,
            unfinished: Some("numberAvailable is 1 of 2".to_owned()),
        };
        event(revision, seconds, News::Workload(SET.to_owned(), Some(workload)))
    }

    fn rolled_out(revision: u64, seconds: f64, generation: i64) -> Event {
        let workload = Workload {
            generation,
            unfinished: None,
        };
        event(revision, seconds, News::Workload(SET.to_owned(), Some(workload)))
    }

    fn runs(revision: u64, seconds: f64, runs: bool) -> Event {
        event(revision, seconds, News::Operator(runs))
    }

    #[test]
    fn violations_true_after_roll_out_is_none() {
        let events = vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, "00"),
            rolling(3, 0.2, 1),
            rolled_out(4, 20.0, 1),
            says(5, 20.1, 1, true, "20"),
            // The configuration changes, the workload is rolled out again, and the status says so.
            says(6, 90.0, 2, true, "20"),
            rolling(7, 91.0, 2),
            says(8, 92.0, 2, false, "92"),
            rolled_out(9, 130.0, 2),
            says(10, 130.5, 2, true, "130"),
        ];
        assert_eq!(violations(events), [] as [String; 0]);
    }

    #[test]
    fn violations_true_before_roll_out_is_found_by_the_order_of_revisions() {
        let before = |revision: u64| {
            vec![
                runs(1, 0.0, true),
                says(2, 0.1, 1, false, "00"),
                rolling(3, 0.2, 1),
                says(5, 20.1, 1, true, "20"),
                // Its watch is late.
                rolled_out(revision, 20.3, 1),
            ]
        };
        assert_eq!(violations(before(4)), [] as [String; 0]);
        assert_eq!(
            violations(before(6)),
            [
                "Available became True while DaemonSet multus was not rolled out for 19.9 s: numberAvailable is 1 of 2"
            ]
        );
    }

    #[test]
    fn violations_true_just_after_a_workload_broke_is_none() {
        let broken_at = |seconds: f64| {
            vec![
                runs(1, 0.0, true),
                says(2, 0.1, 1, false, "00"),
                rolled_out(3, 0.2, 1),
                rolling(4, seconds, 1),
                says(5, 20.0, 1, true, "20"),
                says(6, 22.0, 1, false, "22"),
            ]
        };
        assert_eq!(violations(broken_at(18.0)), [] as [String; 0]);
        assert_eq!(violations(broken_at(16.0)).len(), 1);
    }

    #[test]
    fn violations_true_that_stays_over_a_broken_workload_is_found_once() {
        let until = |seconds: f64| {
            vec![
                runs(1, 0.0, true),
                says(2, 0.1, 1, true, "00"),
                rolled_out(3, 0.2, 1),
                rolling(4, 100.0, 1),
                says(5, seconds, 1, false, "x"),
                rolled_out(6, 200.0, 1),
            ]
        };
        assert_eq!(violations(until(129.0)), [] as [String; 0]);
        assert_eq!(
            violations(until(131.0)),
            [
                "Available stayed True while DaemonSet multus was not rolled out for 31.0 s: numberAvailable is 1 of 2"
            ]
        );
        // The end of the roll-out shows it too, without a new status.
        let mut silent = until(131.0);
        silent.remove(4);
        assert_eq!(violations(silent).len(), 1);
    }

    #[test]
    fn violations_time_without_the_operator_does_not_count() {
        let after = |seconds: f64| {
            vec![
                runs(1, 0.0, true),
                says(2, 0.1, 1, true, "00"),
                rolled_out(3, 0.2, 1),
                rolling(4, 100.0, 2),
                runs(5, 101.0, false),
                runs(6, 160.0, true),
                says(7, 160.0 + seconds, 1, false, "x"),
            ]
        };
        assert_eq!(violations(after(29.0)), [] as [String; 0]);
        assert_eq!(violations(after(31.0)).len(), 1);
    }

    #[test]
    fn violations_true_that_ends_in_its_second_is_found_unless_a_change_was_asked_for() {
        let flap = |between: Option<Event>, generation: i64, end: &str| {
            let mut events = vec![
                runs(1, 0.0, true),
                says(2, 0.1, 1, false, "00"),
                rolled_out(3, 0.2, 1),
                says(4, 100.0, 1, true, "100"),
                says(6, 100.4, generation, false, end),
            ];
            events.extend(between);
            violations(events)
        };
        let found = ["Available was True for less than a second, at 100"];
        assert_eq!(flap(None, 1, "100"), found);
        assert_eq!(flap(None, 1, "101"), [] as [String; 0], "not proven");
        assert_eq!(flap(None, 2, "100"), [] as [String; 0], "another configuration");
        // It was rolled out when it was first seen.
        let killed = rolling(5, 100.2, 1);
        assert_eq!(flap(Some(killed), 1, "100"), [] as [String; 0], "a daemon died");
        let disturbed = event(4, 100.2, News::Disturbance);
        assert_eq!(
            flap(Some(disturbed), 1, "100"),
            [] as [String; 0],
            "the test killed a program whose workload has no label"
        );
        let edited = rolling(5, 100.2, 2);
        assert_eq!(
            flap(Some(edited), 1, "100"),
            [] as [String; 0],
            "a workload was edited"
        );
        let deleted = event(5, 100.2, News::Workload(SET.to_owned(), None));
        assert_eq!(
            flap(Some(deleted), 1, "100"),
            [] as [String; 0],
            "a workload was deleted"
        );
    }

    #[test]
    fn violations_true_that_a_roll_out_takes_back_in_its_second_is_found() {
        let events = vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, "00"),
            rolling(3, 80.0, 1),
            rolled_out(4, 99.9, 1),
            says(5, 100.0, 1, true, "100"),
            rolling(6, 100.2, 1),
            says(7, 100.4, 1, false, "100"),
        ];
        assert_eq!(
            violations(events),
            ["Available was True for less than a second, at 100"]
        );
    }

    #[test]
    fn violations_workload_that_is_deleted_does_not_count() {
        let events = vec![
            runs(1, 0.0, true),
            says(2, 0.1, 2, false, "00"),
            rolling(3, 0.2, 1),
            event(4, 50.0, News::Workload(SET.to_owned(), None)),
            says(5, 50.5, 2, true, "50"),
            says(6, 100.0, 2, true, "50"),
        ];
        assert_eq!(violations(events), [] as [String; 0]);
    }
}
