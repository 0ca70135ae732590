//! Node network state: what nodes' networks are, and what policies make of them (`docs/behaviour/nmstate.md`).
//!
//! ```text
//!   NMState ──> operator ──> handler on every node, webhook, metrics, cert-manager
//!
//!   kernel, NetworkManager ──> report ──> NodeNetworkState
//!   NodeNetworkConfigurationPolicy ──> policy: selection, slot ──> render ──> apply ──> probes ──> commit
//!        ^                                                │                                  └──> rollback
//!        └── status <── NodeNetworkConfigurationEnactment ┘
//! ```
//!
//! Whatever reads or changes the host's configuration goes through the [`engine`], one thread with the nmstate library on
//! it. [`probes`] and [`changes`] have sockets of their own: they ask others, and listen.

pub mod apply;
pub mod bridge_vlans;
pub mod cert_manager;
pub mod changes;
pub mod conditions;
pub mod drift;
pub mod dry_run;
pub mod engine;
pub mod failure;
pub mod filter;
pub mod handler;
pub mod legacy;
pub mod metrics;
pub mod names;
pub mod nmstatectl;
pub mod node_lock;
pub mod operator;
pub mod policy;
pub mod preview;
pub mod probes;
pub mod render;
pub mod reporter;
pub mod secrets;
pub mod settings;
pub mod tls_profile;
pub mod variables;
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

/// The node state programs
#[derive(Debug, Parser)]
#[command(name = "weft-nmstate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report what this node's network is, and make it what policies say
    Handler(Args),
    /// Report and apply once, and end
    Client(Args),
    /// Deploy the other programs for an `NMState`
    Operator(Args),
    /// Admit policies
    Webhook(Args),
    /// Keep the certificates of the webhook
    CertManager(Args),
    /// Export metrics of all nodes
    Metrics(Args),
    /// Say whether the handler beside this is ready, for its probe
    Healthy {
        /// What the handler writes when it is ready, if not where this program would write it
        file: Option<PathBuf>,
    },
    /// Show and change this host's network, as nmstatectl does
    #[command(disable_help_flag = true)]
    Nmstatectl(Rest),
    /// Show what a policy would change, without changing anything
    #[command(disable_help_flag = true)]
    Preview(Rest),
}

/// Arguments that the command reads itself.
#[derive(Debug, clap::Args)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Whether a program that was started under this name is one of these.
pub fn is_meant(program: &Path) -> bool {
    program_name::is_meant(program)
}

/// Runs the program that name, arguments and environment ask for.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(program_name::rewrite(argv, settings::is_set)) {
        Ok(cli) => cli,
        Err(error) => {
            // Whoever closed the output has no need of the text.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    match run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let args = match command {
        Command::Nmstatectl(rest) => return Ok(nmstatectl::run(&rest.arguments)),
        Command::Preview(rest) => return Ok(preview::run(&rest.arguments)),
        Command::Healthy { file } => {
            let usual = || Settings::read(settings::variable).ready_file;
            let file = file.clone().unwrap_or_else(usual);
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
