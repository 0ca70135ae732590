//! Checks of the code, each as a test. Generated files are checked by tests beside their generators.

use anyhow::{Context, bail, ensure};
use cluster::{Progress, run};

use super::libtest::Totals;
use crate::build::{self, Built, Extent, Inventory};
use crate::{deny, paths};

/// The name of the check.
#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) totals: Totals,
    /// The defect.
    pub(super) shown: String,
}

impl Checks {
    fn add(&mut self, name: &str, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) => self.totals.passed += 1,
            Err(error) => {
                self.totals.failed += 1;
                self.shown.push_str(&format!("{name}: FAILED\n{error:#}\n"));
            }
        }
    }

    /// Checks of sources.
    pub(super) fn of_sources(&mut self) {
        let format = run::output(paths::cargo().args(["fmt", "--all", "--check"]));
        self.add(
            "formatting (repair: cargo fmt --all)",
            format.map(drop).map_err(Into::into),
        );
        self.add("citations", crate::cases::check());
    }

    /// Checks of dependencies.
    pub(super) fn of_dependencies(&mut self, progress: &mut dyn Progress) {
        self.add(
            "dependencies (all of it: cargo xtask deny)",
            deny::check(progress),
        );
    }

    /// Checks of a whole build.
    pub(super) fn of_build(&mut self, built: &Built, progress: &mut dyn Progress) {
        let lints = || -> anyhow::Result<()> {
            if built.remarks.is_empty() {
                return Ok(());
            }
            bail!("{}", built.remarks.iter().map(String::as_str).collect::<String>())
        };
        self.add("lints", lints());
        let mut again = || -> anyhow::Result<()> {
            for part in [Extent::Programs, Extent::Product, Extent::StandIns] {
                let again = build::build(part, &Inventory::default(), progress);
                let again = again.with_context(|| format!("selection {part:?} does not build alone"))?;
                ensure!(
                    again.compiled == 0,
                    "{} crates are compiled once more when selection {part:?} is built alone",
                    again.compiled
                );
            }
            Ok(())
        };
        self.add("one build for all", again());
    }
}
