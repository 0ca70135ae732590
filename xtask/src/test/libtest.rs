//! Parses the output of Rust's test programs.

use std::collections::BTreeMap;
use std::time::Duration;

/// Number of lines of a panic that are kept.
const PANIC_LINES: usize = 12;
/// Number of characters of a line that are kept.
const PANIC_WIDTH: usize = 300;

/// Counts of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tests that ran and passed.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// Tests that were ignored, or that reported a missing prerequisite.
    pub(crate) skipped: usize,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// The part of the output that is being parsed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Section {
    /// The tests, as they end.
    #[default]
    Ends,
    Successes,
    Failures,
}

/// Parses the output of a test program with `--show-output`, line by line.
///
/// The output of passed tests is in a section `successes:`, and that of failed ones in a section `failures:`, with one part
/// per test that starts with `---- NAME stdout ----`. A test that skips itself prints `skipped: REASON`, a measurement
/// prints `measured: …`, and a long wait prints `waited: …`. Of the successes, these lines alone are printed.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    totals: Totals,
    section: Section,
    /// The test whose output is being parsed.
    test: String,
    /// For each failed test, the first lines of its panic.
    panics: BTreeMap<String, Vec<String>>,
    skipped_here: usize,
    /// Number of tests to run, as far as programs reported it.
    announced: usize,
    outcomes: BTreeMap<String, Outcome>,
    /// Tests in the order of their ends, with the time of the end.
    ends: Vec<(String, Duration)>,
    /// For each program, the index of its first end, and its start.
    programs: Vec<(usize, Duration)>,
}

impl Reader {
    /// Parses the next line, which arrived at this time, and returns the text to print.
    pub(crate) fn line(&mut self, line: &str, at: Duration) -> Option<String> {
        match line {
            "successes:" => {
                self.section = Section::Successes;
                return None;
            }
            "failures:" => {
                self.section = Section::Failures;
                // A list of names without output follows the outputs.
                self.test.clear();
            }
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.section = Section::Ends;
            self.count(result);
            return Some(line.to_owned());
        }
        if self.section != Section::Successes {
            if let Some(count) = line
                .strip_prefix("running ")
                .and_then(|rest| rest.split_once(" test"))
            {
                self.announced += count.0.parse().unwrap_or(0);
                self.programs.push((self.ends.len(), at));
                return None;
            }
            let ended = ended(line);
            if let Some((name, outcome)) = ended {
                self.outcomes.insert(name.to_owned(), outcome);
                self.ends.push((name.to_owned(), at));
            }
            if self.section == Section::Failures {
                self.failed(line);
            }
            // Names of passed tests are not printed. Failed tests are listed again at the end.
            let passed = ended.is_some_and(|(_, outcome)| outcome == Outcome::Passed);
            return (!passed && !line.trim().is_empty()).then(|| line.to_owned());
        }
        if let Some(name) = title(line) {
            name.clone_into(&mut self.test);
        } else if line.starts_with("skipped: ") {
            self.skipped_here += 1;
            self.outcomes.insert(self.test.clone(), Outcome::Skipped);
            return Some(format!("  {}: {line}", self.test));
        } else if line.starts_with("measured: ") || line.starts_with("waited: ") {
            return Some(format!("  {}: {line}", self.test));
        }
        None
    }

    /// Parses a line of the output of failed tests.
    fn failed(&mut self, line: &str) {
        if let Some(name) = title(line) {
            name.clone_into(&mut self.test);
            return;
        }
        let is_start = line.starts_with("thread '") && line.contains(" panicked at ");
        if is_start || (self.panics.contains_key(&self.test) && !line.trim().is_empty()) {
            let lines = self.panics.entry(self.test.clone()).or_default();
            if lines.len() < PANIC_LINES {
                lines.push(line.chars().take(PANIC_WIDTH).collect());
            }
        }
    }

