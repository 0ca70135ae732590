//! Commands for people, and the same as a plugin of kubectl (`kubectl weft …`). They print; they do not log. Flags are
//! kubectl's, not Go's, and exit codes answer questions.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use program::answer::TROUBLE;

use crate::{network, nmstate};

/// Name of the program as a plugin of kubectl.
const PLUGIN: &str = "kubectl-weft";

/// What `kubectl weft --help` says first.
const ABOUT: &str = "\
Looks at the network add-ons of a cluster, and at what their operator does

  kubectl weft status              how the add-ons are, and what to do
  kubectl weft diff -f cr.yaml     what a NetworkAddonsConfig would change
  kubectl weft render -f cr.yaml   what it means, without a cluster
  kubectl weft explain pod NAME    which networks a pod gets, and what came of it
  kubectl weft doctor [NODE]       whether attachments are as they were made, and
                                   what is left over on nodes
  kubectl weft macpool who MAC     which objects have a MAC address
  kubectl weft macpool usage       how full the range of MAC addresses is
  kubectl weft dns lookup NAME     what the secondary DNS answers, and why nothing
  kubectl weft dns records         all names that have an address
  kubectl weft ippool who IP       which virtual machine keeps an IP address
  kubectl weft ippool usage        how full the ranges of these addresses are
  kubectl weft ippool release      remove finalizers that a removed controller left
  kubectl weft network plan -f network.yaml
                                   what a network of the cluster would change
  kubectl weft network status      how the network of the cluster is
  kubectl weft network check       which endpoints the nodes of the cluster reach
  kubectl weft nmstate preview -f policy.yaml
                                   what a policy would change on each node";

/// Commands for people.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Addons(cli::Command),
    /// Show which networks a pod gets, from where, and what came of it
    Explain(multus::explain::Args),
    /// Check the attachments of a node, and find what is left over
    Doctor(multus::doctor::Args),
    /// Show who has a MAC address, and how full the pool is
    Macpool(kubemacpool::cli::Args),
    /// Show what is answered for names of virtual machines, and why nothing is
    Dns(secondary_dns::cli::Args),
    /// Show who keeps an IP address, and how full the ranges of networks are
    Ippool(kubevirt_ipam::cli::Args),
    /// Show whether the network of the cluster works
    Network(network::Args),
    /// Show what a policy would change on the nodes
    Nmstate(nmstate::Args),
}

impl Command {
    /// The command as a plugin of kubectl means it.
    fn of_cluster(self) -> Self {
        match self {
            Self::Doctor(args) => Self::Doctor(args.of_cluster()),
            other => other,
        }
    }
}

/// The commands alone.
#[derive(Debug, Parser)]
#[command(name = "kubectl weft", bin_name = "kubectl weft", version, about = ABOUT, arg_required_else_help = true)]
struct Plugin {
    #[command(subcommand)]
    command: Command,
}

/// Whether the program was called as a plugin of kubectl; the first argument is its name.
pub(crate) fn is_plugin(argv: &[OsString]) -> bool {
    let program = argv.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == PLUGIN)
}

/// Whether a command line is for people.
pub(crate) fn is_meant(argv: &[OsString]) -> bool {
    let commands = Command::augment_subcommands(clap::Command::new(PLUGIN));
    argv.get(1)
        .and_then(|command| command.to_str())
        .is_some_and(|name| commands.find_subcommand(name).is_some())
}

/// Runs the program as a plugin of kubectl.
pub(crate) fn plugin(argv: Vec<OsString>) -> ExitCode {
    match Plugin::try_parse_from(argv) {
        Ok(plugin) => run(plugin.command.of_cluster()),
        Err(error) => refuse(&error),
    }
}

/// Shows help, or what is wrong with the arguments.
pub(crate) fn refuse(error: &clap::Error) -> ExitCode {
    // Nothing can be done when even that can't be shown.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(TROUBLE),
    }
}

/// Runs a command: prints what it has to say, and tells by the exit code how it went.
pub(crate) fn run(command: Command) -> ExitCode {
    let answer = match command {
        Command::Addons(command) => cli::answer(command),
        Command::Explain(args) => multus::explain::answer(args),
        Command::Doctor(args) => multus::doctor::answer(&args),
        Command::Macpool(args) => kubemacpool::cli::answer(args),
        Command::Dns(args) => secondary_dns::cli::answer(args),
        Command::Ippool(args) => kubevirt_ipam::cli::answer(args),
        Command::Network(args) => network::answer(&args),
        Command::Nmstate(args) => return nmstate::run(&args),
    };
    answer.print()
}
