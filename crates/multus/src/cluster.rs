//! What the daemon knows of the cluster: the pods of its node and all NADs, from trimmed watches, and live when a watch
//! is behind or has not begun. Nothing waits for a watch: a daemon that has just started works with single reads.

mod live;
mod refusal;

use crate::devices::claims::{PodClaims, PodSpec};
use crate::request::PodRef;
use api::net_attach_def::{NetworkAttachmentDefinition, NetworkAttachmentDefinitionSpec};
use cni::names::{DEFAULT_NETWORK_ANNOTATION, NETWORKS_ANNOTATION, RESOURCE_NAME_ANNOTATION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube_kit::events::Kind;
use kube_kit::path::NotAName;
use kube_kit::pod::PodBody;
use kube_kit::watch::{self, Name, Options, Store, Watch};
use serde::Deserialize;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub use live::Live;

/// How often the API server is asked whether it accepts a daemon again that it refused, and how long it may take to say.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
const REFUSED_PATIENCE: Duration = Duration::from_secs(5);

/// Kubelet's own annotation on pods that it did not get from the API server.
const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// A pod as far as multus is concerned.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `k8s.v1.cni.cncf.io/networks`.
    pub networks: Option<String>,
    /// `v1.multus-cni.io/default-network`.
    pub default_network: Option<String>,
    /// Whether it came from a file: then its UID in the API is another one.
    pub is_static: bool,
    /// Whether it was deleted and is there until its containers have ended.
    pub is_ending: bool,
    /// Its claims to devices, if it has some.
    pub claims: Option<Arc<PodClaims>>,
    /// What a status write needs; only of pods that have not started yet, the others are read again.
    pub body: Option<Arc<PodBody>>,
}

/// What the API server says to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing to the contrary; no answer says nothing.
    Kept,
    /// It knows us, and we may do nothing (403).
    Forbidden,
    /// It does not know us (401).
    Unknown,
}

/// A network as it is defined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nad {
    /// `spec.config`; empty when the configuration is a file on the node.
    pub config: Arc<str>,
    /// The device plugin resource that goes with it.
    pub resource_name: Option<Arc<str>>,
}

/// Why something about the cluster can't be known. The text is the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

/// Why the API server gave no object. The text is its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It has none, or no such kind.
    #[error("{0}")]
    NotFound(String),
    /// It is not for us to read.
    #[error("{0}")]
    Forbidden(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<NotAName> for LookupError {
    fn from(error: NotAName) -> Self {
        Self(error.to_string())
    }
}

impl From<ReadError> for LookupError {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

/// What attaching needs to know of the cluster.
pub trait ClusterView: Send + Sync {
    /// The pod, or `None` when the API server says that there is none. When `uid` is given and the watch knows another
    /// one, the API server is asked.
    fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> impl Future<Output = Result<Option<Pod>, LookupError>> + Send;

    /// The NAD; that there is none is an error.
    fn nad(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Nad, LookupError>> + Send;

    /// Any object or list, by its path: the API server's text.
    fn read(&self, path: &str) -> impl Future<Output = Result<String, ReadError>> + Send;

    /// Publishes an event about a pod, behind the back of whoever waits for the attachment.
    fn event(&self, pod: &PodRef, kind: Kind, reason: &'static str, text: String);

    /// Writes the network status of a pod. That the pod is gone meanwhile is fine.
    fn write_status(&self, pod: &Pod, status: &str) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Whether the API server refuses this process, so that nothing can be attached.
    fn is_refused(&self) -> bool {
        false
    }
}

/// Why the status of a pod can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another pod has its name by now.
    #[error(
        "SetNetworkStatus: expected pod {namespace}/{name} UID \"{expected}\" but got \"{found}\" from Kube API"
    )]
    OtherPod {
        /// Namespace of both.
        namespace: String,
        /// Name of both.
        name: String,
        /// UID of the one.
        expected: String,
        /// UID of the other.
        found: String,
    },
    /// The API server says no, or nothing.
    #[error(
        "SetNetworkStatus: failed to update the pod {name} in out of cluster comm: status update failed for pod {namespace}/{name}: {cause}"
    )]
    Failed {
        /// Namespace of the pod.
        namespace: String,
        /// Its name.
        name: String,
        /// What the API server said.
        cause: String,
    },
}

/// The cluster behind the API server.
pub struct Cluster {
    live: Live,
    pods: Watch<Name, Pod>,
    nads: Watch<Name, Nad>,
}

impl Cluster {
    /// Begins to watch the pods of `node` (all pods without one) and all NADs. Does not wait. Needs a running tokio
    /// runtime.
    pub fn start(client: Client, node: Option<&str>) -> Self {
        let options = match node {
            Some(node) => Options::all().fields(format!("spec.nodeName={node}")),
            None => Options::all(),
        };
        let pods =
            watch::start_named::<WatchedPod, _>(kube::Api::all(client.clone()), &options, Pod::from).quiet();
        let nads =
            watch::start_named::<WatchedNad, _>(kube::Api::all(client.clone()), &Options::all(), Nad::from)
                .quiet();
        let live = Live::new(client, node);
        Self { live, pods, nads }
    }

    /// What the watch knows of pods.
    pub fn pods(&self) -> Store<Name, Pod> {
        self.pods.store()
    }

