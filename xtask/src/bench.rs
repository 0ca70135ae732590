//! `cargo xtask bench`: figures, never a judgement.

mod attach;
mod audit;
mod cni;
mod footprint;
mod harness;
mod macpool;
mod memory;
mod nmstate;
mod operator;
mod pods;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Memory of every process of ours on the nodes, sizes of image and programs
    Footprint,
    /// Time that our CNI plugins take, against Debian's and the bare kernel; needs root
    Cni(cni::Args),
    /// Multus: ADD and DEL through shim and daemon against calling the plugin, memory of both; needs root
    Attach(attach::Args),
    /// Pods a second until Ready, with networks and without, on the demo's cluster
    Pods(pods::Args),
    /// The operator: time to deploy and to repair, requests while nothing happens, memory among foreign objects
    Operator(operator::Args),
    /// The MAC pool: reviews over TLS, starts among virtual machines, memory, API calls; needs root
    Macpool(macpool::Args),
    /// Node network state: memory, processor time while nothing happens, host to report, policy to Available; needs root
    Nmstate(nmstate::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Footprint => footprint::run(),
        Command::Cni(args) => cni::run(args),
        Command::Attach(args) => attach::run(args),
        Command::Pods(args) => pods::run(args),
        Command::Operator(args) => operator::run(args),
        Command::Macpool(args) => macpool::run(args),
        Command::Nmstate(args) => nmstate::run(args),
    }
}
