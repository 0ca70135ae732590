//! `weft explain pod`: which networks a pod gets, from where, with which configuration, and what came of it.
//!
//! ```text
//! cluster ──> gather ──> Facts ──> decide (by the daemon's own resolver) ──> Report ──> text or JSON, exit code
//! ```
//!
//! Nothing is written to a cluster, and nothing of this machine's files counts: what lies on the pod's node can't be
//! seen from here, and is said to be so.

mod decide;
mod facts;
mod gather;
mod report;
pub(crate) mod text;

use crate::net_conf;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use kube_kit::connection::{self, Answer, Flags};

/// Exit code of a pod that did not get what it asks for.
const DIFFERS: u8 = 1;

/// Explains what happened.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show which networks a pod gets, from where, with which configuration, and what came of it
    #[command(after_help = EXAMPLES)]
    Pod(PodArgs),
}

const EXAMPLES: &str = "\
Examples:
  weft explain pod web
  weft explain pod web -n lab -o json

Exit code: 0 the pod has what it asks for, 1 something is wrong, 2 it cannot be told.";

/// Arguments of `weft explain pod`.
#[derive(Clone, Debug, ClapArgs)]
struct PodArgs {
    /// The pod
    #[arg(value_name = "NAME")]
    name: String,
    /// Its namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// What to print
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    cluster: Flags,
}

/// What is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Why a question can't be answered. The texts say what to do.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(
        "there is no pod {name} in namespace {namespace}\n`kubectl get pods --namespace {namespace}` shows those that \
         are there; name another namespace by --namespace."
    )]
    NoPod { namespace: String, name: String },
    #[error("multus' own defaults can't be understood: {0}")]
    Config(net_conf::Error),
    #[error("cannot print the answer: {0}")]
    Print(#[from] serde_json::Error),
}

/// Answers a question, and prints nothing.
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
    // Programs find them in the report.
    let remarks = match args.output {
        Form::Text => report
            .notes
            .iter()
            .map(|note| format!("note: {note}\n"))
            .collect(),
        Form::Json => String::new(),
    };
    Ok(Answer {
        text,
        remarks,
        code: if report.problems.is_empty() { 0 } else { DIFFERS },
    })
}
