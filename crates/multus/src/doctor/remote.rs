//! Checks other nodes: runs `weft doctor` in their multus daemon pods by the API server's exec, with the user's
//! permissions.

use super::report::Report;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::connection::{self, Flags};
use kube_kit::{exec, pod};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// API paths of the multus daemon's pods in all namespaces, and of all nodes.
const PODS: &str = "/api/v1/pods?labelSelector=app%3Dmultus";
const NODES: &str = "/api/v1/nodes";
/// The daemon's container, if the pod has several.
const CONTAINER: &str = "kube-multus";
const PROGRAM: [&str; 4] = ["/weft", "doctor", "--output", "json"];
const REPAIR: &str = "--repair";
/// Timeout of one node: longer than the timeouts of the program on the node.
const TIMEOUT: Duration = Duration::from_mins(22);
/// Size limit of a node's output, in bytes; a truncated report is invalid.
const LONGEST: u64 = 16 << 20;
const RUNNING: &str = "Running";

/// A node cannot be checked. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("node {0} does not exist\n`kubectl get nodes` lists all nodes.")]
    NoNode(String),
    #[error(
        "node {0} has no running multus pod\n`kubectl get pods -A -l app=multus -o wide` lists them; \
         on the node itself, `weft doctor` works without one."
    )]
    NoPod(String),
    #[error(
        "not allowed to run a command in pod {pod} of node {node}\nAsk an administrator of the cluster for the right to \
         create pods/exec in that namespace."
    )]
    Forbidden { node: String, pod: String },
    #[error("node {node}: cannot run a command in pod {pod}: {cause}")]
    Exec {
        node: String,
        pod: String,
        cause: String,
    },
    #[error(
        "node {node}: pod {pod} gave no report: {cause}\nIts image may be older than this program, or not Weft's."
    )]
    NoReport {
        node: String,
        pod: String,
        cause: String,
    },
    #[error("node {node}: pod {pod} did not answer within {} s", TIMEOUT.as_secs())]
    Overdue { node: String, pod: String },
}

/// The results of all nodes.
#[derive(Debug, Default)]
pub(super) struct CheckedNodes {
    pub(super) reports: Vec<Report>,
    /// Errors of the nodes that could not be checked.
    pub(super) failed: Vec<String>,
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct PodObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// A running multus daemon pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DaemonPod {
    namespace: String,
    container: exec::Container,
}

/// Checks one node.
pub(super) async fn one(flags: &Flags, node: &str, repair: bool) -> Result<Report, Error> {
    let client = connection::connect_for_exec(flags).await?;
    if let Some(daemon_pod) = daemon_pods(&client).await?.remove(node) {
        return run_doctor(&client, node, &daemon_pod, repair).await;
    }
    let nodes = nodes(&client).await?;
    let exists = nodes.iter().any(|known| known == node);
    let error = if exists { Error::NoPod } else { Error::NoNode };
    Err(error(node.to_owned()))
}

/// Checks all nodes, one after the other.
pub(super) async fn all(flags: &Flags, repair: bool) -> Result<CheckedNodes, Error> {
    let client = connection::connect_for_exec(flags).await?;
    let mut daemon_pods = daemon_pods(&client).await?;
    let mut checked_nodes = CheckedNodes::default();
    for node in nodes(&client).await? {
        let outcome = match daemon_pods.remove(&node) {
            Some(daemon_pod) => run_doctor(&client, &node, &daemon_pod, repair).await,
            None => Err(Error::NoPod(node)),
        };
        match outcome {
            Ok(report) => checked_nodes.reports.push(report),
            Err(error) => checked_nodes.failed.push(error.to_string()),
        }
    }
    Ok(checked_nodes)
}

async fn read<T: DeserializeOwned>(client: &Client, what: &str, path: &str) -> Result<Vec<T>, Error> {
    let read = async {
        let text = pod::get(client, path).await?;
        serde_json::from_str(&text).map_err(kube::Error::SerdeError)
    };
    let list: List<T> = read.await.map_err(|error| connection::Error::of(what, &error))?;
    Ok(list.items)
}

async fn nodes(client: &Client) -> Result<Vec<String>, Error> {
    let nodes: Vec<Object> = read(client, "nodes", NODES).await?;
    let mut names: Vec<_> = nodes.into_iter().map(|node| node.metadata.name).collect();
    names.sort();
    Ok(names)
}

async fn daemon_pods(client: &Client) -> Result<BTreeMap<String, DaemonPod>, Error> {
    Ok(daemon_pods_in(read(client, "pods", PODS).await?))
}

/// The daemon pods by node.
fn daemon_pods_in(pods: Vec<PodObject>) -> BTreeMap<String, DaemonPod> {
    let usable = pods
        .into_iter()
        .filter(|pod| pod.status.phase == RUNNING && pod.metadata.deletion_timestamp.is_none());
    let daemon_pod = |pod: PodObject| {
        let containers = pod.spec.containers;
        let named = containers.iter().find(|container| container.name == CONTAINER);
        let container = exec::Container {
            name: named.or(containers.first())?.name.clone(),
            pod: pod.metadata.name,
        };
        Some((
            pod.spec.node_name,
            DaemonPod {
                namespace: pod.metadata.namespace,
                container,
            },
        ))
    };
    usable.filter_map(daemon_pod).collect()
}

/// Runs `weft doctor` in a pod and parses its report.
async fn run_doctor(
    client: &Client,
    node: &str,
    daemon_pod: &DaemonPod,
    repair: bool,
) -> Result<Report, Error> {
    let DaemonPod { namespace, container } = daemon_pod;
    let pod = format!("{namespace}/{}", container.pod);
    let node = node.to_owned();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let command = PROGRAM.into_iter().chain(repair.then_some(REPAIR));
    let command = command.map(str::to_owned).collect();
    let run = timeout(TIMEOUT, exec::run(&pods, container, command, LONGEST)).await;
    let Ok(outcome) = run else {
        return Err(Error::Overdue { node, pod });
    };
    match outcome {
        Ok(output) => serde_json::from_slice(&output.stdout).map_err(|_| Error::NoReport {
            node,
            pod,
            cause: output.cause(),
        }),
        Err(error) if exec::is_forbidden(&error) => Err(Error::Forbidden { node, pod }),
        Err(error) => {
            let cause = message(&error);
            Err(Error::Exec { node, pod, cause })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn daemon_pod_of_node_is_running_pod_with_daemon_container() {
        let pod = |name: &str, node: &str, phase: &str, containers: &[&str]| {
            let containers: Vec<_> = containers.iter().map(|name| json!({ "name": name })).collect();
            json!({"metadata": {"name": name, "namespace": "ns"}, "status": {"phase": phase},
                "spec": {"nodeName": node, "containers": containers}})
        };
        let mut leaving = pod("leaving", "node03", "Running", &["kube-multus"]);
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let pods = json!([
            pod("a", "node01", "Running", &["proxy", "kube-multus"]),
            pod("b", "node02", "Pending", &["kube-multus"]),
            leaving,
            pod("d", "node04", "Running", &["other"]),
        ]);
        let daemon_pods = daemon_pods_in(serde_json::from_value(pods).unwrap());
        let found: Vec<_> = daemon_pods
            .iter()
            .map(|(node, found)| (&**node, &*found.container.pod, &*found.container.name))
            .collect();
        assert_eq!(found, [("node01", "a", "kube-multus"), ("node04", "d", "other")]);
    }
}
