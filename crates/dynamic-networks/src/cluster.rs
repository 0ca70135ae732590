//! The controller's view of the cluster: a watch of its node's pods, and live reads of a pod before it is changed and
//! of definitions when they are needed. Definitions are not watched: those of a whole cluster would take more memory
//! on every node than the rest of the controller.

use crate::messages;
use crate::names;
use crate::plan::{self, Step};
use cni::names::{NETWORK_STATUS_ANNOTATION, NETWORKS_ANNOTATION};
use cni::status::StatusError;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube_kit::client::{chain, message};
use kube_kit::events::{Kind, Recorder};
use kube_kit::object::NETWORK_ATTACHMENT_DEFINITION;
use kube_kit::path::NotAName;
use kube_kit::pod::{self, PodBody};
use kube_kit::watch::{self, Name, Options, Watch};
use linux::backoff::Backoff;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Back-off between attempts to write the status.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
const RUNNING: &str = "Running";
/// Immutable annotation of a mirror pod with the UID that kubelet gave the static pod.
const STATIC_UID: &str = "kubernetes.io/config.mirror";
/// Retryable client errors: unauthorised (the token is being renewed), timeout, conflict, too many requests.
const RETRYABLE: [u16; 4] = [401, 408, 409, 429];

/// A read failed. The text is the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(String);

/// A status write failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server refused the write; a retry would be refused too.
    #[error("{0}")]
    Denied(String),
    /// The outcome is unknown: the status may have been written.
    #[error("{0}")]
    Unknown(String),
}

/// The fields of a pod that concern its networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    pub uid: String,
    /// The UID in the container runtime.
    pub runtime_uid: String,
    /// Whether it uses the host's network namespace.
    pub host_network: bool,
    /// Whether it is running and not being deleted.
    pub is_running: bool,
    /// The annotation `k8s.v1.cni.cncf.io/networks`; empty without one.
    pub networks: String,
    /// The annotation `k8s.v1.cni.cncf.io/network-status`; empty without one.
    pub status: String,
}

impl Pod {
    /// The steps from its network status to its networks annotation. The error is the text of the event about an
    /// impossible request.
    pub(crate) fn steps(&self, name: &Name) -> Result<Vec<Step>, String> {
        let text = || format!("{}/{}", name.namespace, name.name);
        if self.host_network && !self.networks.is_empty() {
            return Err(messages::host_networked(&text()));
        }
        if self.host_network || !self.is_running {
            return Ok(Vec::new());
        }
        plan::plan(&self.networks, &self.status, &name.namespace)
            .map_err(|error| messages::impossible(&text(), &error))
    }

    fn need(&self, name: &Name) -> Need {
        match self.steps(name) {
            Ok(steps) if steps.is_empty() => Need::Nothing,
            Ok(_) => Need::Work,
            Err(text) => Need::Rejection(text),
        }
    }
}

/// Whether a pod needs work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Status and annotation match.
    Nothing,
    /// They differ.
    Work,
    /// The request is impossible; the text of the event.
    Rejection(String),
}

/// The cached fields of a watched pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPod {
    pub uid: String,
    /// The networks annotation; empty if nothing has to be done.
    pub networks: String,
    /// Whether it needs work.
    pub need: Need,
}

/// The cluster behind the API server.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    recorder: Recorder,
}

impl Cluster {
    /// Uses this client; events name this node.
    pub(crate) fn new(client: Client, node: &str) -> Self {
        let recorder = Recorder::on_host(client.clone(), names::COMPONENT, node);
        Self { client, recorder }
    }

    /// Starts to watch the running pods of a node. Needs a running tokio runtime.
    pub(crate) fn watch(&self, node: &str) -> Watch<Name, ObservedPod> {
        let options = Options::all().fields(format!("spec.nodeName={node},status.phase={RUNNING}"));
        watch::start_named::<WatchedPod, _>(kube::Api::all(self.client.clone()), &options, |found| {
            let name = Name::new(
                found.metadata.namespace.as_deref().unwrap_or_default(),
                found.metadata.name.as_deref().unwrap_or_default(),
            );
            let pod = Pod::from(found);
            let need = pod.need(&name);
            ObservedPod {
                // Saves memory: most pods need no work.
                networks: if need == Need::Nothing {
                    String::new()
                } else {
                    pod.networks
                },
                uid: pod.uid,
                need,
            }
        })
    }

    /// Reads the pod live; `None` when it does not exist.
    pub(crate) async fn pod(&self, name: &Name) -> Result<Option<Pod>, Error> {
        let Some(text) = self.text(pod::path(name)).await? else {
            return Ok(None);
        };
        let pod: WatchedPod = serde_json::from_str(&text).map_err(|error| Error(error.to_string()))?;
        Ok(Some(pod.into()))
    }

    /// Reads the configuration of a definition; `None` when it does not exist.
    pub(crate) async fn config(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let path = NETWORK_ATTACHMENT_DEFINITION.path_of(&Name::new(namespace, name));
        let Some(text) = self.text(path).await? else {
            return Ok(None);
        };
        let Definition { spec } = serde_json::from_str(&text).map_err(|error| Error(error.to_string()))?;
        Ok(Some(spec.config))
    }

    /// Applies a change to the current status annotation of a pod, and returns the networks annotation of the same
    /// read. `None` when the pod is gone, which is no error.
    ///
    /// Retries errors of unknown outcome for up to `limit`.
    pub(crate) async fn change_status(
        &self,
        name: &Name,
        uid: &str,
        limit: Duration,
        change: impl Fn(&str) -> Result<String, StatusError>,
    ) -> Result<Option<String>, WriteError> {
        let deadline = Instant::now() + limit;
        let mut backoff = BACKOFF;
        loop {
            let pause = backoff.next_delay();
            match self.try_status(name, uid, &change).await {
                Err(WriteError::Unknown(_)) if Instant::now() + pause < deadline => {}
                outcome => return outcome,
            }
            sleep(pause).await;
        }
    }

