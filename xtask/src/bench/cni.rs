//! `cargo xtask bench cni`: the image's `weft-cni` against Debian's plugins, by the program in `testing/bench`.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail};
use cluster::{Progress, Steps, run};

use crate::{image, paths, test};

/// The crate that measures, and its program.
const HARNESS: &str = "cni-bench";

/// What to measure, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of attachments a case, one by each
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Cases to measure, all by default; an unknown name lists them
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !test::is_root() {
        bail!("only root can make the network namespaces that this takes; run it as root");
    }
    let mut steps = Steps::new();
    let logs = paths::target().join("bench");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let log = logs.join(format!("build-{}.log", std::process::id()));
    steps.step("building the program that measures");
    run::watched(
        paths::cargo().args(["build", "--package", HARNESS]),
        &log,
        &mut steps,
    )?;
    let _ = fs::remove_file(&log);
    image::compile(&[image::CNI], &mut steps)?;
    drop(steps);

    let mut harness = Command::new(paths::target().join("debug").join(HARNESS));
    harness.arg("--ours").arg(image::cni_binary());
    harness.args(["--pairs", &args.pairs.to_string()]);
    for case in &args.cases {
        harness.args(["--case", case]);
    }
    let status = harness
        .status()
        .with_context(|| format!("cannot run `{}`", run::shown(&harness)))?;
    if !status.success() {
        bail!("nothing more was measured: {status}");
    }
    Ok(())
}
