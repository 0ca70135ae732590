//! `weft network check --matrix`: each node connects to the endpoints of all checks.
//!
//! ```text
//! checks ──> endpoints ──> exec in the target's pod of each node: check-endpoints --once ──> results ──> tables
//! ```
//!
//! The checks of the cluster start at one node, and miss a path that fails between two others.

use std::collections::BTreeMap;
use std::time::Duration;

use api::connectivity_check::PodNetworkConnectivityCheck as Check;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube_kit::client::message;
use kube_kit::connection::{self, Answer};
use kube_kit::exec::{self, Container};
use kube_kit::pages::Pages;
use program::terminal;
use tokio::time::timeout;

use super::{Args, Error, Row, State, list, node, section, target};
use crate::generator::label;
use crate::names::{APP, NAMESPACE, TARGET};
use crate::source::once::{AT_A_TIME, Line};

const PROGRAM: [&str; 2] = ["/weft", "check-endpoints"];
const ONCE: &str = "--once=";
const RUNNING: &str = "Running";
/// Number of nodes that check at a time.
const NODES: usize = 16;
/// Deadline of a node's results: a check may wait 10 s each for a name, a connection and a handshake.
const DEADLINE: Duration = Duration::from_mins(1);
/// Size limit of a node's results, in bytes. A truncated line is invalid.
const LONGEST: u64 = 1 << 20;

/// The container of a target on a node, or why it cannot check.
type Source = Result<Container, String>;
/// The results of a node, or the reason why there are none.
type Results = Result<Vec<Line>, String>;

/// Runs the checks on all nodes, or on one, and returns the text to print.
pub(super) async fn answer(args: &Args) -> Result<Answer, Error> {
    let client = connection::connect(&args.cluster).await?;
    let checks = list(&Api::namespaced(client.clone(), NAMESPACE)).await?;
    let targets = targets(&checks);
    if targets.is_empty() {
        return Err(Error::NoChecks);
    }
    let sources = chosen(sources(pods(&Api::namespaced(client, NAMESPACE)).await?), args)?;
    terminal::remark(format_args!(
        "checking {} from {}\n",
        count(targets.len(), "endpoint"),
        count(sources.len(), "node")
    ));
    let endpoints: Vec<_> = targets.iter().map(|(endpoint, _)| endpoint.clone()).collect();
    let pods: Api<Pod> = Api::namespaced(connection::connect_for_exec(&args.cluster).await?, NAMESPACE);
    let mut running = stream::iter(sources)
        .map(|(node, source)| {
            let (pods, endpoints) = (&pods, &endpoints);
            async move {
                let results = match source {
                    Ok(container) => check(pods, &container, endpoints).await?,
                    Err(cause) => Err(cause),
                };
                Ok::<_, Error>((node, results))
            }
        })
        .buffer_unordered(NODES);
    let mut results = BTreeMap::new();
    while let Some(result) = running.next().await {
        let (node, lines) = result?;
        results.insert(node, lines);
    }
    Ok(report(&targets, &results, args.failures))
}

async fn pods(api: &Api<Pod>) -> Result<Vec<Pod>, Error> {
    let targets = ListParams::default().labels(&format!("{APP}={TARGET}"));
    let pods = Pages::new(api.clone(), targets).all().await;
    pods.map_err(|error| connection::Error::of("the pods of network-check-target", &error).into())
}

/// The endpoints of the checks, and the name of each, without repetition.
fn targets(checks: &[Check]) -> Vec<(String, String)> {
    let mut targets: Vec<(String, String)> = Vec::new();
    for check in checks {
        let endpoint = &check.spec.target_endpoint;
        if targets.iter().all(|(known, _)| known != endpoint) {
            targets.push((endpoint.clone(), target(check, &node(check)).to_owned()));
        }
    }
    targets
}

/// The targets' pods by node, without those that end.
fn sources(pods: Vec<Pod>) -> BTreeMap<String, Source> {
    let mut sources = BTreeMap::new();
    for pod in pods {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = pod.metadata.name.unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let node = spec.node_name.unwrap_or_else(|| "without a node".to_owned());
        let source = match spec.containers.into_iter().next() {
            Some(container) if phase == RUNNING => Ok(Container {
                pod: name,
                name: container.name,
            }),
            _ => Err(format!("pod {name} is {phase}")),
        };
        // An evicted pod stays beside its successor.
        if source.is_ok() || !sources.contains_key(&node) {
            sources.insert(node, source);
        }
    }
    sources
}

/// The sources that the arguments choose.
fn chosen(mut sources: BTreeMap<String, Source>, args: &Args) -> Result<BTreeMap<String, Source>, Error> {
    if sources.is_empty() {
        return Err(Error::NoTargets);
    }
    let all = sources.keys().cloned().collect::<Vec<_>>().join(", ");
    let exact = args.node.as_ref().filter(|wanted| sources.contains_key(*wanted));
    sources.retain(|node, _| match exact {
        Some(wanted) => wanted == node,
        None => args.shows(&label(node)),
    });
    match &args.node {
        Some(wanted) if sources.is_empty() => Err(Error::NoTarget(wanted.clone(), all)),
        _ => Ok(sources),
    }
}

