//! The tiers on clusters: the tests form a queue, and each cluster takes the next test after it finished one.
//!
//! ```text
//! weft, weft-cni ──> image ──┬──> cluster test-1: up, install ──┐
//!                            └──> cluster test-2: up, install ──┴──> queue of tests, slow tests first
//! ```
//!
//! A test has a cluster alone, so that it may change the deployment. The cluster of the tier `kubevirt` also has
//! KubeVirt.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use cluster::{Cluster, Options, Progress};
use kubevirt::Programs;

use super::execute::Execution;
use super::report::Entry;
use super::{Selection, Tier};
use crate::board::{Board, Lane};
use crate::build::{Inventory, Program};
use crate::{explain, image, install, kubevirt_parts, manifests};

/// Variable with the name of a cluster to use. By default, each lane of the tier has a separate cluster, which is never
/// that of a demo.
const VARIABLE: &str = "WEFT_CLUSTER";

/// Packages with tests of a tier.
const fn packages(tier: Tier) -> usize {
    match tier {
        Tier::E2e => 2,
        _ => 1,
    }
}

/// Slow tests, which take minutes. They run first, in this order, so that the other clusters need not wait for the last
/// one.
const LONG: [&str; 13] = [
    "cluster_without_a_network_gets_one_that_passes_kubernetes_tests",
    "change_completes_after_a_kill_at_any_point",
    "broken_default_route_and_broken_name_server_are_rolled_back",
    "storm_of_pods_leaks_nothing_despite_kills_and_an_outage_of_the_api_server",
    "certificates_rotate_under_load_without_a_failed_request",
    "policy_creates_a_bridge_node_by_node_and_pods_connect_on_it",
    "operator_killed_during_a_transition_reaches_the_same_state",
    "idle_operator_writes_nothing",
    "workloads_run_on_their_nodes",
    "daemon_replaces_thin_mode_under_running_pods_without_the_operator",
    "up_works_after_a_kill_at_any_point_and_down_leaves_nothing",
    "objects_of_the_original_design_work_beside_policies",
    "clusters_coexist_and_pods_communicate_inside_each",
];

/// Settings of a tier's run.
#[derive(Debug)]
pub(super) struct Settings<'a> {
    pub(super) tier: Tier,
    /// KubeVirt's programs, if the clusters need them.
    pub(super) kubevirt: Option<Programs>,
    /// Keep the clusters, which are also kept after a failure.
    pub(super) keep: bool,
    /// Test the release image instead of the development build's.
    pub(super) shipped: bool,
    pub(super) selection: &'a Selection,
}

/// A test of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Case {
    /// Position of its program in the tier.
    program: usize,
    test: String,
}

/// Moves slow tests to the front.
fn queue(mut cases: Vec<Case>) -> VecDeque<Case> {
    let place = |case: &Case| {
        let name = case.test.rsplit("::").next().unwrap_or(&case.test);
        LONG.iter().position(|long| *long == name).unwrap_or(LONG.len())
    };
    cases.sort_by_key(place);
    cases.into()
}

/// Returns the selected tests, once their programs are built.
struct Tests {
    programs: Vec<Program>,
    all: usize,
    queue: Mutex<VecDeque<Case>>,
}

impl Tests {
    fn wait(inventory: &Inventory, tier: Tier, selection: &Selection) -> anyhow::Result<Self> {
        let programs = inventory.wait(|programs| {
            let of_tier = programs.iter().filter(|program| Tier::of(program) == Some(tier));
            let of_tier: Vec<Program> = of_tier.cloned().collect();
            (of_tier.len() == packages(tier)).then_some(of_tier)
        });
        let programs = programs.context("the tests of the tier were not built")?;
        let mut cases = Vec::new();
        for (place, program) in programs.iter().enumerate() {
            for test in Execution::of(program, 1).list()? {
                if selection.takes(program, &test) {
                    cases.push(Case { program: place, test });
                }
            }
        }
        Ok(Self {
            programs,
            all: cases.len(),
            queue: Mutex::new(queue(cases)),
        })
    }

    fn left(&self) -> MutexGuard<'_, VecDeque<Case>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next test, and its number.
    fn next(&self) -> Option<(Case, usize)> {
        let mut left = self.left();
        let case = left.pop_front()?;
        Some((case, self.all - left.len()))
    }
}

/// Runs the tests of the tier.
pub(super) fn run(settings: &Settings<'_>, inventory: &Inventory, board: &Board) -> anyhow::Result<Entry> {
    let began = Instant::now();
    let mut entry = Entry {
        tier: settings.tier.name(),
        ..Entry::default()
    };
    let mut lane = board.lane(settings.tier.name());
    let tests = OnceLock::new();
    let wait =
        || Tests::wait(inventory, settings.tier, settings.selection).map_err(|error| format!("{error:#}"));
    let tests = || tests.get_or_init(wait);
    if settings.selection.is_part() && tests().as_ref().is_ok_and(|tests| tests.all == 0) {
        return Ok(entry);
    }
    let built = if settings.shipped {
        image::build(&mut lane)?
    } else {
        image::development(inventory, &mut lane)?
    };
    manifests::write(&built)?;
    drop(lane);
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let names: Vec<&str> = named
        .as_deref()
        .map_or(settings.tier.lanes().to_vec(), |name| vec![name]);
    let mut options = Options::from_env()?;
    let mut clusters = Vec::new();
    for name in names {
        name.clone_into(&mut options.name);
        clusters.push(Cluster::new(options.clone())?);
    }
    let worker = Worker {
        settings,
        board,
        built: &built,
        inventory,
    };
    let waited = began.elapsed();
    let ends: Vec<anyhow::Result<Entry>> = thread::scope(|scope| {
        let workers: Vec<_> = clusters
            .iter()
            .zip(settings.tier.lanes())
            .map(|(cluster, name)| {
                let (worker, tests) = (&worker, &tests);
                scope.spawn(move || {
                    let mut lane = board.lane(name);
                    let began = Instant::now();
                    worker.install(cluster, &mut lane)?;
                    lane.step("waiting for the tests");
                    let tests = tests().as_ref().map_err(|error| anyhow!("{error}"))?;
                    let mut entry = worker.run(cluster, tests, &mut lane)?;
                    entry.waited = began.elapsed().saturating_sub(entry.ran);
                    Ok(entry)
                })
            })
            .collect();
        workers.into_iter().map(super::run::join).collect()
    });
    for end in ends {
        entry.add(end?);
    }
    entry.waited += waited;
    entry.ran = began.elapsed().saturating_sub(entry.waited);
    let left = tests().as_ref().map_or(0, |tests| tests.left().len());
    ensure!(left == 0, "{left} tests did not run");
    Ok(entry)
}

