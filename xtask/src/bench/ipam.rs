//! `cargo xtask bench ipam`: the image's KubeVirt IPAM, measured by the program in `testing/bench`.

use super::harness;
use crate::image;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Running virtual machines at the start of the controller, each with a claim
    #[arg(long, value_name = "NUMBER", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    vms: u32,
    /// Number of measured starts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each kind of review
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Instances to create on each network
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    instances: u32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = harness::build("ipam-bench", &[image::WEFT])?;
    command.arg("--ours").arg(image::built(image::WEFT)?);
    command.args(["--vms", &args.vms.to_string()]);
    command.args(["--rounds", &args.rounds.to_string()]);
    command.args(["--seconds", &args.seconds.to_string()]);
    command.args(["--instances", &args.instances.to_string()]);
    harness::run(command)
}
