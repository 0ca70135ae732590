//! Programs of `testing/bench`: built, and run as root.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail};
use cluster::{Progress, Steps, run};

use crate::{image, paths, test};

/// The package of all of them.
const PACKAGE: &str = "cni-bench";

/// Builds the program that measures, and what it is to measure.
pub(super) fn build(harness: &str, measured: image::Program) -> anyhow::Result<Command> {
    if !test::is_root() {
        bail!("only root can make the network namespaces that this takes; run it as root");
    }
    let mut steps = Steps::new();
    let logs = paths::target().join("bench");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let log = logs.join(format!("build-{}.log", std::process::id()));
    steps.step("building the program that measures");
    run::watched(
        paths::cargo().args(["build", "--package", PACKAGE, "--bin", harness]),
        &log,
        &mut steps,
    )?;
    let _ = fs::remove_file(&log);
    image::compile(&[measured], &mut steps)?;
    Ok(Command::new(paths::target().join("debug").join(harness)))
}

/// Runs it to its end; it prints what it measured.
pub(super) fn run(mut harness: Command) -> anyhow::Result<()> {
    let status = harness
        .status()
        .with_context(|| format!("cannot run `{}`", run::shown(&harness)))?;
    if !status.success() {
        bail!("nothing more was measured: {status}");
    }
    Ok(())
}