/// A worker with a cluster.
struct Worker<'a> {
    settings: &'a Settings<'a>,
    board: &'a Board,
    built: &'a image::Built,
    inventory: &'a Inventory,
}

impl Worker<'_> {
    /// Starts the cluster with the product. Unless the cluster is to be kept, this run owns it, so that the cluster
    /// ends with the run.
    fn install(&self, cluster: &Cluster, lane: &mut Lane) -> anyhow::Result<()> {
        if !self.settings.keep {
            cluster.claim(lane)?;
        }
        cluster.up(lane)?;
        let installed = self.install_on(cluster, lane);
        if installed.is_err() {
            let evidence = explain::cluster(cluster, &[install::NAMESPACE]);
            self.board.print(&evidence);
            return installed.and(self.keep(cluster, lane));
        }
        Ok(())
    }

    fn install_on(&self, cluster: &Cluster, lane: &mut Lane) -> anyhow::Result<()> {
        install::install(cluster, self.built, install::CONFIG, lane)?;
        install::bridges(cluster, lane)?;
        if let Some(programs) = &self.settings.kubevirt {
            lane.step("waiting for the stand-ins of KubeVirt");
            let stand_ins = kubevirt_parts::stand_ins(self.inventory)?;
            kubevirt::up(cluster, programs, &stand_ins, lane)?;
        }
        Ok(())
    }

    /// Keeps the cluster, and prints how to use it.
    fn keep(&self, cluster: &Cluster, lane: &mut Lane) -> anyhow::Result<()> {
        cluster.keep(lane)?;
        self.board.print(&format!(
            "the cluster is kept: export KUBECONFIG={}\nremove it with: WEFT_CLUSTER={} cargo xtask cluster down\n",
            cluster.kubeconfig().display(),
            cluster.name()
        ));
        Ok(())
    }

    /// Runs tests until the queue is empty.
    fn run(&self, cluster: &Cluster, tests: &Tests, lane: &mut Lane) -> anyhow::Result<Entry> {
        let began = Instant::now();
        let mut entry = Entry::default();
        while let Some((case, number)) = tests.next() {
            lane.step(&format!("{} ({number} of {})", case.test, tests.all));
            match self.test(cluster, &tests.programs[case.program], case.test, lane) {
                Ok(more) => entry.add(more),
                Err(error) => {
                    self.board.print(&format!("\n{error:#}\n"));
                    entry.totals.failed += 1;
                }
            }
        }
        entry.ran = began.elapsed();
        if entry.totals.failed == 0 && !self.settings.keep {
            cluster.down(lane)?;
        } else {
            self.keep(cluster, lane)?;
        }
        Ok(entry)
    }

    fn test(
        &self,
        cluster: &Cluster,
        program: &Program,
        test: String,
        lane: &mut Lane,
    ) -> anyhow::Result<Entry> {
        let execution = Execution {
            filters: vec![test.clone()],
            exact: true,
            gives_way: false,
            environment: vec![
                (VARIABLE, cluster.name().into()),
                ("WEFT_E2E_IMAGE", self.built.reference.clone().into()),
                ("WEFT_E2E_ARCHIVE", self.built.archive.clone().into()),
                ("WEFT_E2E_CNI_BINARY", self.built.cni.clone().into()),
                ("KUBECONFIG", cluster.kubeconfig().into()),
            ],
            ..Execution::of(program, 1)
        };
        let executed = execution.run(lane).with_context(|| test.clone())?;
        self.board.print(&shown(&executed.shown));
        Ok(Entry {
            totals: executed.reader.totals(),
            outcomes: super::run::outcomes(program, &executed.reader),
            failures: super::run::failures(&executed.reader, str::to_owned),
            tests: vec![(test, executed.took)],
            ..Entry::default()
        })
    }
}

/// Returns the output of a program with a single test, without its count.
fn shown(output: &str) -> String {
    let worth = |line: &&str| !line.starts_with("test result: ok");
    output
        .lines()
        .filter(worth)
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_tests_precede_all_others_in_their_order() {
        let case = |test: &str| Case {
            program: 0,
            test: test.to_owned(),
        };
        let cases = ["attach::a", LONG[1], "attach::b", LONG[0]].map(case);
        let expected = [LONG[0], LONG[1], "attach::a", "attach::b"].map(case);
        assert_eq!(queue(cases.to_vec()), expected);
    }

    #[test]
    fn count_of_a_single_test_is_not_shown() {
        let output = "  a: measured: 3 ms\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(shown(output), "  a: measured: 3 ms\n");
    }
}
