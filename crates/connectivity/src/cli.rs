//! `weft network check`: runs the cluster's checks now, and prints their results node by node.
//!
//! ```text
//! annotation on each check ──> source: runs it ──> status ──> new result ──> table
//!            └────────────── 30 s without ──────────────────> no new result ──┘
//! ```
//!
//! With `--matrix`, [`matrix`] has each node connect to the endpoints of these checks instead.
//!
//! A result is new if the status had another one when the annotation was written: the source drops the result of a
//! probe that began before. No clocks are compared: those of the user's machine and of the nodes may differ.

use std::collections::BTreeMap;
use std::time::Duration;

use api::connectivity_check::{LogEntry, PodNetworkConnectivityCheck as Check};
use clap::Args as ClapArgs;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube_kit::client::PRODUCT;
use kube_kit::connection::{self, Answer, Flags};
use kube_kit::duration::GoDuration;
use kube_kit::pages::Pages;
use program::table::aligned;
use program::terminal;
use serde_json::json;
use tokio::time::Instant;

use crate::messages;
use crate::names::{APP, INTERVAL, NAMESPACE, REACHABLE, REQUESTED, SOURCE, TARGET, TO};

mod matrix;
#[cfg(test)]
mod tests;

/// Older results count as none.
const STALE: Duration = Duration::from_secs(INTERVAL.as_secs() * 5);

/// Deadline of the results after a request. A check of a silent endpoint takes 10 s, and may have to wait for others.
const DEADLINE: Duration = Duration::from_secs(30);
/// Interval between two lists of checks.
const POLL: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  weft network check
  weft network check --node node1
  weft network check --failures --context production
  weft network check --stored
  weft network check --matrix --failures

The pod of network-check-source runs the checks now. You need the right to patch
them; without it, use --stored.

With --matrix, the pod of network-check-target on each node connects to the same
endpoints. No result is stored. You need the right to create and get pods/exec
in namespace openshift-network-diagnostics.

Exit code: 0 all endpoints are reachable, 1 some are not, have no new result, or
a node gave no results, 2 unknown or failed.";

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
    /// Show the latest results, without running the checks
    #[arg(long)]
    stored: bool,
    /// Connect to the endpoints from every node, not only from the node of the source
    #[arg(long, conflicts_with = "stored")]
    matrix: bool,
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
    #[error(
        "this cluster has no pods of {TARGET}\nSee `kubectl --namespace {NAMESPACE} describe daemonset {TARGET}`."
    )]
    NoTargets,
    #[error("node {0} has no pod of {TARGET}\nNodes with a pod: {1}")]
    NoTarget(String, String),
    #[error(
        "not allowed to run a program in pod {pod}: {cause}\nThis needs the right to create and get pods/exec in namespace \
         {NAMESPACE}. `weft network check` without --matrix does not need this right."
    )]
    ForbiddenExec { pod: String, cause: String },
    #[error(
        "cannot run the connectivity checks: {0}\nThis needs the right to patch \
         podnetworkconnectivitychecks in namespace {NAMESPACE}. `weft network check --stored` shows their latest results."
    )]
    Forbidden(String),
    #[error(
        "cannot run the connectivity checks: {0}\n`weft network check --stored` shows their latest results."
    )]
    Request(String),
}

impl Args {
    /// True if the checks of a node are shown.
    fn shows(&self, node: &str) -> bool {
        let wanted = self.node.as_deref().map(crate::generator::label);
        wanted.is_none_or(|wanted| wanted == node)
    }
}

/// The latest success and the latest failure of a check.
type Latest = [Option<LogEntry>; 2];

fn latest(check: &Check) -> Latest {
    let first = |list: &[LogEntry]| list.first().cloned();
    let status = check.status.as_ref();
    [
        status.and_then(|status| first(&status.successes)),
        status.and_then(|status| first(&status.failures)),
    ]
}

/// The checks that were requested to run, by name, with their latest results at that time.
#[derive(Default)]
struct Requested(BTreeMap<String, Latest>);

impl Requested {
    /// True if the check was requested to run, and has no new result.
    fn lacks(&self, check: &Check) -> bool {
        let before = self.0.get(check.metadata.name.as_deref().unwrap_or_default());
        before.is_some_and(|before| *before == latest(check))
    }
}

/// Runs the checks, unless stored results are wanted, and returns the text to print.
pub fn answer(args: &Args) -> Answer {
    connection::answer(async {
        if args.matrix {
            return matrix::answer(args).await;
        }
        let client = connection::connect(&args.cluster).await?;
        let api: Api<Check> = Api::namespaced(client, NAMESPACE);
        let checks = list(&api).await?;
        if args.stored {
            return report(&checks, &Requested::default(), args, Timestamp::now());
        }
        let shown: Vec<_> = checks.iter().filter(|check| args.shows(&node(check))).collect();
        let requested = request(&api, &shown).await?;
        let checks = results(&api, checks, &requested).await;
        report(&checks, &requested, args, Timestamp::now())
    })
}

async fn list(api: &Api<Check>) -> Result<Vec<Check>, Error> {
    match Pages::new(api.clone(), ListParams::default()).all().await {
        Ok(checks) => Ok(checks),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(Error::NoChecks),
        Err(error) => Err(connection::Error::of("the connectivity checks", &error).into()),
    }
}

