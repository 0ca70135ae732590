//! Client of the container runtime: its sandboxes, the sandbox of a pod, and its network namespace (CRI v1, multus.md
//! §5.4, §13.2).
//!
//! Only the fields that are read are declared, with the numbers of `runtime.v1`; containerd and CRI-O give the same
//! answers.

use crate::grpc::{self, unary};
use prost::Message;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

/// Paths of the methods.
const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
/// Label of every sandbox, set by the kubelet.
const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Deadline of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// `PodSandboxState` of a running sandbox.
const READY: i32 = 0;
/// Key of the runtime's additional information, and the kind of namespace in it.
const INFO: &str = "info";
const NETWORK: &str = "network";

/// `ListPodSandboxRequest`
#[derive(Clone, PartialEq, Message)]
pub struct ListRequest {
    /// Selection of the sandboxes.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<Filter>,
}

/// `PodSandboxFilter`
#[derive(Clone, PartialEq, Message)]
pub struct Filter {
    /// Sandboxes with these labels.
    #[prost(map = "string, string", tag = "3")]
    pub label_selector: HashMap<String, String>,
}

/// `ListPodSandboxResponse`
#[derive(Clone, PartialEq, Message)]
pub struct ListResponse {
    /// The sandboxes.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Item>,
}

/// `PodSandbox`
#[derive(Clone, PartialEq, Message)]
pub struct Item {
    /// ID of the sandbox.
    #[prost(string, tag = "1")]
    pub id: String,
    /// `PodSandboxState`, 0 if ready.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// Creation time in nanoseconds.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
}

/// `PodSandboxStatusRequest`
#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    /// ID of the sandbox.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// Whether to return `info`.
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

/// `PodSandboxStatusResponse`
#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    /// Additional information of the runtime.
    #[prost(map = "string, string", tag = "2")]
    pub info: HashMap<String, String>,
}

/// A sandbox that cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime does not answer, or refuses.
    #[error("{call}: {source}")]
    Call {
        /// The method.
        call: &'static str,
        /// The cause.
        source: grpc::Error,
    },
    /// The pod has no sandbox.
    #[error("ListPodSandbox returned 0 item for pod {0}")]
    None(String),
    /// The pod has only sandboxes that are not ready.
    #[error("ListPodSandbox returned no ready item for pod {0}")]
    NotReady(String),
    /// The runtime does not report the network namespace.
    #[error("PodSandboxStatus of sandbox {0} names no network namespace")]
    NoNamespace(String),
}

/// The sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// ID of the sandbox.
    pub id: String,
    /// Path of its network namespace on the host.
    pub netns: String,
}

/// The runtime of this node.
#[derive(Debug, Clone)]
pub struct Cri {
    /// Socket of the runtime.
    pub socket: PathBuf,
}

impl Cri {
    /// The sandbox of the pod with this UID: the newest ready one, because a restarted pod has dead sandboxes too.
    pub async fn sandbox(&self, uid: &str) -> Result<Sandbox, Error> {
        let request = ListRequest {
            filter: Some(Filter {
                label_selector: [(UID_LABEL.to_owned(), uid.to_owned())].into(),
            }),
        };
        let ListResponse { items } = self.ask(LIST, request).await?;
        let id = newest(items, uid)?;
        let request = StatusRequest {
            pod_sandbox_id: id.clone(),
            verbose: true,
        };
        let status: StatusResponse = self.ask(STATUS, request).await?;
        let netns = status.info.get(INFO).and_then(|info| network_namespace(info));
        match netns {
            Some(netns) => Ok(Sandbox { id, netns }),
            None => Err(Error::NoNamespace(id)),
        }
    }

    /// The IDs of all sandboxes, in any state.
    pub async fn sandboxes(&self) -> Result<BTreeSet<String>, Error> {
        let ListResponse { items } = self.ask(LIST, ListRequest { filter: None }).await?;
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    async fn ask<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let call = path.rsplit('/').next().unwrap_or(path);
        unary(&self.socket, path, request, TIMEOUT)
            .await
            .map_err(|source| Error::Call { call, source })
    }
}

fn newest(items: Vec<Item>, uid: &str) -> Result<String, Error> {
    if items.is_empty() {
        return Err(Error::None(uid.to_owned()));
    }
    items
        .into_iter()
        .filter(|item| item.state == READY)
        .max_by_key(|item| item.created_at)
        .map(|item| item.id)
        .ok_or_else(|| Error::NotReady(uid.to_owned()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    runtime_spec: RuntimeSpec,
}

#[derive(Deserialize)]
struct RuntimeSpec {
    linux: Linux,
}

#[derive(Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    r#type: String,
    #[serde(default)]
    path: String,
}

/// The path of the network namespace in the additional information of containerd and CRI-O.
fn network_namespace(info: &str) -> Option<String> {
    let info: Info = serde_json::from_str(info).ok()?;
    let namespaces = info.runtime_spec.linux.namespaces;
    let network = namespaces.into_iter().find(|found| found.r#type == NETWORK);
    network.map(|found| found.path).filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str, state: i32, created_at: i64) -> Item {
        Item {
            id: id.into(),
            state,
            created_at,
        }
    }

    #[test]
    fn newest_ready_sandbox_is_chosen() {
        // multus#90
        let items = vec![item("dead", 1, 9), item("old", 0, 1), item("new", 0, 5)];
        assert_eq!(newest(items, "u1").unwrap(), "new");
        assert_eq!(
            newest(Vec::new(), "u1").unwrap_err().to_string(),
            "ListPodSandbox returned 0 item for pod u1"
        );
        assert_eq!(
            newest(vec![item("dead", 1, 9)], "u1").unwrap_err().to_string(),
            "ListPodSandbox returned no ready item for pod u1"
        );
    }

    #[test]
    fn network_namespace_is_read_from_info() {
        let info = |namespaces: &str| {
            format!(
                r#"{{"pid":7,"runtimeSpec":{{"ociVersion":"1.0.2","linux":{{"namespaces":{namespaces}}}}}}}"#
            )
        };
        let found =
            r#"[{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"},{"type":"ipc","path":"/x"}]"#;
        assert_eq!(
            network_namespace(&info(found)).as_deref(),
            Some("/var/run/netns/cni-1")
        );
        // A pod in the host's network.
        assert_eq!(network_namespace(&info(r#"[{"type":"pid"}]"#)), None);
        assert_eq!(network_namespace(&info(r#"[{"type":"network"}]"#)), None);
        assert_eq!(network_namespace("nothing"), None);
    }
}
