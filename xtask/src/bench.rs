//! `cargo xtask bench`: figures, never a judgement.

mod cni;
mod footprint;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Memory of every process of ours on the nodes, sizes of image and programs, requests while nothing happens
    Footprint(footprint::Args),
    /// Time that our CNI plugins take, against Debian's and the bare kernel; needs root
    Cni(cni::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Footprint(args) => footprint::run(args),
        Command::Cni(args) => cni::run(args),
    }
}
