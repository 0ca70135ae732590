//! `cargo xtask bench cni`: the image's `weft-cni` against Debian's plugins, by the program in `testing/bench`.

use super::harness;
use crate::image;

/// What to measure, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of attachments for each case, one by each plugin
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Case to measure, may be repeated; all by default, and an unknown name lists them
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = harness::build("cni-bench", &[image::CNI])?;
    command.arg("--ours").arg(image::built(image::CNI)?);
    command.args(["--pairs", &args.pairs.to_string()]);
    for case in &args.cases {
        command.args(["--case", case]);
    }
    harness::run(command)
}
