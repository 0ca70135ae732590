//! `cargo xtask bench attach`: the image's multus daemon and shim, by the program in `testing/bench`.

use super::harness;
use crate::image;

/// How often to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of ADD and DEL for each case and number of callers, one directly and one through multus
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// A real API server, instead of one that answers at once
    #[arg(long)]
    api_server: bool,
    /// Measure only cases whose name begins with this, or "memory"; may be repeated
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
