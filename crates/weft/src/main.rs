//! `weft`: every long-running component of Weft and its command line in one binary.
//!
//! ```text
//! argv[0] ─┬─> names of the node state's programs ──> weft_nmstate::main(argv)
//!          ├─> argv: upstream names, Go-style flags ──> clap ──> one component's run(args)
//! flags ───┘
//! ```

mod argv;
mod network;
mod nmstate;
mod people;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use kube_kit::process;
use kube_kit::shutdown::Shutdown;
use program::logging::{self, Format};
use program::zap::TimeEncoding;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use tokio::sync::oneshot;

/// What `weft --help` says first; lines are short, because they are shown as they are.
const ABOUT: &str = "\
Additional networks for Kubernetes

Weft replaces the programs that the cluster network add-ons operator deploys,
and that operator. Install it by its manifests:

  weft manifests --image REF | kubectl apply -f -

and ask for components in a NetworkAddonsConfig named `cluster`; then

  weft status

says how they are (`kubectl weft status` does when the program is also there
under the name kubectl-weft). The commands below it are what the containers of
those components run. Each also answers to the name of the program that it
replaces (multus-daemon, install_multus, bridge-marker, ...), and understands
Go-style flags (-node-name X).";

const AFTER: &str = "\
WEFT_LOG says what is logged: error, warn, info (the default), debug, trace, or
more exactly for single modules: info,kube=debug.";

/// Commands that end as Go's programs do when a flag is wrong (kubemacpool §2.1, kubevirt-ipam §3, secondary-dns §2), and the
/// code that they end with.
const AS_GO: [&str; 3] = ["kubemacpool", "kubevirt-ipam", "secondary-dns"];
const WRONG_FLAG: u8 = 2;

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
    /// Fill in a manifest template of a parent operator; flags that are not known are ignored
    ManifestTemplator(manifests::templator::Args),
    /// Print what OLM installs the operator by; flags that are not known are ignored
    CsvGenerator(manifests::templator::Args),
    #[command(flatten)]
    ForPeople(people::Command),
    /// Deploy the components that the NetworkAddonsConfig asks for
    Operator(operator::Args),
    /// Attach the pods of this node to more networks than the cluster's
    MultusDaemon(multus::Args),
    #[command(hide = true)]
    Multus(multus::thin::Args),
    ThinEntrypoint(multus::thin::entrypoint::Args),
    KubeconfigGenerator(multus::certificate::generator::Args),
    CertApprover(multus::certificate::approver::Args),
    DynamicNetworks(dynamic_networks::Args),
    /// Say what is wrong with networks when they are defined, and request their resources for pods
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
    /// Give virtual machines and pods MAC addresses that nobody else has
    Kubemacpool(kubemacpool::Args),
    /// Let virtual machines keep their addresses
    KubevirtIpam(kubevirt_ipam::Args),
    /// Answer for the names of virtual machines on secondary networks
    SecondaryDns(secondary_dns::Args),
    ClusterNetworkOperator(cluster_network::Args),
    /// Check whether the endpoints that checks name can be reached from this pod
    CheckEndpoints(connectivity::source::Args),
    /// Answer those who check whether this pod can be reached
    CheckTarget(connectivity::target::Args),
}

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let program = argv.first().map(Path::new);
    if program.is_some_and(weft_nmstate::is_meant) {
        return weft_nmstate::main(argv);
    }
    if people::is_plugin(&argv) {
        logging::start(Format::Text, logging::QUIET);
        return people::plugin(argv);
    }
    let for_people = people::is_meant(&argv);
    let (arguments, own_name) = if for_people {
        (argv, None)
    } else {
        argv::rewrite(argv.into_iter(), |name| std::env::var_os(name).is_some())
    };
    let is_go = arguments
        .get(1)
        .is_some_and(|command| AS_GO.iter().any(|it| command == it));
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if for_people => return people::refuse(&error),
        Err(error) if is_go && error.use_stderr() => {
            refuse(&error, None);
            return ExitCode::from(WRONG_FLAG);
        }
        Err(error) => return refuse(&error, own_name.as_ref()),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::too_many_lines, reason = "some lines for each program")]
fn run(command: Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::ForPeople(command) => {
            logging::start(Format::Text, logging::QUIET);
            return Ok(people::run(command));
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
        // Its configuration says where it logs to.
        Command::MultusDaemon(args) => process::run(multus::run(args))?,
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

/// Runs blocking work on a thread of its own, and leaves it at SIGTERM or SIGINT: the first process of a container is
/// not ended by a signal that it does not ask for. Only for work that may stop anywhere.
async fn until_signal(work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody waits any more when a signal came first.
        let _ = done.send(work());
    });
    tokio::select! {
        outcome = outcome => outcome?,
        () = shutdown.wait() => Ok(()),
    }
}

/// Shows help or what is wrong with the arguments.
fn refuse(error: &clap::Error, own_name: Option<&OsString>) -> ExitCode {
    // Nothing can be done when even that can't be shown.
    let _ = error.print();
    let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // The program of that name fails when it is asked for help (multus.md §8.2).
    let established = own_name.is_some_and(|name| name == "install_multus");
    if help && !established {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_runtime_that_the_operator_permits_is_asked_for_its_sandboxes() {
        let asked = multus::CRI_SOCKETS;
        for socket in operator::components::CRI_SOCKETS {
            assert!(asked.contains(&socket), "{socket}");
        }
    }
}
