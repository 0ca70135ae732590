//! The durations of a run's parts.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::libtest::{Outcome, Totals};

/// Number of slowest tests in the report.
const SLOWEST: usize = 10;

/// The work of a tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    pub(super) tier: &'static str,
    /// Time of programs, and of their prerequisites.
    pub(super) waited: Duration,
    pub(super) ran: Duration,
    pub(super) totals: Totals,
    /// Duration of each test.
    pub(super) tests: Vec<(String, Duration)>,
    /// Result of each test.
    pub(super) outcomes: Vec<(Test, Outcome)>,
    /// Each failed test, with the first lines of its panic.
    pub(super) failures: Vec<(String, Vec<String>)>,
}

impl Entry {
    /// Adds concurrent work, or a part of it.
    pub(super) fn add(&mut self, more: Self) {
        self.waited = self.waited.max(more.waited);
        self.totals += more.totals;
        self.tests.extend(more.tests);
        self.outcomes.extend(more.outcomes);
        self.failures.extend(more.failures);
    }
}

/// A test, with the directory of its package if it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Test {
    folder: Option<String>,
    name: String,
}

impl Test {
    pub(super) fn new(dir: Option<&Path>, name: &str) -> Self {
        Self {
            folder: dir.map(|dir| dir.display().to_string()),
            name: name.to_owned(),
        }
    }

    /// Returns true if it is a case of this test function in this package.
    pub(super) fn is(&self, package: &str, function: &str) -> bool {
        let here = self
            .folder
            .as_ref()
            .is_none_or(|folder| folder.ends_with(package));
        here && self.name.split("::").any(|part| part == function)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Processor time of the machine since boot, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// Returns the current value.
    pub(super) fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses `cpu  USER NICE SYSTEM IDLE IOWAIT …`.
    fn read(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|word| word.parse().ok())
            .collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self {
            busy: all - idle,
            all,
        }
    }

    /// Returns the share of the time since then in which all processors were busy, in per cent.
    fn utilisation_since(self, before: Self) -> u64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.busy.saturating_sub(before.busy) * 100 / all
    }
}

/// Returns the table of a run.
pub(super) fn table(entries: &[Entry], whole: Duration, before: Ticks, now: Ticks) -> String {
    let mut text = format!(
        "\n{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}\n",
        "tier", "waited", "ran", "passed", "failed", "skipped"
    );
    for entry in entries {
        let Totals {
            passed,
            failed,
            skipped,
        } = entry.totals;
        text.push_str(&format!(
            "{:<12}{:>9}{:>9}{passed:>9}{failed:>9}{skipped:>9}\n",
            entry.tier,
            minutes(entry.waited),
            minutes(entry.ran),
        ));
    }
    text.push_str(&format!(
        "{:<12}{:>9}{:>9}   processors busy: {} %\n",
        "whole",
        "",
        minutes(whole),
        now.utilisation_since(before)
    ));
    let mut slowest: Vec<_> = entries
        .iter()
        .flat_map(|entry| {
            entry
                .tests
                .iter()
                .map(move |(name, took)| (*took, entry.tier, name))
        })
        .collect();
    slowest.sort_unstable_by(|a, b| b.cmp(a));
    slowest.truncate(SLOWEST);
    if !slowest.is_empty() {
        text.push_str("\nslowest tests\n");
    }
    for (took, tier, name) in slowest {
        text.push_str(&format!("{:>7}  {tier:<11} {name}\n", minutes(took)));
    }
    text
}

/// Returns the failed tests with their panics, for the end of a run: their whole outputs are far above.
pub(super) fn failures(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        for (name, panic) in &entry.failures {
            text.push_str(&format!("\nfailed: {} {name}\n", entry.tier));
            for line in panic {
                text.push_str(&format!("  {line}\n"));
            }
        }
    }
    text
}

/// `12:34`
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_parsed_from_the_kernel() {
        let before = Ticks::read("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2 3\n");
        assert_eq!(before, Ticks { busy: 20, all: 100 });
        let now = Ticks::read("cpu  80 0 15 90 15 0 0 0 0 0\n");
        assert_eq!(now.utilisation_since(before), 75);
        assert_eq!(Ticks::default().utilisation_since(Ticks::default()), 0);
    }

    #[test]
    fn table_lists_the_slowest_tests_first() {
        let entry = |tier, tests: &[(&str, u64)]| Entry {
            tier,
            waited: Duration::from_secs(61),
            ran: Duration::from_secs(600),
            totals: Totals {
                passed: tests.len(),
                ..Totals::default()
            },
            tests: tests
                .iter()
                .map(|(name, seconds)| ((*name).to_owned(), Duration::from_secs(*seconds)))
                .collect(),
            ..Entry::default()
        };
        let entries = [
            entry("unit", &[("a", 1), ("b", 130)]),
            entry("e2e", &[("c", 200)]),
        ];
        let text = table(
            &entries,
            Duration::from_secs(1800),
            Ticks::default(),
            Ticks::default(),
        );
        assert!(
            text.contains("unit             1:01    10:00        2        0        0\n"),
            "{text}"
        );
        assert!(
            text.contains("whole                    30:00   processors busy: 0 %\n"),
            "{text}"
        );
        let slowest = text.split_once("slowest tests\n").unwrap().1;
        assert_eq!(
            slowest,
            "   3:20  e2e         c\n   2:10  unit        b\n   0:01  unit        a\n"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn failed_tests_are_listed_with_their_panics() {
        let entry = Entry {
            tier: "api",
            failures: vec![
                ("multus api a".to_owned(), vec!["thread 'a' panicked".to_owned()]),
                ("multus api b".to_owned(), Vec::new()),
            ],
            ..Entry::default()
        };
        let text = failures(&[Entry::default(), entry]);
        assert_eq!(
            text,
            "\nfailed: api multus api a\n  thread 'a' panicked\n\nfailed: api multus api b\n"
        );
    }
}
