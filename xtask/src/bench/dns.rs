//! `cargo xtask bench dns`: the image's server of the secondary DNS beside CoreDNS, by the program in `testing/bench`.

use std::path::PathBuf;

use cluster::{Home, Progress, Steps, go};

use super::harness;
use crate::{image, paths};

/// The version that `testing/bench/coredns` pins.
const COREDNS: &str = "1.12.4";

/// What to measure, and how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Virtual machines in the zone, each with two names
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    vms: u32,
    /// Seconds to ask each kind of question
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = harness::build("dns-bench", &[image::WEFT])?;
    command.arg("--ours").arg(image::built(image::WEFT)?);
    command.arg("--theirs").arg(coredns()?);
    command.args(["--vms", &args.vms.to_string()]);
    command.args(["--seconds", &args.seconds.to_string()]);
    harness::run(command)
}

/// CoreDNS with all its plugins, built once into the cache.
fn coredns() -> anyhow::Result<PathBuf> {
    let mut steps = Steps::new();
    let home = Home::from_env()?;
    let program = home.dir(&format!("coredns/v{COREDNS}"))?.join("coredns");
    let _lock = home.lock("coredns", &mut steps)?;
    if !program.is_file() {
        steps.step(&format!("building CoreDNS {COREDNS}, once"));
        let wanted = ("github.com/coredns/coredns".to_owned(), program.as_path());
        let source = paths::root().join("testing/bench/coredns");
        go::build(
            &source,
            &[wanted],
            "-s -w",
            "do without this measurement",
            &mut steps,
        )?;
    }
    Ok(program)
}
