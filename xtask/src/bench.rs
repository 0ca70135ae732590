//! `cargo xtask bench`: measurements without a verdict.

mod attach;
mod audit;
mod cni;
mod dns;
mod footprint;
mod harness;
mod ipam;
mod macpool;
mod memory;
mod network;
mod nmstate;
mod operator;
mod pods;

/// The measurements.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Memory of Weft's processes on the demo's cluster, sizes of the image and its programs
    Footprint(footprint::Args),
    /// ADD and DEL of Weft's CNI plugins, compared with Debian's and with the bare kernel; needs root
    Cni(cni::Args),
    /// ADD and DEL through multus, compared with calling the plugin directly; its memory; needs root
    Attach(attach::Args),
    /// Pods that become Ready per second, with and without networks, on the demo's cluster
    Pods(pods::Args),
    /// The pod network beside flannel: latency, throughput, start of pods, memory, on a cluster of its own; needs root
    Network(network::Args),
    /// The add-ons operator, or the cluster network operator: times to deploy and to repair, requests while idle, memory;
    /// needs root
    Operator(operator::Args),
    /// The MAC pool: reviews over TLS, starts with many virtual machines, memory, API requests; needs root
    Macpool(macpool::Args),
    /// KubeVirt IPAM: reviews of launcher pods, start with many claims, memory, time to a claim; needs root
    Ipam(ipam::Args),
    /// The secondary DNS: queries per second and core, memory, start with many names, time to an answer; needs root
    Dns(dns::Args),
    /// Node network state: memory, idle processor time, time to report a change and to apply a policy; needs root
    Nmstate(nmstate::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Footprint(args) => footprint::run(args),
        Command::Cni(args) => cni::run(args),
        Command::Attach(args) => attach::run(args),
        Command::Pods(args) => pods::run(args),
        Command::Network(args) => network::run(args),
        Command::Operator(args) => operator::run(args),
        Command::Macpool(args) => macpool::run(args),
        Command::Ipam(args) => ipam::run(args),
        Command::Dns(args) => dns::run(args),
        Command::Nmstate(args) => nmstate::run(args),
    }
}