/// Requests a run of the checks.
async fn request(api: &Api<Check>, checks: &[&Check]) -> Result<Requested, Error> {
    let time = Timestamp::now().to_string();
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { REQUESTED: time } } }));
    let parameters = PatchParams {
        field_manager: Some(PRODUCT.to_owned()),
        ..PatchParams::default()
    };
    let mut requested = Requested::default();
    for name in checks.iter().filter_map(|check| check.metadata.name.as_deref()) {
        match api.patch(name, &parameters, &patch).await {
            Ok(check) => {
                requested.0.insert(name.to_owned(), latest(&check));
            }
            // The check was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                return Err(match connection::Error::of(name, &error) {
                    connection::Error::Forbidden { cause, .. } => Error::Forbidden(cause),
                    connection::Error::Other { cause, .. } => Error::Request(cause),
                    unanswered => unanswered.into(),
                });
            }
        }
    }
    Ok(requested)
}

/// Waits for new results of all requested checks, until the deadline, and returns all checks.
async fn results(api: &Api<Check>, mut checks: Vec<Check>, requested: &Requested) -> Vec<Check> {
    let end = Instant::now() + DEADLINE;
    match requested.0.len() {
        0 => {}
        1 => terminal::remark("waiting for the result of 1 check\n"),
        all => terminal::remark(format_args!("waiting for the results of {all} checks\n")),
    }
    while Instant::now() < end && checks.iter().any(|check| requested.lacks(check)) {
        tokio::time::sleep_until(end.min(Instant::now() + POLL)).await;
        // Without a list, the former one counts.
        if let Ok(listed) = list(api).await {
            checks = listed;
        }
    }
    checks
}

/// The state of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    Reachable {
        latency: String,
    },
    Unreachable {
        since: Option<String>,
        cause: String,
    },
    Stale {
        since: String,
    },
    /// The check was requested to run, and has no result newer than the one from this time, if any.
    Unanswered(Option<String>),
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

/// A line of a table: an endpoint of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Row {
    target: String,
    endpoint: String,
    state: State,
}

impl Row {
    fn is_reachable(&self) -> bool {
        matches!(self.state, State::Reachable { .. })
    }
}

fn state(check: &Check, requested: &Requested, now: Timestamp) -> State {
    let latest = latest(check);
    let newest = latest
        .iter()
        .flatten()
        .filter_map(|entry| entry.time.as_ref())
        .max();
    if requested.lacks(check) {
        return State::Unanswered(newest.map(|newest| newest.0.to_string()));
    }
    let status = check.status.clone().unwrap_or_default();
    let Some(reachable) = status.conditions.iter().find(|it| it.type_ == REACHABLE) else {
        return State::Unchecked;
    };
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

fn report(checks: &[Check], requested: &Requested, args: &Args, now: Timestamp) -> Result<Answer, Error> {
    let mut nodes: BTreeMap<String, Vec<&Check>> = BTreeMap::new();
    for check in checks {
        nodes.entry(node(check)).or_default().push(check);
    }
    if nodes.is_empty() {
        return Err(Error::NoChecks);
    }
    if let Some(wanted) = &args.node {
        let all: Vec<_> = nodes.keys().map(String::as_str).collect();
        let all = all.join(", ");
        nodes.retain(|node, _| args.shows(node));
        if nodes.is_empty() {
            return Err(Error::NoNode(wanted.clone(), all));
        }
    }
    let (mut text, mut reached, mut total) = (String::new(), 0, 0);
    for (node, checks) in &nodes {
        let rows: Vec<_> = checks
            .iter()
            .map(|check| Row {
                target: target(check, node).to_owned(),
                endpoint: check.spec.target_endpoint.clone(),
                state: state(check, requested, now),
            })
            .collect();
        reached += rows.iter().filter(|row| row.is_reachable()).count();
        total += rows.len();
        text += &section(node, &rows, args.failures);
    }
    let bad = total - reached;
    text += &match bad {
        0 => format!("\nAll {total} endpoints are reachable.\n"),
        1 => format!("\n1 of {total} endpoints is not known to be reachable.\n"),
        _ => format!("\n{bad} of {total} endpoints are not known to be reachable.\n"),
    };
    if nodes.values().flatten().any(|check| requested.lacks(check)) {
        text += &format!(
            "\nSome checks have no new result after {}: does their source run?\n  kubectl --namespace \
             {NAMESPACE} get pods --selector {APP}={SOURCE}\n",
            GoDuration::from(DEADLINE)
        );
    }
    Ok(Answer::plain(text, bad == 0))
}

/// The results of a node.
fn section(node: &str, rows: &[Row], failures: bool) -> String {
    let reached = rows.iter().filter(|row| row.is_reachable()).count();
    let shown = rows.iter().filter(|row| !failures || !row.is_reachable());
    let shown: Vec<_> = shown.map(cells).collect();
    let all = rows.len();
    format!(
        "{node}: {reached} of {all} endpoints reachable\n{}",
        aligned(&shown)
    )
}

fn cells(row: &Row) -> [String; 4] {
    let (mark, remark) = match &row.state {
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
        State::Unanswered(Some(last)) => ("?   ", format!("no new result, the last one is from {last}")),
        State::Unanswered(None) | State::Unchecked => ("?   ", "not checked yet".to_owned()),
    };
    [
        format!("  {mark}"),
        row.target.clone(),
        row.endpoint.clone(),
        remark,
    ]
}
