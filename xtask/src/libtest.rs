//! Reads what Rust's test programs print.

/// Counts of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tests that ran and proved something.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// Tests that were ignored, or that said why they cannot run here.
    pub(crate) skipped: usize,
}

impl Totals {
    /// Reads what is shown of counts.
    pub(crate) fn read(shown: &str) -> Option<Self> {
        let mut counts = shown
            .split(", ")
            .zip(["passed", "failed", "skipped"])
            .map(|(count, what)| {
                let count = count.strip_suffix(what)?;
                count.trim_end().parse().ok()
            });
        let mut next = || counts.next().flatten();
        let totals = Self {
            passed: next()?,
            failed: next()?,
            skipped: next()?,
        };
        (totals.to_string() == shown).then_some(totals)
    }
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

/// Reads the output of `cargo test … -- --show-output`, line by line.
///
/// The output of tests that passed comes in a section `successes:`, one part a test that starts with
/// `---- NAME stdout ----`. A test that skips itself prints `skipped: REASON`; one that measures something prints
/// `measured: …`. Those lines are worth showing, the rest of that section is not.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    totals: Totals,
    in_successes: bool,
    test: String,
    skipped_here: usize,
}

impl Reader {
    /// Takes the next line and returns what to show of it.
    pub(crate) fn line(&mut self, line: &str) -> Option<String> {
        match line {
            "successes:" => {
                self.in_successes = true;
                return None;
            }
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.count(result);
            return Some(line.to_owned());
        }
        if !self.in_successes {
            // Names of tests that passed tell nothing; those that did not are shown again at the end.
            let passed = line.starts_with("test ") && line.ends_with(" ... ok");
            return (!passed && !line.trim().is_empty()).then(|| line.to_owned());
        }
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|line| line.split_whitespace().next())
        {
            name.clone_into(&mut self.test);
        } else if line.starts_with("skipped: ") {
            self.skipped_here += 1;
            return Some(format!("  {}: {line}", self.test));
        } else if line.starts_with("measured: ") {
            return Some(format!("  {}: {line}", self.test));
        }
        None
    }

    /// Reads `ok. 5 passed; 0 failed; 1 ignored; …`.
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

    /// What was counted so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }
}

/// Counts the tests that `cargo test … -- --list` names.
pub(crate) fn listed(output: &str) -> usize {
    output.lines().filter(|line| line.ends_with(": test")).count()
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
assertion failed

failures:
    broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s

running 1 test
test other ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_are_read_as_they_are_shown() {
        let totals = Totals {
            passed: 24,
            failed: 1,
            skipped: 10,
        };
        assert_eq!(Totals::read(&totals.to_string()), Some(totals));
        for wrong in [
            "",
            "24 passed",
            "24 passed, 1 failed, ten skipped",
            "24 failed, 1 passed, 10 skipped",
        ] {
            assert_eq!(Totals::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn results_of_several_programs_are_added_and_skipped_tests_are_not_passed() {
        let mut reader = Reader::default();
        let shown: Vec<String> = OUTPUT.lines().filter_map(|line| reader.line(line)).collect();
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
    }

    #[test]
    fn the_last_line_is_the_one_that_machines_read() {
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
    fn tests_are_counted_without_running_them() {
        assert_eq!(
            listed("bridge::adds: test\nbridge::removes: test\n\n2 tests, 0 benchmarks\n"),
            2
        );
    }
}
