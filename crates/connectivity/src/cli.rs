//! `weft network check`: prints the results of the cluster's checks, node by node.

use std::collections::BTreeMap;
use std::time::Duration;

use api::connectivity_check::PodNetworkConnectivityCheck as Check;
use clap::Args as ClapArgs;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use kube_kit::connection::{self, Answer, Flags};
use kube_kit::duration::GoDuration;
use kube_kit::pages::Pages;
use program::table::aligned;

use crate::messages;
use crate::names::{INTERVAL, NAMESPACE, REACHABLE, SOURCE, TO};

#[cfg(test)]
mod tests;

/// Older results count as none.
const STALE: Duration = Duration::from_secs(INTERVAL.as_secs() * 5);

const EXAMPLES: &str = "\
Examples:
  weft network check
  weft network check --node node1
  weft network check --failures --context production

Exit code: 0 all endpoints are reachable, 1 some are not, or have no result, 2
unknown or failed.";

/// Arguments of `weft network check`.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show only checks from this node [default: all]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Show only endpoints that are not known to be reachable
    #[arg(long)]
    failures: bool,
    #[command(flatten)]
    cluster: Flags,
}

/// The command cannot answer. Each text contains the remedy.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(
        "this cluster has no connectivity checks\nThe cluster network operator creates them unless network diagnostics are \
         disabled."
    )]
    NoChecks,
    #[error("node {0} has no connectivity checks\nNodes with checks: {1}")]
    NoNode(String, String),
}

/// Reads the checks and returns the text to print.
pub fn answer(args: &Args) -> Answer {
    connection::answer(async {
        let client = connection::connect(&args.cluster).await?;
        let api: Api<Check> = Api::namespaced(client, NAMESPACE);
        let checks = match Pages::new(api, ListParams::default()).all().await {
            Ok(checks) => checks,
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(Error::NoChecks),
            Err(error) => return Err(connection::Error::of("list the checks", &error).into()),
        };
        report(&checks, args, Timestamp::now())
    })
}

/// The state of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    Reachable { latency: String },
    Unreachable { since: Option<String>, cause: String },
    Stale { since: String },
    Unchecked,
}

/// The node of a check: the node that owns it. Without an owner, the name of the check contains the node.
fn node(check: &Check) -> String {
    let mut owners = check.metadata.owner_references.iter().flatten();
    if let Some(owner) = owners.find(|owner| owner.kind == "Node") {
        return crate::generator::label(&owner.name);
    }
    let name = check.metadata.name.as_deref().unwrap_or_default();
    let source = name.rsplit_once(TO).map_or(name, |(source, _)| source);
    source
        .strip_prefix(SOURCE)
        .and_then(|rest| rest.strip_prefix('-'))
        .unwrap_or(&check.spec.source_pod)
        .to_owned()
}

/// The target's part of the name of a check from this node.
fn target<'a>(check: &'a Check, node: &str) -> &'a str {
    let name = check.metadata.name.as_deref().unwrap_or_default();
    let target = name.strip_prefix(&format!("{SOURCE}-{node}{TO}"));
    target.unwrap_or_else(|| messages::target(name))
}

fn state(check: &Check, now: Timestamp) -> State {
    let status = check.status.clone().unwrap_or_default();
    let Some(reachable) = status.conditions.iter().find(|it| it.type_ == REACHABLE) else {
        return State::Unchecked;
    };
    let newest = [&status.successes, &status.failures]
        .into_iter()
        .filter_map(|list| list.first()?.time.as_ref())
        .max();
    let age = newest.and_then(|newest| Duration::try_from(now.duration_since(newest.0)).ok());
    if let (Some(age), Some(newest)) = (age, newest)
        && age > STALE
    {
        let since = newest.0.to_string();
        return State::Stale { since };
    }
    if reachable.status == "True" {
        let latency = status.successes.first().and_then(|entry| entry.latency.clone());
        return State::Reachable {
            latency: latency.unwrap_or_default(),
        };
    }
    let outage = status.outages.first().filter(|outage| outage.end.is_none());
    State::Unreachable {
        since: outage.and_then(|outage| Some(outage.start.as_ref()?.0.to_string())),
        cause: reachable.message.clone(),
    }
}

fn report(checks: &[Check], args: &Args, now: Timestamp) -> Result<Answer, Error> {
    let mut nodes: BTreeMap<String, Vec<&Check>> = BTreeMap::new();
    for check in checks {
        nodes.entry(node(check)).or_default().push(check);
    }
    if nodes.is_empty() {
        return Err(Error::NoChecks);
    }
    if let Some(wanted) = &args.node {
        let label = crate::generator::label(wanted);
        let all: Vec<_> = nodes.keys().map(String::as_str).collect();
        let all = all.join(", ");
        nodes.retain(|node, _| *node == label);
        if nodes.is_empty() {
            return Err(Error::NoNode(wanted.clone(), all));
        }
    }
    let (mut text, mut reached, mut total) = (String::new(), 0, 0);
    for (node, checks) in &nodes {
        let rows: Vec<_> = checks.iter().map(|check| (*check, state(check, now))).collect();
        let of_node = rows
            .iter()
            .filter(|(_, state)| matches!(state, State::Reachable { .. }))
            .count();
        reached += of_node;
        total += rows.len();
        text += &format!("{node}: {of_node} of {} endpoints reachable\n", rows.len());
        text += &table(node, &rows, args.failures);
    }
    let bad = total - reached;
    text += &match bad {
        0 => format!("\nAll {total} endpoints are reachable.\n"),
        1 => format!("\n1 of {total} endpoints is not known to be reachable.\n"),
        _ => format!("\n{bad} of {total} endpoints are not known to be reachable.\n"),
    };
    Ok(Answer::plain(text, bad == 0))
}

fn table(node: &str, rows: &[(&Check, State)], failures: bool) -> String {
    let shown = rows
        .iter()
        .filter(|(_, state)| !failures || !matches!(state, State::Reachable { .. }));
    let rows: Vec<_> = shown
        .map(|(check, state)| row(target(check, node), check, state))
        .collect();
    aligned(&rows)
}

fn row(target: &str, check: &Check, state: &State) -> [String; 4] {
    let (mark, remark) = match state {
        State::Reachable { latency } => ("ok  ", latency.clone()),
        State::Unreachable {
            since: Some(since),
            cause,
        } => ("FAIL", format!("since {since}: {cause}")),
        State::Unreachable { since: None, cause } => ("FAIL", cause.clone()),
        State::Stale { since } => (
            "?   ",
            format!(
                "no result since {since}, for more than {}: does the pod of network-check-source run?",
                GoDuration::from(STALE)
            ),
        ),
        State::Unchecked => ("?   ", "not checked yet".to_owned()),
    };
    [
        format!("  {mark}"),
        target.to_owned(),
        check.spec.target_endpoint.clone(),
        remark,
    ]
}
