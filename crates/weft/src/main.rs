//! `weft`: all long-running components of Weft and its command line in one binary.
//!
//! ```text
//! argv[0] ─┬─> names of the node state programs ──> weft_nmstate::main(argv)
//!          ├─> argv: upstream names, Go-style flags ──> clap ──> run(args) of one component
//! flags ───┘
//! ```

mod argv;
mod network;
mod nmstate;
mod user_commands;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use kube_kit::process;
use kube_kit::shutdown::Shutdown;
use program::logging::{self, Format};
use program::terminal;
use program::zap::TimeEncoding;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use tokio::sync::oneshot;

/// Introduction of `weft --help`. The lines are short, because clap prints them verbatim.
const ABOUT: &str = "\
Additional networks for Kubernetes

Weft replaces the programs that the cluster network add-ons operator deploys,
and that operator. Install it by its manifests:

  weft manifests --image REF | kubectl apply -f -

and choose components in a NetworkAddonsConfig named `cluster`. Then

  weft status

shows their state (or `kubectl weft status`, if the program is also installed
under the name kubectl-weft). Containers of the components run the other
commands. Each of these also runs under the name of the program that it replaces
(multus-daemon, install_multus, bridge-marker, ...), and accepts Go-style flags
(-node-name X).";

const AFTER: &str = "\
WEFT_LOG sets the log level: error, warn, info (the default), debug or trace. It
can also set the level of single modules: info,kube=debug.";