/// Checks the endpoints from a pod. Only a missing right ends the command: it concerns all pods.
async fn check(pods: &Api<Pod>, container: &Container, endpoints: &[String]) -> Result<Results, Error> {
    let mut lines = Vec::new();
    for group in endpoints.chunks(AT_A_TIME) {
        let run = exec::run(pods, container, command(group), LONGEST);
        let pod = &container.pod;
        match timeout(DEADLINE, run).await {
            Err(_) => {
                return Ok(Err(format!(
                    "pod {pod} did not answer within {} s",
                    DEADLINE.as_secs()
                )));
            }
            Ok(Err(error)) if exec::is_forbidden(&error) => {
                let (pod, cause) = (pod.clone(), message(&error));
                return Err(Error::ForbiddenExec { pod, cause });
            }
            Ok(Err(error)) => {
                let cause = message(&error);
                return Ok(Err(format!("cannot run a program in pod {pod}: {cause}")));
            }
            Ok(Ok(output)) => match parsed(&output.stdout, group) {
                Some(more) => lines.extend(more),
                None => return Ok(Err(no_results(pod, &output.cause()))),
            },
        }
    }
    Ok(Ok(lines))
}

/// The program that checks these endpoints.
fn command(endpoints: &[String]) -> Vec<String> {
    let endpoints = endpoints.iter().map(|endpoint| format!("{ONCE}{endpoint}"));
    PROGRAM.map(str::to_owned).into_iter().chain(endpoints).collect()
}

/// An older program prints its usage after the cause.
fn no_results(pod: &str, cause: &str) -> String {
    let cause = cause.lines().next().unwrap_or_default();
    format!("pod {pod} gave no results: {cause}\n  Its image may be older than this program, or not Weft's.")
}

/// The results of these endpoints, if the output is complete.
fn parsed(output: &[u8], endpoints: &[String]) -> Option<Vec<Line>> {
    let text = str::from_utf8(output).ok()?;
    let lines = text.lines().map(serde_json::from_str::<Line>);
    let lines: Vec<_> = lines.collect::<Result<_, _>>().ok()?;
    let found = lines.iter().map(|line| &line.endpoint);
    found.eq(endpoints).then_some(lines)
}

fn count(number: usize, of: &str) -> String {
    match number {
        1 => format!("1 {of}"),
        _ => format!("{number} {of}s"),
    }
}

fn report(targets: &[(String, String)], results: &BTreeMap<String, Results>, failures: bool) -> Answer {
    let (mut text, mut failed, mut unchecked) = (String::new(), 0, 0);
    for (node, results) in results {
        match results {
            Ok(lines) => {
                let rows: Vec<_> = targets.iter().zip(lines).map(row).collect();
                failed += rows.iter().filter(|row| !row.is_reachable()).count();
                text += &section(node, &rows, failures);
            }
            Err(cause) => {
                unchecked += 1;
                text += &format!("{node}: no results\n  {cause}\n");
            }
        }
    }
    let nodes = results.len();
    let connections = targets.len() * (nodes - unchecked);
    text.push('\n');
    if failed > 0 {
        text += &format!("{failed} of {} failed.\n", count(connections, "connection"));
    }
    if unchecked > 0 {
        text += &format!("{unchecked} of {} gave no results.\n", count(nodes, "node"));
    }
    let is_well = failed == 0 && unchecked == 0;
    if is_well {
        text += &format!("All {} succeeded.\n", count(connections, "connection"));
    }
    Answer::plain(text, is_well)
}

