//! The cluster as far as this controller is concerned: the pods of its node, read again before anything is done about
//! them, and networks' definitions, read when one is needed. There is no watch of definitions: all of a cluster's would
//! cost every node more memory than everything else here.

use crate::names;
use crate::plan;
use cni::names::{NETWORK_STATUS_ANNOTATION, NETWORKS_ANNOTATION};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube_kit::client::message;
use kube_kit::events::{Kind, Recorder};
use kube_kit::pod::{self, PodBody};
use kube_kit::watch::{self, Name, Options, Watch};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// Writing the status: attempts, and the first pause between them.
const WRITE_ATTEMPTS: u32 = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(10);
const RUNNING: &str = "Running";

/// Why the cluster does not tell or take something. The text is the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// A pod as far as its networks go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// UID.
    pub uid: String,
    /// Whether it has no network namespace of its own.
    pub host_network: bool,
    /// Whether it runs, and is to go on.
    pub runs: bool,
    /// The annotation `k8s.v1.cni.cncf.io/networks`; empty without one.
    pub networks: String,
    /// The annotation `k8s.v1.cni.cncf.io/network-status`; empty without one.
    pub status: String,
}

impl Pod {
    /// Whether something has to be done about it. Annotations that can't be read are told about, so that counts.
    pub fn needs_work(&self, namespace: &str) -> bool {
        if self.host_network {
            return !self.networks.is_empty();
        }
        self.runs
            && !plan::plan(&self.networks, &self.status, namespace).is_ok_and(|change| change.is_empty())
    }
}

/// What is kept of a watched pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// UID.
    pub uid: String,
    /// What it asks for.
    pub networks: String,
    /// Whether something has to be done about it.
    pub needs_work: bool,
}

/// The cluster behind the API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    recorder: Recorder,
}

impl Cluster {
    /// Reads and writes by this client, in the name of the controller on this node.
    pub fn new(client: Client, node: &str) -> Self {
        let recorder = Recorder::on_host(client.clone(), names::COMPONENT, node);
        Self { client, recorder }
    }

    /// Begins to watch the running pods of a node. Needs a running tokio runtime.
    pub fn watch(&self, node: &str) -> Watch<Name, Seen> {
        let options = Options::all().fields(format!("spec.nodeName={node},status.phase={RUNNING}"));
        watch::start_named::<WatchedPod, _>(kube::Api::all(self.client.clone()), &options, |found| {
            let namespace = found.metadata.namespace.clone().unwrap_or_default();
            let pod = Pod::from(found);
            let needs_work = pod.needs_work(&namespace);
            Seen {
                // Of most pods nothing has to be known.
                networks: if needs_work { pod.networks } else { String::new() },
                uid: pod.uid,
                needs_work,
            }
        })
    }

    /// The pod as it is now; `None` when there is none.
    pub async fn pod(&self, name: &Name) -> Result<Option<Pod>, Error> {
        let Some(text) = self.text(&pod::path(name)).await? else {
            return Ok(None);
        };
        let pod: WatchedPod = serde_json::from_str(&text).map_err(|error| Error(error.to_string()))?;
        Ok(Some(pod.into()))
    }

    /// The configuration of a network; `None` when there is no such definition.
    pub async fn config(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let path =
            format!("/apis/k8s.cni.cncf.io/v1/namespaces/{namespace}/network-attachment-definitions/{name}");
        let Some(text) = self.text(&path).await? else {
            return Ok(None);
        };
        let Definition { spec } = serde_json::from_str(&text).map_err(|error| Error(error.to_string()))?;
        Ok(Some(spec.config))
    }

