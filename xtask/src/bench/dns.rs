//! `cargo xtask bench dns`: the image's secondary DNS server beside CoreDNS, measured by the program in `testing/bench`
//! and by Debian's dnsperf.

use cluster::{DNSPERF_PROGRAM, Home, Packages, Steps, coredns};

use super::harness;
use crate::image;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Virtual machines in the zone, each with two names
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    vms: u32,
    /// Seconds of each kind of query
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let home = Home::from_env()?;
    let dnsperf = Packages::ensure_dnsperf(&home, &mut Steps::new())?;
    let theirs = coredns::ensure(&home, "do without this measurement", &mut Steps::new())?;
    let mut command = harness::build("dns-bench", &[image::WEFT])?;
    command.arg("--ours").arg(image::built(image::WEFT)?);
    command.arg("--theirs").arg(theirs);
    command.arg("--dnsperf").arg(dnsperf.file(DNSPERF_PROGRAM));
    // The libraries of dnsperf are in the unpacked packages. All other programs of the measurement are static.
    command.envs(dnsperf.variables());
    command.args(["--vms", &args.vms.to_string()]);
    command.args(["--seconds", &args.seconds.to_string()]);
    harness::run(command)
}