    async fn try_status(
        &self,
        name: &Name,
        uid: &str,
        change: impl Fn(&str) -> Result<String, StatusError>,
    ) -> Result<Option<String>, WriteError> {
        let path = pod::path(name).map_err(|error| WriteError::Denied(error.to_string()))?;
        let Some(text) = answer(pod::get(&self.client, &path)).await? else {
            return Ok(None);
        };
        let body = PodBody::parse(&text).map_err(|error| WriteError::Denied(error.to_string()))?;
        if body.uid() != uid {
            return Ok(None);
        }
        let networks = body
            .annotation(NETWORKS_ANNOTATION)
            .unwrap_or_default()
            .to_owned();
        let now = body.annotation(NETWORK_STATUS_ANNOTATION).unwrap_or_default();
        let after = change(now).map_err(|error| WriteError::Denied(chain(&error)))?;
        if after == now {
            return Ok(Some(networks));
        }
        let changed = body.with_annotation(NETWORK_STATUS_ANNOTATION, &after);
        let written = answer(pod::replace_status(&self.client, name, &changed)).await?;
        Ok(written.map(|()| networks))
    }

    /// Publishes an event about a pod. Returns whether it was published.
    pub(crate) async fn event(&self, name: &Name, uid: &str, kind: Kind, reason: &str, text: &str) -> bool {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.recorder.publish(&regarding, kind, reason, text).await
    }

    /// Reads an object's text. An invalid name means that no such object exists.
    async fn text(&self, path: Result<String, NotAName>) -> Result<Option<String>, Error> {
        let Ok(path) = path else {
            return Ok(None);
        };
        let answer = answer(pod::get(&self.client, &path)).await;
        answer.map_err(|error| Error(error.to_string()))
    }
}

/// Sends a request with a timeout; `None` when the object does not exist.
async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<Option<T>, WriteError> {
    let error = match timeout(REQUEST, request).await {
        Ok(Ok(found)) => return Ok(Some(found)),
        Ok(Err(error)) => error,
        Err(_) => return Err(WriteError::Unknown("no answer from the API server".into())),
    };
    let text = message(&error);
    match error {
        kube::Error::Api(status) if status.code == 404 => Ok(None),
        kube::Error::Api(status)
            if (400..500).contains(&status.code) && !RETRYABLE.contains(&status.code) =>
        {
            Err(WriteError::Denied(text))
        }
        _ => Err(WriteError::Unknown(text)),
    }
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

/// The fields of a pod that are read; all others are skipped while parsing.
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
        let uid = metadata.uid.unwrap_or_default();
        let runtime_uid = annotations.remove(STATIC_UID).unwrap_or_else(|| uid.clone());
        let mut annotation = |key: &str| annotations.remove(key).unwrap_or_default();
        Self {
            runtime_uid,
            uid,
            host_network: spec.host_network,
            is_running: status.phase == RUNNING && metadata.deletion_timestamp.is_none(),
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
    fn pod_without_changes_needs_nothing() {
        let running = json!({"phase": "Running"});
        let asks = json!({NETWORKS_ANNOTATION: "a@net1"});
        let need = |annotations: &Value, spec: &Value, status: &Value| {
            pod(annotations, spec, status).need(&Name::new("ns", "web"))
        };
        assert_eq!(need(&json!({}), &json!({}), &running), Need::Nothing);
        assert_eq!(need(&asks, &json!({}), &running), Need::Work);
        let status = r#"[{"name":"ns/a","interface":"net1","dns":{}}]"#;
        let has = json!({NETWORKS_ANNOTATION: "a@net1", NETWORK_STATUS_ANNOTATION: status});
        assert_eq!(need(&has, &json!({}), &running), Need::Nothing);
        // The annotation was taken away.
        let left = json!({NETWORK_STATUS_ANNOTATION: status});
        assert_eq!(need(&left, &json!({}), &running), Need::Work);
        assert_eq!(
            need(&asks, &json!({}), &json!({"phase": "Pending"})),
            Need::Nothing
        );
        // A malformed annotation is reported, and so is a request on the host network.
        let broken = json!({NETWORKS_ANNOTATION: "a@net1,a@net1"});
        assert_eq!(
            need(&broken, &json!({}), &running),
            Need::Rejection(
                "pod [ns/web]: will not change interfaces: interface net1 is asked for twice".into()
            )
        );
        let on_host = json!({"hostNetwork": true});
        assert_eq!(
            need(&asks, &on_host, &running),
            Need::Rejection("pod [ns/web]: will not add interface to host networked pod".into())
        );
        assert_eq!(need(&json!({}), &on_host, &running), Need::Nothing);
    }

    #[test]
    fn terminating_pod_needs_nothing() {
        let value = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {NETWORKS_ANNOTATION: "a@net1"}}, "status": {"phase": "Running"}});
        let pod = Pod::from(serde_json::from_value::<WatchedPod>(value).unwrap());
        assert_eq!(pod.need(&Name::new("ns", "web")), Need::Nothing);
    }

    #[test]
    fn static_pod_has_uid_of_runtime() {
        let of = |annotations: &Value| pod(annotations, &json!({}), &json!({})).runtime_uid;
        assert_eq!(of(&json!({"kubernetes.io/config.mirror": "h"})), "h");
        assert_eq!(of(&json!({})), "u");
    }
}
