//! `weft status`: the state of the add-ons, and the next step.
//!
//! ```text
//! cluster ──> observe ──> evaluate: states, problems, next step ──> report ──> table or JSON
//! ```

mod components;
mod evaluate;
mod next;
mod pods;
mod report;
mod table;
mod warnings;

use api::names::{MANAGED_BY_LABEL, NETWORK_ADDONS_KIND};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, core::params::ListParams};
use kube_kit::{
    connection::{Answer, Error as Refused},
    object,
};
use serde_json::Value;

use super::connection::{Cluster, Error};
use operator::{names, resource};

/// Start of the text of `weft status --help`.
pub(super) const ABOUT: &str = "\
Show the state of the add-ons, and the next step

Prints the versions of the operator, the conditions with the time since their
last transition, each component with its workloads and images, the problems,
the warnings of the last hour, and the next step.";

/// End of the text of `weft status --help`.
const EXAMPLES: &str = "\
Examples:
  weft status
  weft status --context production -o json
  until weft status; do sleep 5; done   wait until all are available

Exit code: 0 available, 1 not available, 2 the state is unknown.";

/// Arguments of `weft status`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// Namespace of the operator [default: any]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Access to the cluster.
    #[command(flatten)]
    pub(crate) cluster: kube_kit::connection::Flags,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table for people, 80 columns wide.
    #[default]
    Table,
    Json,
}

/// The objects that were read from the cluster.
#[derive(Clone, Debug, Default)]
struct Observed {
    configuration: Option<Value>,
    operator: Option<Value>,
    /// `DaemonSets` and Deployments that the operator manages.
    workloads: Vec<Value>,
    pods: Vec<Value>,
    events: Vec<Value>,
    /// Objects that could not be read.
    notes: Vec<String>,
}

/// Reads the cluster, and evaluates its state.
///
/// # Errors
/// If the state cannot be determined.
pub(super) async fn run(args: &Args) -> Result<Answer, Error> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let observed = observe(&cluster, args.namespace.as_deref()).await?;
    let report = evaluate::report(&observed, Timestamp::now());
    let text = match args.output {
        Output::Table => table::table(&report),
        // The report has texts and numbers, whose serialization cannot fail.
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&report).unwrap_or_default()),
    };
    Ok(Answer::plain(text, report.available))
}

async fn observe(cluster: &Cluster, namespace: Option<&str>) -> Result<Observed, Error> {
    let mut observed = Observed {
        configuration: cluster.configuration().await?,
        ..Observed::default()
    };
    let ours = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={}", names::MANAGED_BY));
    // A user with fewer rights gets the rest of the report.
    let mut notes = Vec::new();
    let mut readable = |answer: Result<Vec<Value>, Error>| match answer {
        Ok(found) => Ok(found),
        Err(error @ (Error::Connection(Refused::Forbidden { .. }) | Error::Operators(_))) => {
            notes.push(error.to_string());
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    };
    let operator = cluster.operator(namespace).await;
    observed.operator = readable(operator.map(|found| found.into_iter().collect()))?.pop();
    for kind in [object::DAEMON_SET, object::DEPLOYMENT] {
        let found = readable(cluster.list(kind, None, &ours).await)?;
        observed.workloads.extend(found);
    }
    observed.pods = readable(cluster.list(object::POD, None, &ours).await)?;
    observed.events = readable(warnings(cluster, &observed).await)?;
    observed.notes = notes;
    Ok(observed)
}

/// Warnings about the configuration resource, and those in the namespaces of the workloads.
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
    let mut queries: Vec<_> = namespaces
        .iter()
        .map(|namespace| (namespace.as_str(), &warning))
        .collect();
    // Events about cluster-scoped objects are in this namespace.
    queries.push(("default", &about_us));
    let mut found = Vec::new();
    for (namespace, parameters) in queries {
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
