//! `cargo xtask test`: all checks and tests.
//!
//! ```text
//! foreign programs ────────────────┐  (Kubernetes, packages: only missing ones)
//! one build ──> test programs ──┬──┴─> unit, namespaces, api
//!           ├─> image ──────────┼────> e2e, on two clusters; then kubevirt, on one
//!           └───────────────────┴────> vm
//! ```
//!
//! An interrupted run ends all its processes ([`supervisor`]).
//!
//! Tiers run concurrently: tests on clusters wait most of the time, and the other tiers have lower priority. Licences
//! and sources of dependencies are checked at the same time.

mod changed;
mod checks;
mod clusters;
mod execute;
mod guest;
mod libtest;
mod load;
mod prepare;
mod report;
mod run;
mod supervisor;

use std::collections::BTreeSet;
use std::num::NonZero;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use cluster::Home;

pub(crate) use self::guest::folder as machine_folder;

use self::changed::Affected;
use self::libtest::Outcome;
use self::load::Load;
use self::report::{Entry, Test, Ticks};
use self::run::{Ended, Run};
use crate::board::Board;
use crate::build::{Kind, Program};
use crate::cases::{self, Citation};

/// Arguments of the command.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Tiers to run; all but kubevirt by default
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    /// Run only tests whose name `PACKAGE::PROGRAM::TEST` contains this, such as `operator::api`; can be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run only tests that the changes since this revision can affect. Without a revision: uncommitted changes
    #[arg(long, value_name = "REVISION", num_args = 0..=1, default_missing_value = "HEAD")]
    changed: Option<String>,
    /// Run the tests this many times, or until one fails. The counts at the end are those of the last time
    #[arg(long, value_name = "TIMES", default_value = "1")]
    repeat: NonZero<u32>,
    /// Keep all processors busy while the tests run
    #[arg(long)]
    load: bool,
    /// Keep the clusters of the tiers e2e and kubevirt. A cluster with a failed test is always kept
    #[arg(long)]
    keep: bool,
    /// Run the release build's image on the clusters, instead of the development build's
    #[arg(long)]
    shipped: bool,
    /// Fail if a test is skipped and no other test proves the cases that it cites
    #[arg(long)]
    no_skips: bool,
    /// Run the tests in this process, which the supervisor started
    #[arg(long, hide = true)]
    supervised: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                              everything, as CI does
  cargo xtask test unit api                     two tiers
  cargo xtask test kubevirt                     with virtual machines
  cargo xtask test unit --changed               what uncommitted changes can affect, of one tier
  cargo xtask test api --only kubemacpool       the MAC pool against an API server
  cargo xtask test --only a_vlan --repeat 50 --load
                                                hunt a test that fails now and then";

/// Kinds of tests by their requirements, least powerful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Tier {
    /// Pure tests, formatting, lints and citations; no requirements
    Unit,
    /// Plugins and netlink on the real kernel, in separate network namespaces; needs root
    Namespaces,
    /// Components against a real API server; builds Kubernetes' programs the first time
    Api,
    /// Tests that need a full kernel, in a virtual machine; needs Debian on `x86_64`
    Vm,
    /// The whole product on two-node clusters; needs root
    E2e,
    /// On demand: virtual machines with KubeVirt's control plane on a cluster with the product; builds KubeVirt the
    /// first time; needs root
    Kubevirt,
}

impl Tier {
    const ALL: [Self; 6] = [
        Self::Unit,
        Self::Namespaces,
        Self::Api,
        Self::Vm,
        Self::E2e,
        Self::Kubevirt,
    ];
    /// The default tiers. The build of KubeVirt would take ten more minutes on a new machine.
    const USUAL: [Self; 5] = [Self::Unit, Self::Namespaces, Self::Api, Self::Vm, Self::E2e];
    /// The tiers on clusters, in the order of their runs.
    const ON_CLUSTERS: [Self; 2] = [Self::E2e, Self::Kubevirt];

