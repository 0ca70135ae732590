//! A run of the selected tests, with a lane for each concurrent part.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use cluster::Progress;

use super::checks::Checks;
use super::execute::{Execution, label};
use super::libtest::{Outcome, Reader, Totals};
use super::prepare::Prepared;
use super::report::{Entry, Test};
use super::{Args, Selection, Tier, clusters, guest, is_root};
use crate::board::{Board, Lane};
use crate::build::{self, Extent, Inventory, Program};
use crate::kubevirt_parts;

/// Packages with slow tests against an API server, which run first, the slowest first.
const LONG: [&str; 5] = [
    "operator",
    "cluster-network",
    "weft-nmstate",
    "kubemacpool",
    "multus",
];

/// Name of the lane that checks dependencies.
const DEPENDENCIES: &str = "deny";

/// The result of a run.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) entries: Vec<Entry>,
    /// Failures to run a part.
    pub(super) broken: Vec<String>,
    /// Parts that this machine cannot run, with the reasons.
    pub(super) left_out: Vec<String>,
}

impl Ended {
    pub(super) fn totals(&self) -> Totals {
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

/// The result of a tier.
type Outcomes = anyhow::Result<Result<Entry, LeftOut>>;

/// The reason why this machine cannot run a tier.
struct LeftOut(String);

/// A run of the selected tests.
pub(super) struct Run<'a> {
    args: &'a Args,
    tiers: BTreeSet<Tier>,
    selection: &'a Selection,
    board: &'a Board,
    inventory: Inventory,
}

impl<'a> Run<'a> {
    pub(super) fn of(args: &'a Args, selection: &'a Selection, board: &'a Board) -> Self {
        let chosen: BTreeSet<Tier> = if args.tiers.is_empty() {
            Tier::USUAL.into()
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

    pub(super) fn all(&self) -> Ended {
        let mut ended = Ended::default();
        let prepared = Prepared::default();
        thread::scope(|scope| {
            prepared.start(scope, &self.tiers, self.board);
            let built = scope.spawn(|| self.build());
            // The check concerns the tree, and no named test.
            let checked = self.has(Tier::Unit) && self.selection.only.is_empty();
            let dependencies = checked.then(|| scope.spawn(|| anyhow::Ok(self.dependencies())));
            let guest = self.has(Tier::Vm).then(|| scope.spawn(|| self.guest(&prepared)));
            let on_clusters = Tier::ON_CLUSTERS.map(|tier| self.has(tier).then_some(tier));
            let on_clusters: Vec<Tier> = on_clusters.into_iter().flatten().collect();
            let clusters = (!on_clusters.is_empty()).then(|| {
                // Sequentially, because tests on clusters have deadlines.
                let run = |tier: Tier| (tier, self.clusters(tier, &prepared));
                scope.spawn(move || anyhow::Ok(on_clusters.into_iter().map(run).collect::<Vec<_>>()))
            });
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
            if let Some(lane) = dependencies {
                take(Tier::Unit, join(lane).map(Ok));
            }
            if let Some(lane) = guest {
                take(Tier::Vm, join(lane));
            }
            match clusters.map(join).transpose() {
                Ok(outcomes) => outcomes
                    .into_iter()
                    .flatten()
                    .for_each(|(tier, outcome)| take(tier, outcome)),
                Err(error) => take(Tier::E2e, Err(error)),
            }
        });
        ended
    }

    /// Builds everything, and checks sources and build.
    fn build(&self) -> anyhow::Result<Entry> {
        let mut lane = self.board.lane("build");
        let began = Instant::now();
        let mut checks = Checks::default();
        // These checks take a second, and report their results before the build ends.
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

    /// Checks the dependencies. This takes minutes the first time, and has a low priority.
    fn dependencies(&self) -> Entry {
        let mut lane = self.board.lane(DEPENDENCIES);
        let began = Instant::now();
        let mut checks = Checks::default();
        checks.of_dependencies(&mut lane);
        self.board.print(&checks.shown);
        Entry {
            tier: DEPENDENCIES,
            ran: began.elapsed(),
            totals: checks.totals,
            ..Entry::default()
        }
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

    /// Runs the selected tests of a program.
    fn program(&self, tier: Tier, program: &Program, lane: &mut Lane) -> anyhow::Result<Option<Entry>> {
        if !self.selection.takes_some_of(program) {
            return Ok(None);
        }
        let threads = tier.threads();
        let mut execution = Execution::of(program, threads);
        // Tests in namespaces simulate networks with timeouts of seconds.
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
        let named = |name: &str| format!("{} {name}", label(program));
        let tests = reader.durations(threads).into_iter();
        Ok(Some(Entry {
            totals: reader.totals(),
            tests: tests.map(|(name, took)| (named(&name), took)).collect(),
            outcomes: outcomes(program, reader),
            failures: failures(reader, named),
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
            // No test is selected, or the build failed, which is reported elsewhere.
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
            failures: failures(&reader, str::to_owned),
        }))
    }

    /// Runs a tier on clusters.
    fn clusters(&self, tier: Tier, prepared: &Prepared) -> Outcomes {
        if !is_root() {
            return Ok(Err(LeftOut("it needs root".to_owned())));
        }
        let mut lane = self.board.lane(tier.name());
        prepared.wait(tier, &mut lane)?;
        let kubevirt = match tier {
            Tier::Kubevirt => match kubevirt_parts::programs(&mut lane)? {
                Ok(programs) => Some(programs),
                Err(why) => return Ok(Err(LeftOut(why))),
            },
            _ => None,
        };
        drop(lane);
        let settings = clusters::Settings {
            tier,
            kubevirt,
            keep: self.args.keep,
            shipped: self.args.shipped,
            selection: self.selection,
        };
        clusters::run(&settings, &self.inventory, self.board).map(Ok)
    }

    /// Counts a tier's selected tests as skipped.
    fn count(&self, tier: Tier) -> Entry {
        let programs = self.inventory.all().unwrap_or_default();
        let of_tier = programs.iter().filter(|program| Tier::of(program) == Some(tier));
        let listed = of_tier.filter_map(|program| {
            let mut names = Execution::of(program, 1).list().ok()?;
            names.retain(|name| self.selection.takes(program, name));
            Some((program, names))
        });
        skipped(tier, &listed.collect::<Vec<_>>())
    }
}

/// Returns the work of a tier that cannot run. Each test has a result, because `--no-skips` concerns these tests too.
pub(super) fn skipped(tier: Tier, programs: &[(&Program, Vec<String>)]) -> Entry {
    let mut outcomes = Vec::new();
    for (program, names) in programs {
        let test = |name: &String| (Test::new(Some(&program.dir), name), Outcome::Skipped);
        outcomes.extend(names.iter().map(test));
    }
    Entry {
        tier: tier.name(),
        totals: Totals {
            skipped: outcomes.len(),
            ..Totals::default()
        },
        outcomes,
        ..Entry::default()
    }
}

pub(super) fn join<T>(lane: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    let ended = lane.join();
    ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that runs tests panicked")))
}

/// Returns the results of the tests of a program.
pub(super) fn outcomes(program: &Program, reader: &Reader) -> Vec<(Test, Outcome)> {
    let named = |(name, outcome): (&str, Outcome)| (Test::new(Some(&program.dir), name), outcome);
    reader.outcomes().map(named).collect()
}

/// Returns the failed tests under their names for people, with the first lines of their panics.
pub(super) fn failures(reader: &Reader, named: impl Fn(&str) -> String) -> Vec<(String, Vec<String>)> {
    let failures = reader.failures();
    failures
        .map(|(name, panic)| (named(name), panic.to_vec()))
        .collect()
}

/// Returns the results of tests without a known program.
fn all_outcomes(reader: &Reader) -> Vec<(Test, Outcome)> {
    let named = |(name, outcome): (&str, Outcome)| (Test::new(None, name), outcome);
    reader.outcomes().map(named).collect()
}
