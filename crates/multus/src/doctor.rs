//! `weft doctor`: checks the attachments of a node for drift, and finds and removes leftovers of sandboxes that are
//! gone.
//!
//! ```text
//! caches of the runtime and of multus ──> inspect ─ CHECK of each attachment ┐
//! records and leases of our plugins ──────────┤                              ├──> Facts ──> decide ──> Report, leftovers
//! sandboxes of the runtime (CRI) ─────────────┘                              │                                    │
//!                                                                            └──────── repair <───────────┘
//!
//! kubectl weft doctor ──> remote ──exec──> pod of multus on the node: weft doctor -o json ──> Report ──> text
//! ```

mod decide;
mod facts;
mod inspect;
mod node;
mod remote;
mod repair;
pub mod report;
mod text;

pub use node::Node;

use crate::config::{self, DaemonConfig};
use crate::names;
use clap::{Args as ClapArgs, ValueEnum};
use kube_kit::connection::{self, Answer, Flags};
use program::answer::{FINDINGS, TROUBLE, WELL};
use report::Report;
use std::env;
use std::path::PathBuf;

const HOSTNAME: &str = "/proc/sys/kernel/hostname";

const EXAMPLES: &str = "\
Examples:
  kubectl weft doctor                   all nodes
  kubectl weft doctor node01 --repair   one node, and remove what is left over
  weft doctor                           this node, as root

Exit code: 0 no problems, 1 problems, 2 a node cannot be checked or the repair
was refused.";

/// Check the attachments of a node and find leftovers
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node to check, through its multus pod [default: the node that this runs on]
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Check all nodes, through their multus pods: the default of `kubectl weft doctor`
    #[arg(long, conflicts_with = "node")]
    all: bool,
    /// Remove leftovers
    #[arg(long)]
    repair: bool,
    /// Output format
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t)]
    output: Form,
    /// Directory where the host's root is mounted [default: as the multus daemon finds it]
    #[arg(long, value_name = "DIR")]
    host_root: Option<PathBuf>,
    #[command(flatten)]
    cluster: Flags,
}

impl Args {
    /// The arguments of `kubectl weft doctor`, which checks a cluster instead of this machine.
    #[must_use]
    pub fn of_cluster(self) -> Self {
        let all = self.node.is_none();
        Self { all, ..self }
    }
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// No report. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error(transparent)]
    Remote(#[from] remote::Error),
    #[error("{}: {source}", names::DAEMON_CONFIG)]
    Config { source: config::Error },
    #[error("cannot encode the report: {0}")]
    Print(#[from] serde_json::Error),
}

/// Runs the command and returns its output.
pub fn answer(args: &Args) -> Answer {
    connection::answer(answered(args))
}

async fn answered(args: &Args) -> Result<Answer, Error> {
    if let Some(node) = &args.node {
        let report = remote::one(&args.cluster, node, args.repair).await?;
        return Ok(of_one(&report, args.output)?);
    }
    if args.all {
        let reports = remote::all(&args.cluster, args.repair).await?;
        return Ok(of_all(&reports, args.output)?);
    }
    let report = this_node(args).await?;
    Ok(of_one(&report, args.output)?)
}

async fn this_node(args: &Args) -> Result<Report, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(node::Error::NotRoot.into());
    }
    let config = match DaemonConfig::load(names::DAEMON_CONFIG.as_ref()) {
        // No configuration: on the host itself, or on a node without multus.
        Err(config::Error::Read(_)) => DaemonConfig::parse(b"{}"),
        read => read,
    };
    let config = config.map_err(|source| Error::Config { source })?;
    let node = Node::new(&own_name(), args.host_root.as_deref(), config)?;
    let report = if args.repair {
        node.repair().await
    } else {
        node.examine().await
    };
    Ok(report?)
}

fn own_name() -> String {
    let named = env::var(names::NODE_NAME).ok().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| {
        let name = std::fs::read_to_string(HOSTNAME).unwrap_or_default();
        name.trim().to_owned()
    })
}

fn code(report: &Report) -> u8 {
    let is_refused = report
        .repair
        .as_ref()
        .is_some_and(|repair| repair.refused.is_some());
    match (is_refused, report.findings.is_empty()) {
        (true, _) => TROUBLE,
        (false, true) => WELL,
        (false, false) => FINDINGS,
    }
}

fn of_one(report: &Report, form: Form) -> Result<Answer, serde_json::Error> {
    Ok(match form {
        Form::Text => Answer {
            text: text::of(report),
            remarks: notes(report),
            code: code(report),
        },
        Form::Json => Answer {
            text: format!("{}\n", serde_json::to_string_pretty(report)?),
            remarks: String::new(),
            code: code(report),
        },
    })
}

/// The reports of all nodes, and a summary.
fn of_all(checked_nodes: &remote::CheckedNodes, form: Form) -> Result<Answer, serde_json::Error> {
    let failed = checked_nodes.failed.iter();
    let failed: String = failed.map(|error| format!("error: {error}\n")).collect();
    let codes = checked_nodes.reports.iter().map(code);
    let worst = codes.max().unwrap_or_default();
    let code = if checked_nodes.failed.is_empty() {
        worst
    } else {
        TROUBLE
    };
    let text = match form {
        Form::Json => format!("{}\n", serde_json::to_string_pretty(&checked_nodes.reports)?),
        Form::Text => {
            let each: Vec<_> = checked_nodes.reports.iter().map(text::of).collect();
            let healthy = checked_nodes
                .reports
                .iter()
                .filter(|report| report.findings.is_empty())
                .count();
            let all = checked_nodes.reports.len() + checked_nodes.failed.len();
            format!(
                "{}\n{healthy} of {all} nodes have no problems.\n",
                each.join("\n")
            )
        }
    };
    let notes = match form {
        Form::Json => String::new(),
        Form::Text => checked_nodes.reports.iter().map(notes).collect(),
    };
    Ok(Answer {
        text,
        remarks: notes + &failed,
        code,
    })
}

fn notes(report: &Report) -> String {
    let notes = report.notes.iter();
    notes
        .map(|note| format!("note: {}: {note}\n", report.node))
        .collect()
}

#[cfg(test)]
mod tests;
