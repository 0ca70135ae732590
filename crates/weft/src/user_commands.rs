//! Commands for users, which also form a plugin of kubectl (`kubectl weft …`). They print, and do not log. Their flags
//! follow kubectl instead of Go, and their exit codes answer questions.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use program::answer::TROUBLE;

use crate::{network, nmstate};

/// Name of the kubectl plugin.
const PLUGIN: &str = "kubectl-weft";

/// Introduction of `kubectl weft --help`.
const ABOUT: &str = "\
Show the state of a cluster's network add-ons, and the effects of changes

  kubectl weft status              state of the add-ons, with remedies
  kubectl weft diff -f cr.yaml     changes of a NetworkAddonsConfig
  kubectl weft render -f cr.yaml   its objects, without a cluster
  kubectl weft explain pod NAME    networks of a pod, and results of attachment
  kubectl weft doctor [NODE]       damaged attachments, and leftovers on nodes
  kubectl weft macpool who MAC     objects with a MAC address
  kubectl weft macpool usage       usage of the range of MAC addresses
  kubectl weft dns lookup NAME     answer of the secondary DNS, or why it has none
  kubectl weft dns records         all names with an address
  kubectl weft ippool who IP       virtual machine that owns an IP address
  kubectl weft ippool usage        usage of the ranges of IP addresses
  kubectl weft ippool release      remove finalizers of a removed controller
  kubectl weft network plan -f network.yaml
                                   changes of a network configuration
  kubectl weft network status      state of the cluster's network
  kubectl weft network check       connectivity checks, run now
  kubectl weft nmstate preview -f policy.yaml
                                   changes of a policy on each node";

/// Commands for users.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Addons(cli::Command),
    /// Show the networks of a pod, their origins, and the results of their attachment
    Explain(multus::explain::Args),
    /// Check the attachments of a node, and find leftovers
    Doctor(multus::doctor::Args),
    /// Show the owners of a MAC address, and the usage of the pool
    Macpool(kubemacpool::cli::Args),
    /// Show the answers of the secondary DNS, or why it has none
    Dns(secondary_dns::cli::Args),
    /// Show the owner of an IP address, and the usage of ranges
    Ippool(kubevirt_ipam::cli::Args),
    /// Show whether the network of the cluster works
    Network(network::Args),
    /// Show the changes of a policy on the nodes
    Nmstate(nmstate::Args),
}

impl Command {
    /// Converts the command into its form in the kubectl plugin.
    fn of_cluster(self) -> Self {
        match self {
            Self::Doctor(args) => Self::Doctor(args.of_cluster()),
            other => other,
        }
    }
}

/// The command line of the kubectl plugin.
#[derive(Debug, Parser)]
#[command(name = "kubectl weft", bin_name = "kubectl weft", version, about = ABOUT, arg_required_else_help = true)]
struct Plugin {
    #[command(subcommand)]
    command: Command,
}

/// Returns true if the program was called as a kubectl plugin. The first argument is the program's name.
pub(crate) fn is_plugin(argv: &[OsString]) -> bool {
    let program = argv.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == PLUGIN)
}

/// Returns true if the command line is a command for users.
pub(crate) fn is_meant(argv: &[OsString]) -> bool {
    let commands = Command::augment_subcommands(clap::Command::new(PLUGIN));
    argv.get(1)
        .and_then(|command| command.to_str())
        .is_some_and(|name| commands.find_subcommand(name).is_some())
}

/// Runs the program as a kubectl plugin.
pub(crate) fn plugin(argv: Vec<OsString>) -> ExitCode {
    match Plugin::try_parse_from(argv) {
        Ok(plugin) => run(plugin.command.of_cluster()),
        Err(error) => refuse(&error),
    }
}

/// Prints help, or the error in the arguments.
pub(crate) fn refuse(error: &clap::Error) -> ExitCode {
    // A failure to print cannot be reported.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(TROUBLE),
    }
}

/// Runs a command: prints its answer, and returns its exit code.
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
