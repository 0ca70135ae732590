//! The daemon's view of the cluster: trimmed watches of its node's pods and of all NADs, and live reads when a watch
//! is stale or not synchronised. No call waits for a watch: a daemon that has just started uses live reads.

mod live;
pub(crate) mod pod_claims;
mod refusal;

use crate::cluster::pod_claims::{PodClaims, PodSpec};
use crate::sandbox::PodRef;
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
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use live::Live;

/// Interval and timeout of the requests that check whether the API server accepts a refused daemon again.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay of normal events about a pod. Usually its status is written and the runtime has its answer by then: otherwise the
/// API server and this daemon's main thread would work on all of them at the same time.
const EVENT_DELAY: Duration = Duration::from_millis(50);

/// Kubelet's annotation that names the source of a static pod.
const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// The fields of a pod that multus uses.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// `k8s.v1.cni.cncf.io/networks`.
    pub networks: Option<String>,
    /// `v1.multus-cni.io/default-network`.
    pub default_network: Option<String>,
    /// Whether it is a static pod: its UID in the API differs from kubelet's.
    pub is_static: bool,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// Its resource claims, if it has any.
    pub claims: Option<Arc<PodClaims>>,
    /// The object for the status write. Only for pods that have not started; other pods are read again.
    pub body: Option<Arc<PodBody>>,
}

/// The access that the API server grants this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Granted, or unknown because the API server does not answer.
    Kept,
    /// Authenticated but not authorised (403).
    Forbidden,
    /// Not authenticated (401).
    Unknown,
}

/// A NetworkAttachmentDefinition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nad {
    /// `spec.config`; empty when the configuration is a file on the node.
    pub config: Arc<str>,
    /// The device plugin resource that it names.
    pub resource_name: Option<Arc<str>>,
}

/// A lookup failed. The text is the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

/// A read failed. The text is the API server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No such object or kind.
    #[error("{0}")]
    NotFound(String),
    /// Not authorised.
    #[error("{0}")]
    Forbidden(String),
    /// Any other error.
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

/// The operations on the cluster that attaching a pod needs.
pub trait ClusterView: Send + Sync {
    /// The pod, or `None` when the API server has none. When `uid` is given and the watch has another one, the pod is
    /// read live.
    fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> impl Future<Output = Result<Option<Pod>, LookupError>> + Send;

    /// The NAD; a missing one is an error.
    fn nad(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Nad, LookupError>> + Send;

    /// Reads an object or list by its path. Returns the API server's text.
    fn read(&self, path: &str) -> impl Future<Output = Result<String, ReadError>> + Send;

    /// Publishes an event about a pod in the background.
    fn event(&self, pod: &PodRef, kind: Kind, reason: &'static str, text: String);

    /// Writes the network status of a pod. A pod that is gone is no error.
    fn write_status(&self, pod: &Pod, status: &str) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Prepares for a status write that follows within milliseconds. Does not wait.
    fn expect_write(&self) {}

    /// Whether the API server refuses this process (401). Then no pod can be attached.
    fn is_refused(&self) -> bool {
        false
    }
}

/// The status of a pod cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another pod has that name now.
    #[error(
        "SetNetworkStatus: expected pod {namespace}/{name} UID \"{expected}\" but got \"{found}\" from Kube API"
    )]
    OtherPod {
        /// Namespace of both.
        namespace: String,
        /// Name of both.
        name: String,
        /// The expected UID.
        expected: String,
        /// The actual UID.
        found: String,
    },
    /// The request failed.
    #[error(
        "SetNetworkStatus: failed to update the pod {name} in out of cluster comm: status update failed for pod {namespace}/{name}: {cause}"
    )]
    Failed {
        /// Namespace of the pod.
        namespace: String,
        name: String,
        /// The API server's message.
        cause: String,
    },
}

/// The cluster, by watches and live reads.
pub(crate) struct Cluster {
    live: Live,
    pods: Watch<Name, Pod>,
    nads: Watch<Name, Nad>,
    /// Events that are not published yet.
    events: Mutex<JoinSet<()>>,
}

impl Cluster {
    /// Starts to watch the pods of `node` (all pods without one) and all NADs. Does not wait. Needs a running tokio
    /// runtime.
    pub(crate) fn start(client: Client, node: Option<&str>) -> Self {
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
        Self {
            live,
            pods,
            nads,
            events: Mutex::default(),
        }
    }