    /// Returns the failed tests, each with the first lines of its panic.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, &[String])> {
        let failed = self.outcomes().filter(|(_, outcome)| *outcome == Outcome::Failed);
        failed.map(|(name, _)| (name, self.panics.get(name).map_or(&[][..], Vec::as_slice)))
    }

    /// Parses `ok. 5 passed; 0 failed; 1 ignored; …`.
    fn count(&mut self, result: &str) {
        let mut number = 0;
        for word in result.split([' ', ';']) {
            match word {
                "passed" => self.totals.passed += number,
                "failed" => self.totals.failed += number,
                "ignored" => self.totals.skipped += number,
                other => number = other.parse().unwrap_or(number),
            }
        }
        let skipped = std::mem::take(&mut self.skipped_here).min(self.totals.passed);
        self.totals.passed -= skipped;
        self.totals.skipped += skipped;
    }

    /// Returns the counts so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the number of finished tests, and of all tests.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.ends.len(), self.announced)
    }

    /// Returns the result of each test.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&str, Outcome)> {
        self.outcomes
            .iter()
            .map(|(name, outcome)| (name.as_str(), *outcome))
    }

    /// Returns the duration of each test, in programs with this number of concurrent tests.
    ///
    /// A program reports the end of a test. It starts the tests in the order of their names: the first ones at once,
    /// and each further one when another test has ended.
    pub(crate) fn durations(&self, threads: usize) -> Vec<(String, Duration)> {
        let mut took = Vec::new();
        for (place, (first, began)) in self.programs.iter().enumerate() {
            let last = self
                .programs
                .get(place + 1)
                .map_or(self.ends.len(), |(next, _)| *next);
            let ends = self.ends.get(*first..last).unwrap_or_default();
            let mut names: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            for (name, at) in ends {
                let order = names.binary_search(&name.as_str()).unwrap_or_default();
                let freed = order.checked_sub(threads).and_then(|place| ends.get(place));
                let begin = freed.map_or(*began, |(_, at)| *at);
                took.push((name.clone(), at.saturating_sub(begin)));
            }
        }
        took
    }
}

/// Parses `---- NAME stdout ----`, the title of a test's output.
fn title(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.split_whitespace().next()
}

/// Parses `test NAME ... ok`. A test that should panic has a mark after its name.
fn ended(line: &str) -> Option<(&str, Outcome)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.split(" - ").next().unwrap_or(name);
    let outcome = match result.split([',', ' ']).next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Skipped,
        _ => return None,
    };
    Some((name, outcome))
}

/// Returns the names of the tests in a program's output of `--list`.
pub(crate) fn listed(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| line.strip_suffix(": test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test a_bridge ... ok
test a_vlan ... ok
test broken ... FAILED

successes:

---- a_bridge stdout ----
some words
measured: 3 ms

---- a_vlan stdout ----
skipped: this kernel has no 802.1Q


successes:
    a_bridge
    a_vlan

failures:

---- broken stdout ----
a line of the test

thread 'broken' (17) panicked at tests/api/main.rs:3:5:
assertion failed
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

failures:
    broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s

running 1 test
test other ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_of_several_programs_are_added_and_skipped_tests_do_not_pass() {
        let mut reader = Reader::default();
        let shown: Vec<String> = OUTPUT
            .lines()
            .filter_map(|line| reader.line(line, Duration::ZERO))
            .collect();
        assert_eq!(
            reader.totals(),
            Totals {
                passed: 2,
                failed: 1,
                skipped: 2
            }
        );
        let text = shown.join("\n");
        assert!(
            text.contains("  a_vlan: skipped: this kernel has no 802.1Q"),
            "{text}"
        );
        assert!(text.contains("  a_bridge: measured: 3 ms"), "{text}");
        assert!(text.contains("assertion failed"), "{text}");
        assert!(
            !text.contains("some words") && !text.contains("test other ... ok"),
            "{text}"
        );
        let panic = [
            "thread 'broken' (17) panicked at tests/api/main.rs:3:5:",
            "assertion failed",
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        ];
        let failures: Vec<_> = reader.failures().collect();
        assert_eq!(failures, [("broken", &panic.map(str::to_owned)[..])]);
        assert_eq!(reader.progress(), (4, 4));
        let outcomes: Vec<_> = reader.outcomes().collect();
        assert_eq!(
            outcomes,
            [
                ("a_bridge", Outcome::Passed),
                ("a_vlan", Outcome::Skipped),
                ("broken", Outcome::Failed),
                ("other", Outcome::Passed),
            ]
        );
    }

    #[test]
    fn last_line_has_the_machine_readable_counts() {
        assert_eq!(
            Totals {
                passed: 5,
                failed: 0,
                skipped: 1
            }
            .to_string(),
            "5 passed, 0 failed, 1 skipped"
        );
    }

    #[test]
    fn tests_are_listed_without_running_them() {
        let output = "bridge::adds: test\nbridge::removes: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(
            listed(output).collect::<Vec<_>>(),
            ["bridge::adds", "bridge::removes"]
        );
    }

    #[test]
    fn test_starts_when_an_earlier_one_ends() {
        let mut reader = Reader::default();
        reader.line("running 4 tests", Duration::ZERO);
        // a from 0 to 4, b from 0 to 1, c from 1 to 2, d from 2 to 7.
        for (name, at) in [("b", 1), ("c", 2), ("a", 4), ("d", 7)] {
            reader.line(&format!("test {name} ... ok"), Duration::from_secs(at));
        }
        // The next program.
        reader.line("running 1 test", Duration::from_secs(8));
        reader.line("test a2 ... ok", Duration::from_secs(9));
        let took: Vec<_> = reader
            .durations(2)
            .into_iter()
            .map(|(name, took)| format!("{name} {}", took.as_secs()))
            .collect();
        assert_eq!(took, ["b 1", "c 1", "a 4", "d 5", "a2 1"]);
    }
}
