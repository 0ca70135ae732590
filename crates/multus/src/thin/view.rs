//! The cluster for one thin-mode call: live reads, with a lazily created client, or no cluster at all.

use crate::cluster::{ClusterView, Live, LookupError, Nad, Pod, ReadError, WriteError};
use crate::names;
use crate::sandbox::PodRef;
use kube_kit::client::{chain, client_from};
use kube_kit::events::Kind;
use std::env;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Error of a lookup without a cluster.
const NO_CLUSTER: &str = "must have either Kubernetes config or delegates";
/// Environment variables of a process in a cluster.
const IN_CLUSTER: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// Limit of the wait for events at the end of a call.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The cluster of a kubeconfig, or of this process' pod, or none.
pub(super) struct View {
    kubeconfig: Option<PathBuf>,
    live: OnceCell<Option<Live>>,
    events: Mutex<JoinSet<()>>,
}

impl View {
    pub(super) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig,
            live: OnceCell::new(),
            events: Mutex::default(),
        }
    }

    /// Creates the client once. `None` without Kubernetes. Sends no request.
    pub(super) async fn connect(&self) -> Result<Option<&Live>, LookupError> {
        let live = self.live.get_or_try_init(async || {
            let in_cluster = || {
                IN_CLUSTER
                    .iter()
                    .all(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
            };
            if self.kubeconfig.is_none() && !in_cluster() {
                return Ok(None);
            }
            let client = client_from(names::COMPONENT, self.kubeconfig.as_deref()).await;
            let client = client.map_err(|error| LookupError(chain(&error)))?;
            let node = env::var(names::NODE_NAME).ok();
            Ok(Some(Live::new(client, node.as_deref())))
        });
        live.await.map(Option::as_ref)
    }

    async fn cluster(&self) -> Result<&Live, LookupError> {
        self.connect()
            .await?
            .ok_or_else(|| LookupError(NO_CLUSTER.into()))
    }

    /// Waits until the events are published, because the process ends afterwards.
    pub(super) async fn flush_events(&self) {
        let mut events = std::mem::take(&mut *kube_kit::lock(&self.events));
        let published = async { while events.join_next().await.is_some() {} };
        // Best effort: the runtime waits.
        let _ = timeout(EVENT_TIMEOUT, published).await;
    }
}

impl ClusterView for View {
    /// Without Kubernetes, or for a sandbox without a pod, returns a pod without requested networks.
    async fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Option<Pod>, LookupError> {
        match self.connect().await? {
            Some(live) if !name.is_empty() => live.pod(namespace, name).await,
            _ => Ok(Some(Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: uid.unwrap_or_default().to_owned(),
                ..Pod::default()
            })),
        }
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        self.cluster().await?.nad(namespace, name).await
    }

    async fn read(&self, path: &str) -> Result<String, ReadError> {
        let cluster = self.cluster().await;
        cluster
            .map_err(|error| ReadError::Other(error.0))?
            .read(path)
            .await
    }

    fn event(&self, pod: &PodRef, kind: Kind, reason: &'static str, text: String) {
        if pod.name.is_empty() {
            return;
        }
        if let Some(Some(live)) = self.live.get() {
            let event = live.event(pod, kind, reason, text);
            kube_kit::lock(&self.events).spawn(event);
        }
    }

    async fn write_status(&self, pod: &Pod, status: &str) -> Result<(), WriteError> {
        match self.live.get() {
            Some(Some(live)) if !pod.name.is_empty() => live.write_status(pod, status).await,
            _ => Ok(()),
        }
    }
}