    /// The cache of pods.
    pub(crate) fn pods(&self) -> Store<Name, Pod> {
        self.pods.store()
    }

    /// The cache of NADs.
    pub(crate) fn nads(&self) -> Store<Name, Nad> {
        self.nads.store()
    }

    /// Waits until all events are published.
    pub(crate) async fn flush_events(&self) {
        let mut events = mem::take(&mut *kube_kit::lock(&self.events));
        while events.join_next().await.is_some() {}
    }

    /// Whenever the API server refuses this process, polls until it accepts it again. Never returns.
    pub(crate) async fn recover_from_refusals(&self) {
        loop {
            self.live.refusal.raised().await;
            tracing::error!(
                "the API server refuses this daemon (401 or 403): it serves only DEL until it is accepted again or replaced"
            );
            loop {
                sleep(REFUSED_PAUSE).await;
                if self.live.access(REFUSED_TIMEOUT).await == Access::Kept {
                    break;
                }
            }
            self.live.refusal.end();
            tracing::info!("the API server accepts this daemon again");
        }
    }

    /// The access that the API server grants this process now.
    pub(crate) async fn access(&self, limit: Duration) -> Access {
        self.live.access(limit).await
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
        let delay = match kind {
            Kind::Normal => EVENT_DELAY,
            Kind::Warning => Duration::ZERO,
        };
        let event = self.live.event(pod, kind, reason, text);
        let mut events = kube_kit::lock(&self.events);
        while events.try_join_next().is_some() {}
        events.spawn(async move {
            sleep(delay).await;
            event.await;
        });
    }

    async fn write_status(&self, pod: &Pod, status: &str) -> Result<(), WriteError> {
        self.live.write_status(pod, status).await
    }

    fn expect_write(&self) {
        if let Some(request) = self.live.warm_up() {
            tokio::spawn(request);
        }
    }

    fn is_refused(&self) -> bool {
        self.live.refusal.is_raised()
    }
}

/// The fields of a watched pod; all others are skipped while parsing.
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

/// The fields of a watched NAD. `spec` may be missing: then the configuration is a file on the node.
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
    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value::<WatchedPod>(value).unwrap().into()
    }

    #[test]
    fn running_pod_is_cached_without_body() {
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
    fn pending_pod_is_cached_with_body() {
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

    /// An API server that accepts all writes and has no lists, and the methods of the writes.
    fn server() -> (Client, Arc<Mutex<Vec<Method>>>) {
        let written = Arc::<Mutex<Vec<Method>>>::default();
        let log = Arc::clone(&written);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_write = request.method() != Method::GET;
            if is_write {
                kube_kit::lock(&log).push(request.method().clone());
            }
            async move {
                let answer = json!({"kind": "Status", "metadata": {}});
                Response::builder()
                    .status(if is_write { 200 } else { 404 })
                    .body(Body::from(answer.to_string().into_bytes()))
            }
        });
        (Client::new(service, "default"), written)
    }

    #[tokio::test(start_paused = true)]
    async fn status_is_written_before_the_event_of_an_attached_network_and_after_that_of_a_failure() {
        let (client, written) = server();
        let cluster = Cluster::start(client, None);
        let pod = pod(json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u"}}));
        let named = PodRef {
            namespace: "ns".into(),
            name: "a".into(),
            uid: Some("u".into()),
        };
        for (kind, expected) in [
            (Kind::Normal, [Method::PUT, Method::POST]),
            (Kind::Warning, [Method::POST, Method::PUT]),
        ] {
            cluster.event(&named, kind, "Reason", "text".into());
            tokio::task::yield_now().await;
            cluster.write_status(&pod, "[]").await.unwrap();
            cluster.flush_events().await;
            assert_eq!(mem::take(&mut *kube_kit::lock(&written)), expected, "{kind:?}");
        }
    }

    #[test]
    fn static_pod_is_recognised_by_source() {
        for (source, is_static) in [("file", true), ("http", true), ("api", false)] {
            let value = json!({"metadata": {"annotations": {"kubernetes.io/config.source": source}}});
            assert_eq!(pod(value).is_static, is_static, "{source}");
        }
    }
}
