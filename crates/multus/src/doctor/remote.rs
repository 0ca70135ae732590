//! Looks at other nodes: runs `weft doctor` in their pods of the multus daemon, by the API server's exec, with the rights of
//! the user.

use super::report::Report;
use crate::request::PodRef;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use kube::client::UpgradeConnectionError;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::connection::{self, Flags};
use kube_kit::pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// The multus daemon's pods of all namespaces, and all nodes.
const PODS: &str = "/api/v1/pods?labelSelector=app%3Dmultus";
const NODES: &str = "/api/v1/nodes";
/// The daemon's container, if there are several.
const CONTAINER: &str = "kube-multus";
const PROGRAM: [&str; 4] = ["/weft", "doctor", "--output", "json"];
const REPAIR: &str = "--repair";
/// How long the look at one node may take, or its repair: more than the program on the node takes.
const PATIENCE: Duration = Duration::from_mins(22);
/// Limit of what a node may answer, bytes.
const LONGEST: u64 = 16 << 20;
const RUNNING: &str = "Running";

/// Why a node can't be looked at. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("there is no node {0}\n`kubectl get nodes` shows those that there are.")]
    NoNode(String),
    #[error(
        "node {0} has no running pod of multus to look through\n`kubectl get pods -A -l app=multus -o wide` shows where they \
         run; on the node itself, `weft doctor` works without one."
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
    #[error("node {node}: pod {pod} did not answer within {} s", PATIENCE.as_secs())]
    Overdue { node: String, pod: String },
}

/// What became of all nodes.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) reports: Vec<Report>,
    /// Why some could not be looked at.
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

/// A pod to look through.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    pod: PodRef,
    container: String,
}

/// Looks at one node.
pub(super) async fn one(flags: &Flags, node: &str, repair: bool) -> Result<Report, Error> {
    let client = connection::connect_for_exec(flags).await?;
    if let Some(window) = windows(&client).await?.remove(node) {
        return through(&client, node, &window, repair).await;
    }
    let nodes = nodes(&client).await?;
    let is_there = nodes.iter().any(|known| known == node);
    let error = if is_there { Error::NoPod } else { Error::NoNode };
    Err(error(node.to_owned()))
}

/// Looks at all nodes, one after the other.
pub(super) async fn all(flags: &Flags, repair: bool) -> Result<Looked, Error> {
    let client = connection::connect_for_exec(flags).await?;
    let mut windows = windows(&client).await?;
    let mut looked = Looked::default();
    for node in nodes(&client).await? {
        let outcome = match windows.remove(&node) {
            Some(window) => through(&client, &node, &window, repair).await,
            None => Err(Error::NoPod(node)),
        };
        match outcome {
            Ok(report) => looked.reports.push(report),
            Err(error) => looked.failed.push(error.to_string()),
        }
    }
    Ok(looked)
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

async fn windows(client: &Client) -> Result<BTreeMap<String, Window>, Error> {
    Ok(windows_in(read(client, "pods", PODS).await?))
}

/// The pods to look through, by node.
fn windows_in(pods: Vec<PodObject>) -> BTreeMap<String, Window> {
    let usable = pods
        .into_iter()
        .filter(|pod| pod.status.phase == RUNNING && pod.metadata.deletion_timestamp.is_none());
    let window = |pod: PodObject| {
        let containers = pod.spec.containers;
        let named = containers.iter().find(|container| container.name == CONTAINER);
        let container = named.or(containers.first())?.name.clone();
        let pod_ref = PodRef {
            namespace: pod.metadata.namespace,
            name: pod.metadata.name,
            uid: None,
        };
        Some((
            pod.spec.node_name,
            Window {
                pod: pod_ref,
                container,
            },
        ))
    };
    usable.filter_map(window).collect()
}

/// Runs the program in a pod and reads its report.
async fn through(client: &Client, node: &str, window: &Window, repair: bool) -> Result<Report, Error> {
    let pod = format!("{}/{}", window.pod.namespace, window.pod.name);
    let (node, overdue_pod) = (node.to_owned(), pod.clone());
    let run = timeout(PATIENCE, run(client, window, repair)).await;
    let Ok(outcome) = run else {
        return Err(Error::Overdue {
            node,
            pod: overdue_pod,
        });
    };
    match outcome {
        Ok(said) => serde_json::from_slice(&said.stdout).map_err(|_| Error::NoReport {
            node,
            pod,
            cause: said.cause(),
        }),
        Err(error) if is_forbidden(&error) => Err(Error::Forbidden { node, pod }),
        Err(error) => {
            let cause = message(&error);
            Err(Error::Exec { node, pod, cause })
        }
    }
}

/// What the program said.
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
}

impl Said {
    fn cause(&self) -> String {
        let stderr = String::from_utf8_lossy(&self.stderr);
        if !stderr.trim().is_empty() {
            return stderr.trim().to_owned();
        }
        let message = self.status.as_ref().and_then(|status| status.message.clone());
        message.unwrap_or_else(|| "it said nothing".to_owned())
    }
}

async fn run(client: &Client, window: &Window, repair: bool) -> Result<Said, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &window.pod.namespace);
    let command = PROGRAM.into_iter().chain(repair.then_some(REPAIR));
    let params = AttachParams::default()
        .container(window.container.clone())
        .stdin(false)
        .stdout(true)
        .stderr(true);
    let command: Vec<_> = command.collect();
    let mut process = pods.exec(&window.pod.name, command, &params).await?;
    let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
    let status = async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    };
    let (stdout, stderr, status) = tokio::join!(all_of(stdout), all_of(stderr), status);
    Ok(Said {
        stdout,
        stderr,
        status,
    })
}

/// What a stream brings until it ends; what was cut off is no report.
async fn all_of(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(stream) = stream {
        let mut limited = stream.take(LONGEST);
        let _ = limited.read_to_end(&mut read).await;
    }
    read
}

fn is_forbidden(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 403,
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            status.as_u16() == 403
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn window_of_a_node_is_its_running_pod_and_the_daemons_container() {
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
        let windows = windows_in(serde_json::from_value(pods).unwrap());
        let found: Vec<_> = windows
            .iter()
            .map(|(node, window)| (&**node, &*window.pod.name, &*window.container))
            .collect();
        assert_eq!(found, [("node01", "a", "kube-multus"), ("node04", "d", "other")]);
    }

    #[test]
    fn cause_of_a_missing_report_is_the_programs_own_word() {
        let said = |stderr: &str, message: Option<&str>| Said {
            stdout: Vec::new(),
            stderr: stderr.into(),
            status: message.map(|message| Status {
                message: Some(message.into()),
                ..Status::default()
            }),
        };
        assert_eq!(
            said("error: not root\n", Some("exit 2")).cause(),
            "error: not root"
        );
        assert_eq!(said("", Some("no such file")).cause(), "no such file");
        assert_eq!(said("", None).cause(), "it said nothing");
    }
}