    /// Returns the name of the tier's test programs: `tests/NAME/main.rs` or `tests/NAME.rs` in a crate.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Namespaces => "namespaces",
            Self::Api => "api",
            Self::Vm => "vm",
            Self::E2e => "e2e",
            Self::Kubevirt => "kubevirt",
        }
    }

    const fn needs_root(self) -> bool {
        matches!(self, Self::Namespaces | Self::E2e | Self::Kubevirt)
    }

    /// Returns the tier of a test program.
    fn of(program: &Program) -> Option<Self> {
        match program.kind {
            Kind::Binary => None,
            Kind::UnitTests => Some(Self::Unit),
            Kind::IntegrationTests => {
                let named = Self::ALL.into_iter().find(|tier| tier.name() == program.target);
                Some(named.unwrap_or(Self::Unit))
            }
        }
    }

    /// Returns the number of concurrent tests. Tests with an API server or networks wait most of the time.
    fn threads(self) -> usize {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        match self {
            Self::Api => 4 * processors,
            Self::Namespaces => 2 * processors,
            Self::Unit | Self::Vm | Self::E2e | Self::Kubevirt => processors,
        }
    }

    /// Returns the number of concurrent programs. Some tests with API servers wait while others work.
    const fn lanes(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &["unit"],
            Self::Namespaces => &["namespaces"],
            Self::Api => &["api-1", "api-2"],
            Self::Vm => &["vm"],
            Self::E2e => &["test-1", "test-2"],
            Self::Kubevirt => &["test-kubevirt"],
        }
    }
}

/// The selection of tests.
#[derive(Debug, Default)]
struct Selection {
    only: Vec<String>,
    affected: Option<Affected>,
}

impl Selection {
    /// Returns true if some tests may be deselected.
    fn is_part(&self) -> bool {
        !self.only.is_empty() || self.affected.is_some()
    }

    /// Returns true if a test of a program may be selected.
    fn takes_some_of(&self, program: &Program) -> bool {
        self.affected
            .as_ref()
            .is_none_or(|affected| affected.takes(&program.package))
    }

    fn takes(&self, program: &Program, test: &str) -> bool {
        let name = format!("{}::{}::{test}", program.package, program.target);
        let meant = self.only.is_empty() || self.only.iter().any(|text| name.contains(text));
        let affected = self
            .affected
            .as_ref()
            .is_none_or(|affected| affected.takes_test(&program.package, test));
        meant && affected
    }
}

/// Runs the tests under a supervisor, which also cleans up after an interrupted run.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.supervised {
        Ok(run_here(args))
    } else {
        supervisor::run(args.keep)
    }
}

/// Space on disk that a whole run takes at most: from an empty clone, with the clusters of its tests.
const SPACE: u64 = 12 << 30;

/// Returns a warning if a whole run may fill the disk.
fn shortage(free: u64) -> Option<String> {
    let gib = |bytes: u64| bytes >> 30;
    (free < SPACE).then(|| {
        format!(
            "warning: {} GiB of disk space are free, and a whole run takes up to {}. Tests fail when the disk is full: \
             delete `target` directories of other clones, or old files below `target`\n",
            gib(free),
            gib(SPACE)
        )
    })
}

