//! Common parts of measurements: programs of `testing/bench`, built and run as root, and timed rounds.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cluster::{Cluster, Progress, Steps, run};

use crate::{build, explain, image, test};

/// Builds the measuring program and the measured programs.
pub(super) fn build(harness: &str, measured: &[image::Program]) -> anyhow::Result<Command> {
    if !test::is_root() {
        bail!("the measurement needs network namespaces, which only root can create: run it as root");
    }
    let mut steps = Steps::new();
    let harness = build::programs(build::Extent::Programs, &mut steps)?.binary(harness)?;
    image::compile(measured, &mut steps)?;
    Ok(Command::new(harness))
}

/// Runs the program, which prints its results.
pub(super) fn run(mut harness: Command) -> anyhow::Result<()> {
    let status = harness
        .status()
        .with_context(|| format!("cannot run `{}`", run::shown(&harness)))?;
    if !status.success() {
        bail!("the measurement failed: {status}");
    }
    Ok(())
}

/// Calls `measure` on a new cluster, and then removes the cluster, or keeps it. A failure prints evidence from the
/// namespaces.
pub(super) fn on_own_cluster<T>(
    cluster: &Cluster,
    keep: bool,
    namespaces: &[&str],
    steps: &mut Steps,
    measure: impl FnOnce(&mut Steps) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    cluster.claim(steps)?;
    // An interrupted run may have left a cluster.
    cluster.down(steps)?;
    cluster.claim(steps)?;
    let outcome = measure(steps);
    if outcome.is_err() {
        eprint!("{}", explain::cluster(cluster, namespaces));
    }
    if keep {
        cluster.keep(steps)?;
    } else {
        cluster.down(steps)?;
    }
    outcome
}

/// Waits for a duration.
pub(super) fn pass(time: Duration, steps: &mut Steps) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(500));
        steps.tick("");
    }
}

/// Measures several rounds, and returns their durations.
pub(super) fn rounds(
    steps: &mut Steps,
    what: &str,
    rounds: u32,
    measure: impl Fn(u32) -> anyhow::Result<Duration>,
) -> anyhow::Result<String> {
    let mut times = Vec::new();
    for round in 1..=rounds {
        steps.step(&format!("{what}: round {round} of {rounds}"));
        times.push(measure(round)?);
    }
    times.sort();
    Ok(times_text(&times))
}

/// Median, minimum and maximum of sorted times.
pub(super) fn times_text(times: &[Duration]) -> String {
    let [first, .., last] = times else {
        return times
            .iter()
            .map(|time| format!("{:.2} s", time.as_secs_f64()))
            .collect();
    };
    let median = times[times.len() / 2];
    format!(
        "{:.2} s ({:.2} to {:.2})",
        median.as_secs_f64(),
        first.as_secs_f64(),
        last.as_secs_f64()
    )
}
