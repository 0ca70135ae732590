//! `cargo xtask bench macpool`: the image's MAC pool, measured by the program in `testing/bench`.

use super::harness;
use crate::image;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of virtual machines at the start of the manager
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [1_000, 10_000])]
    vms: Vec<usize>,
    /// Number of measured starts for each number of virtual machines
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each kind of review; the pool refuses more than 65,536 open admissions
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = harness::build("macpool-bench", &[image::WEFT])?;
    let numbers: Vec<_> = args.vms.iter().map(usize::to_string).collect();
    command.arg("--ours").arg(image::built(image::WEFT)?);
    command.args(["--vms", &numbers.join(",")]);
    command.args(["--rounds", &args.rounds.to_string()]);
    command.args(["--seconds", &args.seconds.to_string()]);
    harness::run(command)
}
