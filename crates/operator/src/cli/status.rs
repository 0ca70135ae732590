//! `weft status`: how the add-ons are, and what to do about it.
//!
//! ```text
//! cluster ──> observe ──> report: states, problems, next step ──> table or JSON
//! ```

mod next;
mod pods;
mod report;
mod table;

use api::names::{MANAGED_BY_LABEL, NETWORK_ADDONS_KIND};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, core::params::ListParams};
use kube_kit::{connection::Error as Refused, object};
use serde_json::Value;

use super::connection::{Cluster, Error};
use crate::{names, resource};

/// What `weft status --help` says first.
pub(super) const ABOUT: &str = "\
Show how the add-ons are, and what to do about it

Versions of the operator, conditions and how long they have been so, each
component with its workloads and images, what is wrong and where, warnings of
the last hour, and the next step.";

/// What `weft status --help` says last.
const EXAMPLES: &str = "\
Examples:
  weft status
  weft status --context production -o json
  until weft status; do sleep 5; done   wait until all is available

Exit code: 0 available, 1 not available, 2 it cannot be told.";

/// Arguments of `weft status`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
    /// Namespace of the operator [default: wherever it is]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The way to the cluster.
    #[command(flatten)]
    pub cluster: kube_kit::connection::Flags,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Output {
    /// A table for people, 80 columns wide.
    #[default]
    Table,
    /// The same as JSON.
    Json,
}

/// The answer.
#[derive(Debug)]
pub(super) struct Outcome {
    /// To print.
    pub text: String,
    /// Whether everything that was asked for is there.
    pub available: bool,
}

/// What the cluster says.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// The configuration resource.
    configuration: Option<Value>,
    /// The operator's Deployment.
    operator: Option<Value>,
    /// `DaemonSets` and Deployments that the operator manages.
    workloads: Vec<Value>,
    /// Their pods.
    pods: Vec<Value>,
    /// Warnings.
    events: Vec<Value>,
    /// What the cluster did not tell.
    notes: Vec<String>,
}

/// Asks the cluster, and judges.
///
/// # Errors
/// When it can't be told how the add-ons are.
pub(super) async fn run(args: &Args) -> Result<Outcome, Error> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let observed = observe(&cluster, args.namespace.as_deref()).await?;
    let report = report::report(&observed, Timestamp::now());
    let text = match args.output {
        Output::Table => table::table(&report),
        // Texts and numbers: writing them cannot fail.
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&report).unwrap_or_default()),
    };
    Ok(Outcome {
        text,
        available: report.available,
    })
}

async fn observe(cluster: &Cluster, namespace: Option<&str>) -> Result<Observed, Error> {
    let mut observed = Observed {
        configuration: cluster.configuration().await?,
        ..Observed::default()
    };
    let ours = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={}", names::MANAGED_BY));
    // Whoever may see less still sees the rest.
    let mut notes = Vec::new();
    let mut known = |answer: Result<Vec<Value>, Error>| match answer {
        Ok(found) => Ok(found),
        Err(error @ (Error::Connection(Refused::Forbidden { .. }) | Error::Operators(_))) => {
            notes.push(error.to_string());
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    };
    let operator = cluster.operator(namespace).await;
    observed.operator = known(operator.map(|found| found.into_iter().collect()))?.pop();
    for kind in [object::DAEMON_SET, object::DEPLOYMENT] {
        let found = known(cluster.list(kind, None, &ours).await)?;
        observed.workloads.extend(found);
    }
    observed.pods = known(cluster.list(object::POD, None, &ours).await)?;
    observed.events = known(warnings(cluster, &observed).await)?;
    observed.notes = notes;
    Ok(observed)
}

/// Warnings about the configuration resource, and those from where the workloads are.
async fn warnings(cluster: &Cluster, observed: &Observed) -> Result<Vec<Value>, Error> {
    let namespace = |object: &Value| object.pointer("/metadata/namespace")?.as_str().map(str::to_owned);
    let objects = observed.workloads.iter().chain(&observed.operator);
    let mut namespaces: Vec<_> = objects.filter_map(namespace).collect();
    namespaces.sort();
    namespaces.dedup();
    let warning = ListParams::default().fields("type=Warning");
    let id = resource::id();
    let about_us = ListParams::default().fields(&format!(
        "type=Warning,involvedObject.kind={NETWORK_ADDONS_KIND},involvedObject.name={}",
        id.name
    ));
    let mut questions: Vec<_> = namespaces
        .iter()
        .map(|namespace| (namespace.as_str(), &warning))
        .collect();
    // Events about objects without a namespace are in this one.
    questions.push(("default", &about_us));
    let mut found = Vec::new();
    for (namespace, parameters) in questions {
        let api: Api<Event> = Api::namespaced(cluster.client().clone(), namespace);
        let list = api.list(parameters).await;
        let list = list.map_err(|error| Error::of("events", &error))?;
        found.extend(
            list.items
                .iter()
                .filter_map(|event| serde_json::to_value(event).ok()),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