fn row(((endpoint, target), line): (&(String, String), &Line)) -> Row {
    Row {
        target: target.clone(),
        endpoint: endpoint.clone(),
        state: match line.failure.clone() {
            None => State::Reachable {
                latency: line.latency.clone(),
            },
            Some(cause) => State::Unreachable { since: None, cause },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{args, check};
    use super::*;
    use serde_json::json;

    fn line(endpoint: &str, failure: Option<&str>) -> Line {
        Line {
            endpoint: endpoint.to_owned(),
            latency: "1ms".to_owned(),
            failure: failure.map(str::to_owned),
        }
    }

    fn pod(name: &str, node: &str, phase: &str) -> Pod {
        let pod = json!({
            "metadata": { "name": name }, "status": { "phase": phase },
            "spec": { "nodeName": node, "containers": [{ "name": "target" }] },
        });
        serde_json::from_value(pod).expect("a pod")
    }

    fn container(pod: &str) -> Container {
        Container {
            pod: pod.to_owned(),
            name: "target".to_owned(),
        }
    }

    #[test]
    fn endpoint_of_several_checks_is_one_target() {
        // cluster-network#208
        let checks = [
            check(
                "network-check-source-n1-to-network-check-target-n1",
                "10.0.0.1:8080",
                &[],
            ),
            check("network-check-source-n1-to-a", "h:1", &[]),
            check("network-check-source-n2-to-a", "h:1", &[]),
        ];
        let found = targets(&checks);
        let found: Vec<_> = found
            .iter()
            .map(|(of, name)| (of.as_str(), name.as_str()))
            .collect();
        assert_eq!(
            found,
            [("10.0.0.1:8080", "network-check-target-n1"), ("h:1", "a")]
        );
    }

    #[test]
    fn source_of_a_node_is_its_running_pod() {
        // cluster-network#208
        let mut ending = pod("ending", "n3", "Running");
        ending.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
        let found = sources(vec![
            pod("0-evicted", "n1", "Failed"),
            pod("a", "n1", "Running"),
            pod("z-evicted", "n1", "Failed"),
            pod("b", "n2", "Pending"),
            ending,
        ]);
        let pending = Err("pod b is Pending".to_owned());
        let expected = [("n1", Ok(container("a"))), ("n2", pending)];
        assert_eq!(
            found,
            expected
                .map(|(node, source)| (node.to_owned(), source))
                .into_iter()
                .collect()
        );
    }

    #[test]
    fn one_node_is_chosen_by_its_name() {
        // cluster-network#208
        let names = ["n1.a.example", "n1.b.example", "n2"];
        let all = || sources(names.map(|node| pod("a", node, "Running")).into());
        let nodes = |wanted: Option<&str>| {
            chosen(all(), &args(wanted, false)).map(|found| found.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(nodes(None).expect("nodes"), names);
        assert_eq!(nodes(Some("n1.b.example")).expect("a node"), [names[1]]);
        assert_eq!(nodes(Some("n2.a.example")).expect("the label"), [names[2]]);
        assert_eq!(
            nodes(Some("n3")).expect_err("no such node").to_string(),
            "node n3 has no pod of network-check-target\nNodes with a pod: n1.a.example, n1.b.example, n2"
        );
        let none = chosen(BTreeMap::new(), &args(None, false)).expect_err("no pods");
        assert!(
            none.to_string()
                .starts_with("this cluster has no pods of network-check-target\n"),
            "{none}"
        );
    }

    #[test]
    fn program_in_the_pod_takes_all_endpoints_as_they_are() {
        // cluster-network#208
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            args: crate::source::Args,
        }
        let endpoints =
            ["10.0.0.1:8080", "[fd00::1]:443", "-host:1", "--listen:1", "a=b:"].map(str::to_owned);
        let command = command(&endpoints);
        assert_eq!(command[..2], PROGRAM);
        let program = <Program as clap::Parser>::try_parse_from(&command[1..]).expect("arguments");
        assert_eq!(program.args.once, endpoints);
    }

    #[test]
    fn incomplete_output_is_no_result() {
        // cluster-network#208
        let endpoints = ["h:1", "h:2"].map(str::to_owned);
        let printed = |lines: &[Line]| -> String {
            let lines = lines
                .iter()
                .map(|line| serde_json::to_string(line).expect("JSON"));
            lines.map(|line| line + "\n").collect()
        };
        let whole = [line("h:1", None), line("h:2", Some("no"))];
        let text = printed(&whole);
        assert_eq!(parsed(text.as_bytes(), &endpoints), Some(whole.to_vec()));
        assert_eq!(parsed(printed(&whole[..1]).as_bytes(), &endpoints), None);
        assert_eq!(parsed(&text.as_bytes()[..text.len() - 4], &endpoints), None);
        assert_eq!(parsed(b"Hello\n", &endpoints), None);
    }

    #[test]
    fn matrix_is_printed_node_by_node() {
        // cluster-network#208
        let targets = [("h:1", "a"), ("h:22", "b")].map(|(of, name)| (of.to_owned(), name.to_owned()));
        let well = || Ok(vec![line("h:1", None), line("h:22", None)]);
        let poor = Ok(vec![line("h:1", None), line("h:22", Some("no"))]);
        let of = |results: Vec<Results>| -> BTreeMap<String, Results> {
            let named = results.into_iter().enumerate();
            named.map(|(at, results)| (format!("n{at}"), results)).collect()
        };
        let answer = report(&targets, &of(vec![well(), well()]), true);
        assert_eq!(
            answer.text,
            "\
n0: 2 of 2 endpoints reachable
n1: 2 of 2 endpoints reachable

All 4 connections succeeded.
"
        );
        assert_eq!(answer.code, 0);
        let answer = report(
            &targets,
            &of(vec![poor, Err("pod p is Pending".to_owned())]),
            false,
        );
        assert_eq!(
            answer.text,
            "\
n0: 1 of 2 endpoints reachable
  ok    a  h:1   1ms
  FAIL  b  h:22  no
n1: no results
  pod p is Pending

1 of 2 connections failed.
1 of 2 nodes gave no results.
"
        );
        assert_eq!(answer.code, 1);
    }
}