/// Runs the tests and prints the counts as the last line.
fn run_here(args: &Args) -> ExitCode {
    let board = Board::new();
    let ticks = Ticks::now();
    let mut selection = Selection {
        only: args.only.clone(),
        affected: None,
    };
    if let Some(revision) = &args.changed {
        match Affected::since(revision) {
            Ok(affected) => {
                board.print(&affected.description());
                selection.affected = Some(affected);
            }
            Err(error) => {
                board.print(&format!("cannot determine the changed files: {error:#}\n"));
                return ExitCode::FAILURE;
            }
        }
    }
    let free = Home::from_env().and_then(|home| home.free());
    let warning = free.ok().filter(|_| !selection.is_part()).and_then(shortage);
    board.print(warning.as_deref().unwrap_or_default());
    let _load = match args.load.then(Load::start).transpose() {
        Ok(load) => load,
        Err(error) => {
            board.print(&format!("{error:#}\n"));
            return ExitCode::FAILURE;
        }
    };
    let mut ended = Ended::default();
    let times = args.repeat.get();
    for time in 1..=times {
        if times > 1 {
            board.print(&format!("\nrepetition {time} of {times}\n"));
        }
        ended = Run::of(args, &selection, &board).all();
        if ended.totals().failed > 0 {
            break;
        }
    }
    let mut totals = ended.totals();
    if args.no_skips {
        match cases::citations().context("cannot read the citations of skipped tests") {
            Ok(citations) => {
                let text = unproven(&ended.entries, &citations);
                if !text.is_empty() {
                    board.print(&format!("\nskipped, and proven by no other test:\n{text}"));
                    totals.failed += 1;
                }
            }
            Err(error) => ended.broken.push(format!("{error:#}")),
        }
    }
    let text = |line: &String| format!("\n{line}\n");
    board.print(&ended.broken.iter().map(text).collect::<String>());
    board.print(
        &ended
            .left_out
            .iter()
            .map(|cause| format!("\nskipped: {cause}\n"))
            .collect::<String>(),
    );
    board.print(&report::table(
        &ended.entries,
        board.elapsed(),
        ticks,
        Ticks::now(),
    ));
    board.print(&report::failures(&ended.entries));
    if let Some(warning) = warning.filter(|_| totals.failed > 0) {
        board.print(&format!("\n{warning}"));
    }
    board.print(&format!("\n{totals}\n"));
    // Failed tests are not an error of this program: the counts stay the last line.
    if totals.failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Returns the cited cases of skipped tests that no passed test cites, one per line.
fn unproven(entries: &[Entry], citations: &[Citation]) -> String {
    let of = |wanted: Outcome| {
        let tests = entries.iter().flat_map(|entry| &entry.outcomes);
        let tests = tests.filter(move |(_, outcome)| *outcome == wanted);
        let cited = |test: &Test| -> Vec<&str> {
            let by = citations
                .iter()
                .filter(|citation| test.is(&citation.package, &citation.test));
            by.map(|citation| citation.case.as_str()).collect()
        };
        tests
            .flat_map(|(test, _)| cited(test).into_iter().map(|case| (case, test.to_string())))
            .collect::<Vec<_>>()
    };
    let proven: BTreeSet<&str> = of(Outcome::Passed).into_iter().map(|(case, _)| case).collect();
    let mut skipped = of(Outcome::Skipped);
    skipped.retain(|(case, _)| !proven.contains(case));
    let line = |(case, test): &(&str, String)| format!("  {case}: {test}\n");
    skipped.iter().map(line).collect()
}

pub(crate) fn is_root() -> bool {
    // Nothing but root can read this directory.
    std::fs::read_dir("/proc/1/fd").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(package: &str, target: &str, kind: Kind) -> Program {
        Program {
            package: package.to_owned(),
            target: target.to_owned(),
            kind,
            file: "/t/x".into(),
            dir: format!("/w/crates/{package}").into(),
        }
    }

    #[test]
    fn test_program_belongs_to_the_tier_of_its_name_or_to_unit() {
        let tier = |target: &str, kind| Tier::of(&program("plugins", target, kind));
        assert_eq!(tier("namespaces", Kind::IntegrationTests), Some(Tier::Namespaces));
        assert_eq!(tier("kubevirt", Kind::IntegrationTests), Some(Tier::Kubevirt));
        assert_eq!(tier("kubevirt", Kind::UnitTests), Some(Tier::Unit));
        assert_eq!(tier("dependencies", Kind::IntegrationTests), Some(Tier::Unit));
        assert_eq!(tier("plugins", Kind::UnitTests), Some(Tier::Unit));
        assert_eq!(tier("vm", Kind::UnitTests), Some(Tier::Unit));
        assert_eq!(tier("weft-cni", Kind::Binary), None);
    }

    #[test]
    fn warning_of_a_full_disk_depends_on_its_free_space() {
        assert_eq!(shortage(SPACE), None);
        let warning = shortage(6 << 30).unwrap();
        assert!(warning.starts_with("warning: 6 GiB "), "{warning}");
    }

    #[test]
    fn cases_of_a_tier_that_cannot_run_are_unproven() {
        let citation = |case: &str, test: &str| Citation {
            case: case.to_owned(),
            package: "crates/plugins".to_owned(),
            test: test.to_owned(),
        };
        let citations = [
            citation("plugins#1", "has_an_address"),
            citation("plugins#2", "is_removed"),
            citation("plugins#2", "is_planned"),
        ];
        let namespaces = program("plugins", "namespaces", Kind::IntegrationTests);
        let names = ["bridge::has_an_address", "bridge::is_removed", "bridge::x"].map(str::to_owned);
        let left_out = run::skipped(Tier::Namespaces, &[(&namespaces, names.into())]);
        assert_eq!(left_out.totals.skipped, 3);
        let unit = Entry {
            outcomes: vec![(Test::new(Some(&namespaces.dir), "is_planned"), Outcome::Passed)],
            ..Entry::default()
        };
        assert_eq!(
            unproven(&[left_out, unit], &citations),
            "  plugins#1: bridge::has_an_address\n"
        );
    }

    #[test]
    fn tests_are_selected_by_a_part_of_their_name() {
        let selection = Selection {
            only: vec!["operator::api".to_owned()],
            affected: None,
        };
        let api = program("operator", "api", Kind::IntegrationTests);
        let unit = program("operator", "unit", Kind::IntegrationTests);
        assert!(selection.takes(&api, "takeover::x"));
        assert!(!selection.takes(&unit, "takeover::x"));
        assert!(Selection::default().takes(&unit, "takeover::x"));
    }
}
