//! `weft explain pod`: shows the networks of a pod, their sources and configurations, and the result of their
//! attachment.
//!
//! ```text
//! cluster ──> gather ──> Facts ──> decide (by the daemon's own resolver) ──> Report ──> text or JSON, exit code
//! ```
//!
//! Writes nothing to the cluster, and reads no files of this machine: configurations on the pod's node are reported
//! as unknown.

mod decide;
mod facts;
mod gather;
mod report;
pub(crate) mod text;

use crate::networks::net_conf;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use kube_kit::connection::{self, Answer, Flags};

/// Explain the state of an object
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show the networks of a pod, their sources and configurations, and the result of their attachment
    #[command(after_help = EXAMPLES)]
    Pod(PodArgs),
}

const EXAMPLES: &str = "\
Examples:
  weft explain pod web
  weft explain pod web -n lab -o json

Exit code: 0 no problems, 1 problems, 2 the pod or its networks cannot be read.";

/// Arguments of `weft explain pod`.
#[derive(Clone, Debug, ClapArgs)]
struct PodArgs {
    /// Name of the pod
    #[arg(value_name = "NAME")]
    name: String,
    /// Its namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    cluster: Flags,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// No report. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(
        "pod {name} does not exist in namespace {namespace}\n`kubectl get pods --namespace {namespace}` lists its pods; \
         name another namespace by --namespace."
    )]
    NoPod { namespace: String, name: String },
    #[error("cannot parse the default configuration of multus: {0}")]
    Config(net_conf::Error),
    #[error("cannot encode the report: {0}")]
    Print(#[from] serde_json::Error),
}

/// Runs the command and returns its output.
pub fn answer(args: Args) -> Answer {
    let Question::Pod(args) = args.question;
    connection::answer(pod(&args))
}

async fn pod(args: &PodArgs) -> Result<Answer, Error> {
    let client = connection::connect(&args.cluster).await?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let facts = gather::about(&client, &namespace, &args.name).await?;
    let report = decide::report(&facts).await;
    let text = match args.output {
        Form::Text => text::of(&report),
        Form::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    };
    // The JSON report contains them.
    let notes: &[String] = match args.output {
        Form::Text => &report.notes,
        Form::Json => &[],
    };
    Ok(Answer::new(text, notes, report.problems.is_empty()))
}
