//! Shows the changes of a policy node by node, without changing anything (nmstate §13.5).
//!
//! ```text
//! policy file ─┐
//! nodes ───────┼─> evaluate: the handler's rendering on the node's report ──> diff ──> table, changes, exit code
//! reports ─────┘
//! ```

mod changes;
mod evaluate;
mod gather;
mod json;
mod text;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use kube_kit::connection::{self, Answer, Flags};
use program::answer::TROUBLE;
use program::terminal;
use serde_json::{Value, json};
use thiserror::Error;

use crate::engine::{Backend, Engine};
use crate::yaml::{self, Malformed};

/// Kind of the objects in the file.
const POLICY: &str = "NodeNetworkConfigurationPolicy";

const ABOUT: &str = "\
Show the changes of a policy on each node, without applying them

The command renders the policy like the handlers, on the nodes' reports
(NodeNetworkState), labels and annotations, with the stored results of the
policy's captures. The policy need not be in the cluster.";

const EXAMPLES: &str = "\
Examples:
  weft nmstate preview -f policy.yaml
  weft nmstate preview -f policy.yaml --node node01 -o json
  kubectl get nncp br1 -o yaml | weft nmstate preview -f -

The table marks new interfaces with +, changed ones with ~, and removed ones with
-. Reports do not include host names, route rules and settings of Open vSwitch:
these are shown as changes although the node may have them, and a note says so.
To let the nodes themselves compare, annotate the policy nmstate.io/dry-run=true.

Exit code: 0 nothing would change, 1 something would change, 2 unknown or failed.";

/// Arguments of `weft nmstate preview`.
#[derive(Clone, Debug, Parser)]
#[command(name = "weft nmstate preview", bin_name = "weft nmstate preview", about = ABOUT, after_help = EXAMPLES)]
pub struct Args {
    /// File with policies, YAML or JSON, or - for standard input; other objects in it are ignored
    #[arg(short, long, value_name = "FILE")]
    filename: String,
    /// Evaluate this node only; may be repeated
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Flags,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
enum Output {
    /// A table, followed by the changes.
    #[default]
    Table,
    /// The same as JSON.
    Json,
}

/// The preview failed. Each text names the remedy.
#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("cannot read {file}: {source}")]
    File {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{file} is neither YAML nor JSON: {source}")]
    Malformed {
        file: String,
        #[source]
        source: Malformed,
    },
    #[error("no {POLICY} in {0}\nA policy begins with `apiVersion: nmstate.io/v1` and `kind: {POLICY}`.")]
    NoPolicy(String),
    #[error("node {0} does not exist; `kubectl get nodes` lists the nodes")]
    NoNode(String),
    #[error("cannot start the engine: {0}")]
    Engine(#[source] io::Error),
}

/// Runs with these arguments, without the program's name.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let argv = std::iter::once(OsString::from("weft nmstate preview")).chain(arguments.iter().cloned());
    let args = match Args::try_parse_from(argv) {
        Ok(args) => args,
        Err(error) => {
            // A closed output is no error.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(TROUBLE),
            };
        }
    };
    let width = text::width(std::env::var("COLUMNS").ok().as_deref());
    connection::answer(preview(&args, width)).print()
}

/// Evaluates the policies, and formats the result for this line width. Prints nothing.
pub async fn answer(args: Args, width: usize) -> Answer {
    preview(&args, width)
        .await
        .unwrap_or_else(|error| Answer::failed(&error))
}

async fn preview(args: &Args, width: usize) -> Result<Answer, Error> {
    let policies = policies(&args.filename)?;
    let client = connection::connect(&args.cluster).await?;
    let mut nodes = gather::nodes(&client).await?;
    if let Some(unknown) = args
        .nodes
        .iter()
        .find(|name| !nodes.iter().any(|node| node.facts.name == **name))
    {
        return Err(Error::NoNode(unknown.clone()));
    }
    nodes.retain(|node| args.nodes.is_empty() || args.nodes.contains(&node.facts.name));
    let library = Engine::start(Backend::NetworkManager).map_err(Error::Engine)?;
    let mut answer = Answer::default();
    let mut evaluated = Vec::new();
    for policy in &policies {
        let captured = gather::captured(&client, &policy.name).await?;
        let mut outcomes = Vec::new();
        for node in &nodes {
            let outcome = evaluate::outcome(&library, policy, node, captured.get(&node.facts.name)).await;
            outcomes.push((node.facts.name.clone(), outcome));
        }
        answer.code = answer.code.max(text::code(&outcomes));
        if args.output == Output::Json {
            evaluated.push(json::policy(&policy.name, &outcomes));
            continue;
        }
        if policies.len() > 1 {
            let gap = if answer.text.is_empty() { "" } else { "\n" };
            answer.text.push_str(&format!("{gap}# {}\n", policy.name));
        }
        answer.text.push_str(&text::table(&outcomes, width));
        for note in text::notes(&outcomes) {
            answer.remarks.push_str(&format!("note: {note}\n"));
        }
    }
    if args.output == Output::Json {
        answer.text = format!("{:#}\n", json!({ "policies": evaluated }));
    }
    Ok(answer)
}

/// A policy of the file.
#[derive(Clone, Debug, PartialEq)]
struct Policy {
    name: String,
    spec: Value,
}

fn policies(file: &str) -> Result<Vec<Policy>, Error> {
    let text = terminal::read(file).map_err(|source| Error::File {
        file: file.to_owned(),
        source,
    })?;
    let policies = parsed(&text).map_err(|source| Error::Malformed {
        file: file.to_owned(),
        source,
    })?;
    if policies.is_empty() {
        return Err(Error::NoPolicy(file.to_owned()));
    }
    Ok(policies)
}

fn parsed(text: &str) -> Result<Vec<Policy>, Malformed> {
    let mut policies = Vec::new();
    for document in yaml::documents(text)? {
        collect(document, &mut policies);
    }
    Ok(policies)
}

fn collect(mut object: Value, policies: &mut Vec<Policy>) {
    if let Some(Value::Array(items)) = object.get_mut("items") {
        for item in items.drain(..) {
            collect(item, policies);
        }
        return;
    }
    if object["kind"] == POLICY {
        policies.push(Policy {
            name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            spec: object["spec"].take(),
        });
    }
}

#[cfg(test)]
mod recipes;
#[cfg(test)]
mod tests;
