//! Node network state: reports of the nodes' networks, and policies that change them (`docs/behaviour/nmstate.md`).
//!
//! ```text
//!   NMState ──> operator ──> handler on every node, webhook, metrics, cert-manager
//!
//!   kernel, NetworkManager ──> reporter ──> NodeNetworkState
//!   NodeNetworkConfigurationPolicy ──> policy: selection, slot ──> render ──> apply ──> probes ──> commit
//!        ^                                                │                                  └──> rollback
//!        └── status <── NodeNetworkConfigurationEnactment ┘
//! ```
//!
//! All reads and changes of the host's configuration go through the [`engine`], one thread with the nmstate library.
//! The exceptions have sockets of their own: `probes` query network services, and [`changes`] listens for events.

pub mod apply;
mod bridge_vlans;
pub mod cert_manager;
pub mod changes;
mod conditions;
mod drift;
pub mod dry_run;
pub mod engine;
mod excerpt;
pub mod failure;
pub mod filter;
pub mod handler;
mod jitter;
pub mod legacy;
pub mod metrics;
mod names;
mod nmstatectl;
mod node_lock;
mod objects;
pub mod operator;
pub mod policy;
pub mod preview;
mod probes;
pub mod render;
mod reporter;
mod requests;
pub mod secrets;
mod settings;
mod shared;
mod tls_profile;
mod variables;
pub mod webhook;
pub mod yaml;

mod program_name;
mod routes;

pub use settings::Args;
use settings::{ExecutionType, Settings};

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kube_kit::process;

/// Node network state of Kubernetes nodes
#[derive(Debug, Parser)]
#[command(name = "weft-nmstate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report this node's network, and apply policies to it
    Handler(Args),
    /// Report and apply policies once, and exit
    Client(Args),
    /// Deploy the handler, the webhook and the metrics for an `NMState`
    Operator(Args),
    /// Serve the admission webhook of policies
    Webhook(Args),
    /// Issue and rotate the webhook's certificates
    CertManager(Args),
    /// Export metrics of all nodes
    Metrics(Args),
    /// Check whether the handler in this container is ready, for its probe
    Healthy {
        /// File that the handler creates when it is ready (default: `$WEFT_NMSTATE_READY_FILE` or `/tmp/healthy`)
        file: Option<PathBuf>,
    },
    /// Show and change this host's network, like nmstatectl
    #[command(disable_help_flag = true)]
    Nmstatectl(Rest),
    /// Show what a policy would change, without changing anything
    #[command(disable_help_flag = true)]
    Preview(Rest),
}

/// Arguments that the command parses itself.
#[derive(Debug, clap::Args)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Whether a program of this name is one of these.
pub fn is_meant(program: &Path) -> bool {
    program_name::is_meant(program)
}

/// Runs the program that name, arguments and environment select.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(program_name::rewrite(argv, settings::is_set)) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed output is no error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    match run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            program::terminal::remark(format_args!("{error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let args = match command {
        Command::Nmstatectl(rest) => return Ok(nmstatectl::run(&rest.arguments)),
        Command::Preview(rest) => return Ok(preview::run(&rest.arguments)),
        Command::Healthy { file } => {
            let default = || Settings::read(settings::variable).ready_file;
            let file = file.clone().unwrap_or_else(default);
            return Ok(ExitCode::from(u8::from(!file.exists())));
        }
        Command::Handler(args)
        | Command::Client(args)
        | Command::Operator(args)
        | Command::Webhook(args)
        | Command::CertManager(args)
        | Command::Metrics(args) => args.clone(),
    };
    if args.dump_metric_families {
        println!("{}", metrics::families());
        return Ok(ExitCode::SUCCESS);
    }
    args.start_log();
    process::end_on_panic();
    match command {
        Command::Operator(_) => process::run(operator::run(args))??,
        Command::Webhook(_) => process::run(webhook::run(args))??,
        Command::CertManager(_) => process::run(cert_manager::run(args))??,
        Command::Metrics(_) => process::run(metrics::run(args))??,
        Command::Client(_) => {
            let args = Args {
                execution_type: ExecutionType::Client,
                ..args
            };
            return process::run(handler::run(args))?;
        }
        _ => return process::run(handler::run(args))?,
    }
    Ok(ExitCode::SUCCESS)
}