    /// Changes the status annotation of a pod, on the ground of what it is at that moment. That the pod is gone is
    /// fine: then nobody reads it.
    pub async fn change_status(
        &self,
        name: &Name,
        uid: &str,
        change: impl Fn(&str) -> Result<String, plan::Unreadable>,
    ) -> Result<(), Error> {
        let mut last = Error(String::new());
        let mut pause = WRITE_PAUSE;
        for attempt in 0..WRITE_ATTEMPTS {
            if attempt > 0 {
                sleep(pause).await;
                pause *= 2;
            }
            let body = match self.text(&pod::path(name)).await {
                Ok(Some(text)) => PodBody::parse(&text).map_err(|error| Error(error.to_string()))?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            if body.uid() != uid {
                return Ok(());
            }
            let now = body.annotation(NETWORK_STATUS_ANNOTATION).unwrap_or_default();
            let after = change(now).map_err(|error| Error(error.to_string()))?;
            if after == now {
                return Ok(());
            }
            let changed = body.with_annotation(NETWORK_STATUS_ANNOTATION, &after);
            match timeout(REQUEST, pod::replace_status(&self.client, name, &changed)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(()),
                // A conflict, mostly: read it and try again.
                Ok(Err(error)) => last = Error(message(&error)),
                Err(_) => last = late(),
            }
        }
        Err(last)
    }

    /// Publishes an event about a pod.
    pub async fn event(&self, name: &Name, uid: &str, kind: Kind, reason: &str, text: &str) {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.recorder.publish(&regarding, kind, reason, text).await;
    }

    async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        match timeout(REQUEST, pod::get(&self.client, path)).await {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(Error(message(&error))),
            Err(_) => Err(late()),
        }
    }
}

fn late() -> Error {
    Error("no answer from the API server".into())
}

#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    spec: DefinitionSpec,
}

#[derive(Deserialize, Default)]
struct DefinitionSpec {
    #[serde(default)]
    config: String,
}

/// What is read of a pod: everything else is skipped while parsing.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
struct WatchedPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    host_network: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
}

impl From<WatchedPod> for Pod {
    fn from(pod: WatchedPod) -> Self {
        let WatchedPod {
            metadata,
            spec,
            status,
        } = pod;
        let mut annotations = metadata.annotations.unwrap_or_default();
        let mut annotation = |key: &str| annotations.remove(key).unwrap_or_default();
        Self {
            uid: metadata.uid.unwrap_or_default(),
            host_network: spec.host_network,
            runs: status.phase == RUNNING && metadata.deletion_timestamp.is_none(),
            networks: annotation(NETWORKS_ANNOTATION),
            status: annotation(NETWORK_STATUS_ANNOTATION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotations: &Value, spec: &Value, status: &Value) -> Pod {
        let value =
            json!({"metadata": {"uid": "u", "annotations": annotations}, "spec": spec, "status": status});
        serde_json::from_value::<WatchedPod>(value).unwrap().into()
    }

    #[test]
    fn most_pods_need_nothing() {
        let running = json!({"phase": "Running"});
        let asks = json!({NETWORKS_ANNOTATION: "a@net1"});
        let needs = |annotations: &Value, spec: &Value, status: &Value| {
            pod(annotations, spec, status).needs_work("ns")
        };
        assert!(!needs(&json!({}), &json!({}), &running));
        assert!(needs(&asks, &json!({}), &running));
        let status = r#"[{"name":"ns/a","interface":"net1","dns":{}}]"#;
        let has = json!({NETWORKS_ANNOTATION: "a@net1", NETWORK_STATUS_ANNOTATION: status});
        assert!(!needs(&has, &json!({}), &running));
        // The annotation was taken away.
        let left = json!({NETWORK_STATUS_ANNOTATION: status});
        assert!(needs(&left, &json!({}), &running));
        assert!(!needs(&asks, &json!({}), &json!({"phase": "Pending"})));
        // What can't be read is told about, and so is what asks in the host's network.
        assert!(needs(&json!({NETWORKS_ANNOTATION: "[{"}), &json!({}), &running));
        assert!(needs(&asks, &json!({"hostNetwork": true}), &running));
        assert!(!needs(&json!({}), &json!({"hostNetwork": true}), &running));
    }

    #[test]
    fn a_pod_that_ends_is_left_to_its_end() {
        let value = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {NETWORKS_ANNOTATION: "a@net1"}}, "status": {"phase": "Running"}});
        let pod = Pod::from(serde_json::from_value::<WatchedPod>(value).unwrap());
        assert!(!pod.needs_work("ns"));
    }
}
