//! `cargo xtask test`: everything that must hold.
//!
//! ```text
//! programs of others ──────────────┐  (Kubernetes, packages: only what is missing)
//! one build ──> test programs ──┬──┴─> unit, namespaces, api
//!           ├─> image ──────────┼────> e2e, on two clusters
//!           └───────────────────┴────> vm
//! ```
//!
//! Tiers run side by side: tests on clusters wait most of the time, and the others give way to them.

mod changed;
mod checks;
mod clusters;
mod execute;
mod guest;
mod libtest;
mod load;
mod prepare;
mod report;

use std::collections::BTreeSet;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::Context;
use cluster::Progress;

use self::changed::Affected;
use self::checks::Checks;
use self::execute::{Execution, label};
use self::libtest::{Outcome, Reader, Totals};
use self::load::Load;
use self::prepare::Prepared;
use self::report::{Entry, Test, Ticks};
use crate::board::{Board, Lane};
use crate::build::{self, Extent, Inventory, Kind, Program};
use crate::cases;

/// What to test.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The tiers to run, all of them by default
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    /// Run only tests whose name, after that of their package, has this in it: `operator::api`, `webhook`
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run only what the change since this revision can affect; without one, what is not committed
    #[arg(long, value_name = "REVISION", num_args = 0..=1, default_missing_value = "HEAD")]
    changed: Option<String>,
    /// Run the tests so many times, until one fails
    #[arg(long, value_name = "TIMES", default_value = "1")]
    repeat: NonZero<u32>,
    /// Keep the processors busy meanwhile
    #[arg(long)]
    load: bool,
    /// Keep the clusters of the e2e tier; they are also kept after a failure
    #[arg(long)]
    keep: bool,
    /// Test the image that ships on the clusters, instead of one of the development build
    #[arg(long)]
    shipped: bool,
    /// Count a test that is skipped as failed when no other test proves the cases that it cites
    #[arg(long)]
    no_skips: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                              everything, as CI does
  cargo xtask test unit api                     two tiers
  cargo xtask test --changed                    what the change can affect
  cargo xtask test api --only kubemacpool       the MAC pool against an API server
  cargo xtask test --only a_vlan --repeat 50 --load
                                                hunt a test that fails now and then";

/// Kinds of tests by what they need, least powerful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Tier {
    /// Pure tests and the checks of the code itself; need nothing
    Unit,
    /// Plugins and netlink against the kernel, in network namespaces of their own; need root
    Namespaces,
    /// Components against a real API server; need Kubernetes' programs
    Api,
    /// What this machine's kernel lacks, in a virtual machine; needs Debian
    Vm,
    /// Everything on two-node clusters; needs root
    E2e,
}

impl Tier {
    const ALL: [Self; 5] = [Self::Unit, Self::Namespaces, Self::Api, Self::Vm, Self::E2e];

    /// Name of its test programs: `tests/NAME/main.rs` or `tests/NAME.rs` in a crate.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Namespaces => "namespaces",
            Self::Api => "api",
            Self::Vm => "vm",
            Self::E2e => "e2e",
        }
    }

    const fn needs_root(self) -> bool {
        matches!(self, Self::Namespaces | Self::E2e)
    }

    /// The tier of a test program.
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

    /// How many of its tests run at a time. Tests against an API server, or in networks, wait most of the time.
    fn threads(self) -> usize {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        match self {
            Self::Api => 4 * processors,
            Self::Namespaces => 2 * processors,
            Self::Unit | Self::Vm | Self::E2e => processors,
        }
    }

    /// What its programs run on side by side. Against API servers some wait while others work.
    const fn lanes(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &["unit"],
            Self::Namespaces => &["namespaces"],
            Self::Api => &["api-1", "api-2"],
            Self::Vm => &["vm"],
            Self::E2e => &["test-1", "test-2"],
        }
    }
}

/// Packages whose tests against an API server take minutes: they come first.
const LONG: [&str; 4] = ["weft-nmstate", "operator", "kubemacpool", "multus"];

/// Which tests are to run.
#[derive(Debug, Default)]
struct Selection {
    only: Vec<String>,
    affected: Option<Affected>,
}

impl Selection {
    /// Whether there may be tests that are not to run.
    fn is_part(&self) -> bool {
        !self.only.is_empty() || self.affected.is_some()
    }