/// Commands that exit like Go's programs after an invalid flag (kubemacpool §2.1, kubevirt-ipam §3, secondary-dns §2),
/// and their exit code.
const LIKE_GO: [&str; 3] = ["kubemacpool", "kubevirt-ipam", "secondary-dns"];
const INVALID_FLAG: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    about = "Additional networks for Kubernetes",
    long_about = ABOUT,
    after_help = AFTER,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print or write the manifests that install the operator
    Manifests(manifests::Args),
    /// Fill in a manifest template of a parent operator. Unknown flags are ignored
    ManifestTemplator(manifests::templator::Args),
    /// Print the manifests that OLM needs to install the operator. Unknown flags are ignored
    CsvGenerator(manifests::templator::Args),
    #[command(flatten)]
    ForUsers(user_commands::Command),
    /// Deploy the components of the NetworkAddonsConfig
    Operator(operator::Args),
    /// Attach the pods of this node to additional networks
    MultusDaemon(multus::Args),
    #[command(hide = true)]
    Multus(multus::thin::Args),
    ThinEntrypoint(multus::thin::entrypoint::Args),
    KubeconfigGenerator(multus::certificate::generator::Args),
    CertApprover(multus::certificate::approver::Args),
    DynamicNetworks(dynamic_networks::Args),
    /// Validate the definitions of networks, and request the resources of networks for pods
    NadWebhook(multus::admission::Args),
    #[command(hide = true)]
    Curl(dynamic_networks::curl::Args),
    InstallMultus(installer::multus::Args),
    InstallPlugins(installer::plugins::Args),
    BridgeMarker(markers::bridge::Args),
    OvsMarker(markers::ovs::Args),
    DhcpDaemon(dhcp::Args),
    PodNetwork(pod_network::Args),
    MacvtapDevicePlugin(macvtap::Args),
    /// Assign unique MAC addresses to virtual machines and pods
    Kubemacpool(kubemacpool::Args),
    /// Keep the IP addresses of virtual machines
    KubevirtIpam(kubevirt_ipam::Args),
    /// Answer DNS queries for virtual machines on secondary networks
    SecondaryDns(secondary_dns::Args),
    ClusterNetworkOperator(cluster_network::Args),
    /// Check whether this pod reaches the endpoints of the connectivity checks
    CheckEndpoints(connectivity::source::Args),
    /// Answer connectivity checks of this pod
    CheckTarget(connectivity::target::Args),
}

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let program = argv.first().map(Path::new);
    if program.is_some_and(weft_nmstate::is_meant) {
        return weft_nmstate::main(argv);
    }
    if user_commands::is_plugin(&argv) {
        logging::start(Format::Text, logging::QUIET);
        return user_commands::plugin(argv);
    }
    let for_users = user_commands::is_meant(&argv);
    let (arguments, own_name) = if for_users {
        (argv, None)
    } else {
        argv::rewrite(argv.into_iter(), |name| std::env::var_os(name).is_some())
    };
    let is_go = arguments
        .get(1)
        .is_some_and(|command| LIKE_GO.iter().any(|it| command == it));
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if for_users => return user_commands::refuse(&error),
        Err(error) if is_go && error.use_stderr() => {
            refuse(&error, None);
            return ExitCode::from(INVALID_FLAG);
        }
        Err(error) => return refuse(&error, own_name.as_ref()),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            terminal::remark(format_args!("{error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::too_many_lines, reason = "several lines for each program")]
fn run(command: Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::ForUsers(command) => {
            logging::start(Format::Text, logging::QUIET);
            return Ok(user_commands::run(command));
        }
        Command::Operator(args) => {
            logging::start(Format::Zap(args.zap.lines()), args.log_level());
            process::run(operator::run(args))?
        }
        Command::Manifests(args) => manifests::run(args),
        Command::ManifestTemplator(args) => manifests::templator::run(&args),
        Command::CsvGenerator(args) => manifests::templator::run_csv(&args),
        Command::Multus(args) => {
            logging::start(Format::Text, logging::QUIET);
            return Ok(multus::thin::run(&args));
        }
        Command::ThinEntrypoint(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(multus::thin::entrypoint::run(args))?
        }
        // The configuration of multus-daemon determines its log.
        Command::MultusDaemon(args) => process::run_for_callers(multus::run(args))?,
        Command::KubeconfigGenerator(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(multus::certificate::generator::run(args))?
        }
        Command::CertApprover(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(multus::certificate::approver::run(args))?
        }
        Command::NadWebhook(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(multus::admission::run(args))?
        }
        Command::DynamicNetworks(args) => {
            logging::start(Format::Text, args.log_level());
            process::run(dynamic_networks::run(args))?
        }
        Command::Curl(args) => {
            logging::start(Format::Text, logging::QUIET);
            process::run(dynamic_networks::curl::run(args))?
        }
        Command::InstallMultus(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            installer::multus::run(args)
        }
        Command::InstallPlugins(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(until_signal(move || installer::plugins::run(args)))?
        }
        Command::BridgeMarker(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(markers::bridge::run(args))?
        }
        Command::OvsMarker(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(markers::ovs::run(args))?
        }
        Command::DhcpDaemon(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(dhcp::run(args))?
        }
        Command::PodNetwork(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(pod_network::run(args))?
        }
        Command::MacvtapDevicePlugin(args) => {
            logging::start(Format::Text, logging::DEFAULT);
            process::run(macvtap::run(args))?
        }
        Command::Kubemacpool(args) => {
            let (format, level) = logging::zap(args.production());
            logging::start(format, level);
            process::run(kubemacpool::run(args))?
        }
        Command::KubevirtIpam(args) => {
            let level = std::env::var(kubevirt_ipam::names::LOG_LEVEL).ok();
            logging::start(Format::Klog, args.log_level(level.as_deref())?);
            process::run(kubevirt_ipam::run(args))?
        }
        Command::SecondaryDns(args) => {
            let mode = args.mode(|name| std::env::var(name).ok());
            let level = args.zap.level(None);
            if mode == secondary_dns::Mode::Serve {
                logging::start(Format::Bracketed, level);
            } else {
                let mut lines = args.zap.lines();
                lines.time.get_or_insert(TimeEncoding::Epoch);
                logging::start(Format::Zap(lines), level);
            }
            process::run(secondary_dns::run(args))?
        }
        Command::ClusterNetworkOperator(args) => {
            logging::start(Format::Klog, logging::DEFAULT);
            process::run(cluster_network::run(args))?
        }
        Command::CheckEndpoints(args) => {
            logging::start(Format::Klog, logging::DEFAULT);
            process::run(connectivity::source::run(args))?
        }
        Command::CheckTarget(args) => {
            logging::start(Format::Klog, logging::DEFAULT);
            process::run(connectivity::target::run(args))?
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs blocking work on a separate thread, and returns at SIGTERM or SIGINT: without a handler, signals do not end the
/// first process of a container. The work must be interruptible at any point.
async fn until_signal(work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || {
        // After a signal, the receiver is gone.
        let _ = done.send(work());
    });
    tokio::select! {
        outcome = outcome => outcome?,
        () = shutdown.wait() => Ok(()),
    }
}

/// Prints help, or the error in the arguments.
fn refuse(error: &clap::Error, own_name: Option<&OsString>) -> ExitCode {
    // A failure to print cannot be reported.
    let _ = error.print();
    let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // The upstream program exits with a failure after help (multus.md §8.2).
    let fails_after_help = own_name.is_some_and(|name| name == "install_multus");
    if help && !fails_after_help {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sockets_of_the_operator_are_sockets_of_multus() {
        let asked = multus::CRI_SOCKETS;
        for socket in operator::components::CRI_SOCKETS {
            assert!(asked.contains(&socket), "{socket}");
        }
    }
}
