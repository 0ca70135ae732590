//! `cargo xtask bench attach`: the image's multus daemon and shim, measured by the program in `testing/bench`.

use super::harness;
use crate::image;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of ADD and DEL for each case and number of callers, one directly and one through multus
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Use a real API server, instead of a stand-in that answers at once
    #[arg(long)]
    api_server: bool,
    /// Measure only cases whose name starts with this, or "memory"; can be repeated
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = harness::build("cni-bench", &[image::WEFT, image::CNI])?;
    command.arg("--attach").arg(image::built(image::WEFT)?);
    command.arg("--ours").arg(image::built(image::CNI)?);
    command.args(["--pairs", &args.pairs.to_string()]);
    if args.api_server {
        command.arg("--api-server");
    }
    for case in &args.cases {
        command.args(["--case", case]);
    }
    harness::run(command)
}
