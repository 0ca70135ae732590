//! What is known of a pod and its networks, as the API server has it.

use crate::cluster::{ClusterView, LookupError, Nad, Pod, ReadError, WriteError};
use crate::net_conf::MultusConfig;
use crate::request::PodRef;
use cni::names::{DEFAULT_NETWORK_ANNOTATION, NETWORK_STATUS_ANNOTATION, NETWORKS_ANNOTATION};
use kube_kit::events::Kind;
use kube_kit::watch::Name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A pod, as far as its networks are concerned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodObject {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) node_name: String,
    pub(super) host_network: bool,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
    pub(super) resource_claims: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    pub(super) resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    pub(super) requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) phase: String,
}

impl PodObject {
    pub(super) fn networks(&self) -> Option<&str> {
        self.annotation(NETWORKS_ANNOTATION)
    }

    pub(super) fn default_network(&self) -> Option<&str> {
        self.annotation(DEFAULT_NETWORK_ANNOTATION)
    }

    pub(super) fn network_status(&self) -> Option<&str> {
        self.annotation(NETWORK_STATUS_ANNOTATION)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    /// How many devices of a resource the pod has: its containers' together, or what one of those asks for that
    /// initialise it, whichever is more.
    pub(super) fn requests(&self, resource: &str) -> u64 {
        // Devices are whole, and so are the counts of them.
        let of = |container: &Container| {
            let count = container.resources.requests.get(resource);
            count.and_then(|count| count.parse().ok()).unwrap_or(0)
        };
        let together = self.spec.containers.iter().map(of).sum();
        let first = self.spec.init_containers.iter().map(of).max();
        first.unwrap_or(0).max(together)
    }
}

/// An event about the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    /// When it happened last, RFC 3339.
    pub(super) time: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// Who says so.
    pub(super) source: String,
}

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) pod: PodObject,
    /// Multus' own configuration, as far as it is known.
    pub(super) config: MultusConfig,
    /// The namespace of the ConfigMap that says so, or why there is none.
    pub(super) config_from: Result<String, String>,
    /// The definitions that pod and multus name.
    pub(super) nads: BTreeMap<Name, Result<Nad, LookupError>>,
    /// Those that may not be read: whether they are there is not known.
    pub(super) forbidden: BTreeSet<Name>,
    /// Whether the cluster knows of such definitions at all.
    pub(super) has_nads: bool,
    /// The newest last.
    pub(super) events: Vec<Event>,
    pub(super) notes: Vec<String>,
}

/// The resolver finds here what was read before. Nothing is written.
impl ClusterView for Facts {
    async fn pod(&self, _: &str, _: &str, _: Option<&str>) -> Result<Option<Pod>, LookupError> {
        Ok(None)
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        let found = self.nads.get(&Name::new(namespace, name));
        found
            .cloned()
            .unwrap_or_else(|| Err(LookupError("it was not looked for".into())))
    }

    async fn read(&self, _: &str) -> Result<String, ReadError> {
        Err(ReadError::Other("it was not looked for".into()))
    }

    fn event(&self, _: &PodRef, _: Kind, _: &'static str, _: String) {}

    async fn write_status(&self, _: &Pod, _: &str) -> Result<(), WriteError> {
        Ok(())
    }
}