    /// Whether any test of a program may be meant.
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

/// Runs the tests and prints the counts as the last line.
pub(crate) fn run(args: &Args) -> ExitCode {
    let board = Board::new();
    let ticks = Ticks::now();
    let mut selection = Selection {
        only: args.only.clone(),
        affected: None,
    };
    if let Some(revision) = &args.changed {
        match Affected::since(revision) {
            Ok(affected) => {
                board.print(&affected.told());
                selection.affected = Some(affected);
            }
            Err(error) => {
                board.print(&format!("cannot tell what has changed: {error:#}\n"));
                return ExitCode::FAILURE;
            }
        }
    }
    let _load = args.load.then(Load::start);
    let mut ended = Ended::default();
    for _ in 0..args.repeat.get() {
        ended = Run::of(args, &selection, &board).all();
        if ended.totals().failed > 0 {
            break;
        }
    }
    let mut totals = ended.totals();
    if args.no_skips {
        match unproven(&ended.entries) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => {
                board.print(&format!("\nskipped, and proven by no other test:\n{text}"));
                totals.failed += 1;
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
            .map(|why| format!("\nleft out: {why}\n"))
            .collect::<String>(),
    );
    board.print(&report::table(
        &ended.entries,
        board.elapsed(),
        ticks,
        Ticks::now(),
    ));
    board.print(&format!("\n{totals}\n"));
    // A failure is not an error of this program: the counts stay the last line.
    if totals.failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// How a run ended.
#[derive(Debug, Default)]
struct Ended {
    entries: Vec<Entry>,
    /// What could not be run although it should.
    broken: Vec<String>,
    /// What this machine cannot run, and why.
    left_out: Vec<String>,
}

impl Ended {
    fn totals(&self) -> Totals {
        let mut totals = Totals {
            failed: self.broken.len(),
            ..Totals::default()
        };
        for entry in &self.entries {
            totals += entry.totals;
        }
        totals
    }
}

/// How a tier ended.
type Outcomes = anyhow::Result<Result<Entry, LeftOut>>;

/// Why this machine cannot run a tier.
struct LeftOut(String);

/// One run of the tests that are selected.
struct Run<'a> {
    args: &'a Args,
    tiers: BTreeSet<Tier>,
    selection: &'a Selection,
    board: &'a Board,
    inventory: Inventory,
}

impl<'a> Run<'a> {
    fn of(args: &'a Args, selection: &'a Selection, board: &'a Board) -> Self {
        let chosen: BTreeSet<Tier> = if args.tiers.is_empty() {
            Tier::ALL.into()
        } else {
            args.tiers.iter().copied().collect()
        };
        Self {
            args,
            tiers: chosen,
            selection,
            board,
            inventory: Inventory::default(),
        }
    }

    fn has(&self, tier: Tier) -> bool {
        self.tiers.contains(&tier)
    }

    fn all(&self) -> Ended {
        let mut ended = Ended::default();
        let prepared = Prepared::default();
        thread::scope(|scope| {
            prepared.start(scope, &self.tiers, self.board);
            let built = scope.spawn(|| self.build());
            let guest = self.has(Tier::Vm).then(|| scope.spawn(|| self.guest(&prepared)));
            let clusters = self
                .has(Tier::E2e)
                .then(|| scope.spawn(|| self.clusters(&prepared)));
            let mut take = |tier: Tier, outcome: Outcomes| match outcome {
                Ok(Ok(entry)) => ended.entries.push(entry),
                Ok(Err(LeftOut(why))) => {
                    ended.left_out.push(format!("tier {}: {why}", tier.name()));
                    ended.entries.push(self.count(tier));
                }
                Err(error) => ended.broken.push(format!("tier {}: {error:#}", tier.name())),
            };
            let checks = join(built);
            take(Tier::Unit, checks.map(Ok));
            for tier in [Tier::Unit, Tier::Namespaces, Tier::Api] {
                if self.has(tier) {
                    take(tier, self.tier(tier, &prepared));
                }
            }
            for (tier, lane) in [(Tier::Vm, guest), (Tier::E2e, clusters)] {
                if let Some(lane) = lane {
                    take(tier, join(lane));
                }
            }
        });
        ended
    }

    /// Builds everything, and checks sources and build.
    fn build(&self) -> anyhow::Result<Entry> {
        let mut lane = self.board.lane("build");
        let began = Instant::now();
        let mut checks = Checks::default();
        // They take a second, and whoever waits for the build knows of them at once.
        if self.has(Tier::Unit) {
            lane.step("checking formatting and citations");
            checks.of_sources();
            self.board.print(&std::mem::take(&mut checks.shown));
        }
        lane.step("compiling");
        let built = build::build(Extent::Everything, &self.inventory, &mut lane)?;
        lane.step(&format!(
            "{} of {} crates and programs were compiled in {:.0} s",
            built.compiled,
            built.crates,
            began.elapsed().as_secs_f64()
        ));
        let ran = began.elapsed();
        if self.has(Tier::Unit) {
            checks.of_build(&built, &mut lane);
            self.board.print(&checks.shown);
        }
        Ok(Entry {
            tier: "build",
            ran,
            totals: checks.totals,
            ..Entry::default()
        })
    }

    /// Runs the programs of a tier one after the other.
    fn tier(&self, tier: Tier, prepared: &Prepared) -> Outcomes {
        if tier.needs_root() && !is_root() {
            return Ok(Err(LeftOut("it needs root".to_owned())));
        }
        let mut lane = self.board.lane(tier.name());
        let began = Instant::now();
        prepared.wait(tier, &mut lane)?;
        let Some(programs) = self.inventory.all() else {
            return Ok(Err(LeftOut("it was not built".to_owned())));
        };
        let mut entry = Entry {
            tier: tier.name(),
            waited: began.elapsed(),
            ..Entry::default()
        };
        let began = Instant::now();
        let mut programs: Vec<&Program> = programs
            .iter()
            .filter(|program| Tier::of(program) == Some(tier))
            .collect();
        let place = |program: &&Program| LONG.iter().position(|name| *name == program.package);
        programs.sort_by_key(|program| place(program).unwrap_or(LONG.len()));
        let queue = Mutex::new(programs.into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = |mut lane: Lane| {
            let mut done = Entry::default();
            while let Some(program) = next() {
                match self.program(tier, program, &mut lane) {
                    Ok(Some(more)) => done.add(more),
                    Ok(None) => {}
                    Err(error) => {
                        self.board.print(&format!("\n{error:#}\n"));
                        done.totals.failed += 1;
                    }
                }
            }
            done
        };
        drop(lane);
        thread::scope(|scope| {
            let lanes = tier.lanes().iter().map(|name| self.board.lane(name));
            let workers: Vec<_> = lanes.map(|lane| scope.spawn(|| anyhow::Ok(work(lane)))).collect();
            for worker in workers {
                entry.add(join(worker)?);
            }
            anyhow::Ok(())
        })?;
        entry.ran = began.elapsed();
        Ok(Ok(entry))
    }

    /// Runs what is selected of a program.
    fn program(&self, tier: Tier, program: &Program, lane: &mut Lane) -> anyhow::Result<Option<Entry>> {
        if !self.selection.takes_some_of(program) {
            return Ok(None);
        }
        let threads = tier.threads();
        let mut execution = Execution::of(program, threads);
        // Tests in namespaces play networks whose time-outs are seconds.
        execution.gives_way = tier != Tier::Namespaces;
        if !self.selection.only.is_empty() {
            let mut names = execution.list()?;
            names.retain(|name| self.selection.takes(program, name));
            execution.filters = names;
            execution.exact = true;
            if execution.filters.is_empty() {
                return Ok(None);
            }
        }
        lane.step(&label(program));
        let executed = execution.run(lane)?;
        let reader = &executed.reader;
        if reader.progress().1 > 0 {
            self.board
                .print(&format!("\n{}\n{}", label(program), executed.shown));
        }
        let named = |(name, took)| (format!("{} {name}", label(program)), took);
        let tests = reader.durations(threads).into_iter().map(named).collect();
        Ok(Some(Entry {
            totals: reader.totals(),
            tests,
            outcomes: outcomes(program, reader),
            ..Entry::default()
        }))
    }

    /// Runs the tier in the virtual machine.
    fn guest(&self, prepared: &Prepared) -> Outcomes {
        let mut lane = self.board.lane("vm");
        let began = Instant::now();
        prepared.wait(Tier::Vm, &mut lane)?;
        let vm = match guest::ensure(&mut lane)? {
            Ok(vm) => vm,
            Err(why) => return Ok(Err(LeftOut(why))),
        };
        let selected = |program: &Program| {
            let selection = self.selection;
            let listed = || Execution::of(program, 1).list().unwrap_or_default();
            selection.takes_some_of(program)
                && (selection.only.is_empty() || listed().iter().any(|test| selection.takes(program, test)))
        };
        let Some(boot) = guest::boot(&self.inventory, &selected, &mut lane)? else {
            // Nothing of it is to run, or nothing was built, which somebody else tells.
            return Ok(Ok(Entry {
                tier: Tier::Vm.name(),
                ..Entry::default()
            }));
        };
        let waited = began.elapsed();
        let began = Instant::now();
        let mut shown = String::new();
        let outcome = guest::run(&vm, &boot, &mut lane, &mut |line| {
            shown.push_str(line);
            shown.push('\n');
        });
        self.board.print(&format!("\nvm\n{shown}"));
        let reader = outcome?;
        Ok(Ok(Entry {
            tier: Tier::Vm.name(),
            waited,
            ran: began.elapsed(),
            totals: reader.totals(),
            tests: reader.durations(1),
            outcomes: all_outcomes(&reader),
        }))
    }

    /// Runs the tier on clusters.
    fn clusters(&self, prepared: &Prepared) -> Outcomes {
        if !is_root() {
            return Ok(Err(LeftOut("it needs root".to_owned())));
        }
        let mut lane = self.board.lane("e2e");
        prepared.wait(Tier::E2e, &mut lane)?;
        drop(lane);
        let wish = clusters::Wish {
            keep: self.args.keep,
            shipped: self.args.shipped,
            selection: self.selection,
        };
        clusters::run(&wish, &self.inventory, self.board).map(Ok)
    }

    /// Counts a tier's tests as skipped, without running them.
    fn count(&self, tier: Tier) -> Entry {
        let programs = self.inventory.all().unwrap_or_default();
        let of_tier = programs.iter().filter(|program| Tier::of(program) == Some(tier));
        let listed = of_tier.filter_map(|program| Execution::of(program, 1).list().ok());
        Entry {
            tier: tier.name(),
            totals: Totals {
                skipped: listed.map(|names| names.len()).sum(),
                ..Totals::default()
            },
            ..Entry::default()
        }
    }
}

fn join<T>(lane: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    let ended = lane.join();
    ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of tests ended by a defect")))
}

/// How the tests of a program ended.
fn outcomes(program: &Program, reader: &Reader) -> Vec<(Test, Outcome)> {
    let named = |(name, outcome): (&str, Outcome)| (Test::new(Some(&program.dir), name), outcome);
    reader.outcomes().map(named).collect()
}

/// How tests ended whose program is not known.
fn all_outcomes(reader: &Reader) -> Vec<(Test, Outcome)> {
    let named = |(name, outcome): (&str, Outcome)| (Test::new(None, name), outcome);
    reader.outcomes().map(named).collect()
}

/// Cases that tests cite which were skipped, and none that passed; a line each.
fn unproven(entries: &[Entry]) -> anyhow::Result<String> {
    let citations = cases::citations().context("cannot tell what skipped tests cite")?;
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
    Ok(skipped
        .iter()
        .map(|(case, test)| format!("  {case}: {test}\n"))
        .collect())
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
    fn test_programs_belong_to_the_tier_of_their_name_and_else_to_unit() {
        let tier = |target: &str, kind| Tier::of(&program("plugins", target, kind));
        assert_eq!(tier("namespaces", Kind::IntegrationTests), Some(Tier::Namespaces));
        assert_eq!(tier("dependencies", Kind::IntegrationTests), Some(Tier::Unit));
        assert_eq!(tier("plugins", Kind::UnitTests), Some(Tier::Unit));
        assert_eq!(tier("vm", Kind::UnitTests), Some(Tier::Unit));
        assert_eq!(tier("weft-cni", Kind::Binary), None);
    }

    #[test]
    fn tests_are_chosen_by_a_part_of_their_name() {
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