    /// What the watch knows of NADs.
    pub fn nads(&self) -> Store<Name, Nad> {
        self.nads.store()
    }

    /// Asks again and again whenever the API server refuses us, until it does not any more. Never ends.
    pub async fn outlast_refusals(&self) {
        loop {
            self.live.refusal.raised().await;
            tracing::error!(
                "the API server refuses this daemon (401 or 403): it answers DEL alone until it is accepted again or replaced"
            );
            loop {
                sleep(REFUSED_PAUSE).await;
                if self.live.access(REFUSED_PATIENCE).await == Access::Kept {
                    break;
                }
            }
            self.live.refusal.end();
            tracing::info!("the API server does not refuse this daemon any more");
        }
    }

    /// Whether the API server still lets us in.
    pub async fn access(&self, patience: Duration) -> Access {
        self.live.access(patience).await
    }
}

impl ClusterView for Cluster {
    async fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Option<Pod>, LookupError> {
        if let Some(pod) = self.pods().get(&Name::new(namespace, name))
            && (pod.is_static || uid.is_none_or(|uid| pod.uid == uid))
        {
            return Ok(Some(pod));
        }
        self.live.pod(namespace, name).await
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        match self.nads().get(&Name::new(namespace, name)) {
            Some(nad) => Ok(nad),
            None => self.live.nad(namespace, name).await,
        }
    }

    async fn read(&self, path: &str) -> Result<String, ReadError> {
        self.live.read(path).await
    }

    fn event(&self, pod: &PodRef, kind: Kind, reason: &'static str, text: String) {
        tokio::spawn(self.live.event(pod, kind, reason, text));
    }

    async fn write_status(&self, pod: &Pod, status: &str) -> Result<(), WriteError> {
        self.live.write_status(pod, status).await
    }

    fn is_refused(&self) -> bool {
        self.live.refusal.is_raised()
    }
}

/// What is read of a pod in a watch: everything else is skipped while parsing.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
struct WatchedPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: serde_json::Value,
}

impl From<WatchedPod> for Pod {
    fn from(pod: WatchedPod) -> Self {
        let WatchedPod {
            metadata,
            spec,
            status,
        } = pod;
        let annotation = |key: &str| {
            metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(key))
                .cloned()
        };
        let waiting = status
            .get("phase")
            .and_then(serde_json::Value::as_str)
            .is_none_or(|phase| phase == "Pending");
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            networks: annotation(NETWORKS_ANNOTATION),
            default_network: annotation(DEFAULT_NETWORK_ANNOTATION),
            is_static: annotation(CONFIG_SOURCE_ANNOTATION).is_some_and(|source| source != "api"),
            is_ending: metadata.deletion_timestamp.is_some(),
            claims: PodClaims::of(spec, &status).map(Arc::new),
            body: waiting
                .then(|| PodBody::from_parts(metadata, &status).ok())
                .flatten()
                .map(Arc::new),
        }
    }
}

/// What is read of a NAD. The API server takes one without `spec`: then its configuration is a file on the node.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = NetworkAttachmentDefinition)]
pub(crate) struct WatchedNad {
    metadata: ObjectMeta,
    spec: Option<NetworkAttachmentDefinitionSpec>,
}

impl From<WatchedNad> for Nad {
    fn from(nad: WatchedNad) -> Self {
        let resource = nad
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(RESOURCE_NAME_ANNOTATION));
        Self {
            config: nad.spec.unwrap_or_default().config.into(),
            resource_name: resource.map(|name| name.as_str().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value::<WatchedPod>(value).unwrap().into()
    }

    #[test]
    fn of_a_running_pod_little_is_kept() {
        let running = pod(
            json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u", "annotations": {
            "k8s.v1.cni.cncf.io/networks": "net1", "other": "x"}},
            "spec": {"containers": []}, "status": {"phase": "Running"}}),
        );
        assert_eq!(running.networks.as_deref(), Some("net1"));
        assert_eq!(running.default_network, None);
        assert!(!running.is_static && running.body.is_none());
    }

    #[test]
    fn of_a_pod_that_has_not_started_a_status_write_knows_enough() {
        let pending = pod(
            json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u"}, "status": {"phase": "Pending"}}),
        );
        assert_eq!(pending.body.unwrap().uid(), "u");
        let fresh = pod(json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u"}}));
        assert!(fresh.body.is_some());
    }

    #[test]
    fn nad_without_spec_has_an_empty_configuration() {
        // multus#113
        for spec in [json!({}), json!({"spec": null}), json!({"spec": {}})] {
            let mut nad =
                json!({"metadata": {"name": "a", "annotations": {RESOURCE_NAME_ANNOTATION: "x/y"}}});
            nad.as_object_mut()
                .unwrap()
                .extend(spec.as_object().cloned().unwrap());
            let nad: Nad = serde_json::from_value::<WatchedNad>(nad).unwrap().into();
            assert_eq!(&*nad.config, "");
            assert_eq!(nad.resource_name.as_deref(), Some("x/y"));
        }
    }

    #[test]
    fn static_pods_are_known_by_their_source() {
        for (source, is_static) in [("file", true), ("http", true), ("api", false)] {
            let value = json!({"metadata": {"annotations": {"kubernetes.io/config.source": source}}});
            assert_eq!(pod(value).is_static, is_static, "{source}");
        }
    }
}
