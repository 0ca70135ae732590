//! The API server's state of a pod and its networks.

use crate::cluster::{ClusterView, LookupError, Nad, Pod, ReadError, WriteError};
use crate::networks::net_conf::MultusConfig;
use crate::sandbox::PodRef;
use cni::names::{DEFAULT_NETWORK_ANNOTATION, NETWORK_STATUS_ANNOTATION, NETWORKS_ANNOTATION};
use kube_kit::events::Kind;
use kube_kit::watch::Name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of a pod that concern its networks.
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

    /// How many devices of a resource the pod requests: the sum over its containers, or the maximum of its init
    /// containers, whichever is higher.
    pub(super) fn requests(&self, resource: &str) -> u64 {
        // Counts of devices are whole numbers.
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
    /// Time of the last occurrence, RFC 3339.
    pub(super) time: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) source: String,
}

/// All observed state.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) pod: PodObject,
    /// Multus' own configuration, or its defaults.
    pub(super) config: MultusConfig,
    /// The namespace of the configuration's ConfigMap, or the error.
    pub(super) config_from: Result<String, String>,
    /// The definitions that pod and multus refer to.
    pub(super) nads: BTreeMap<Name, Result<Nad, LookupError>>,
    /// The definitions that the user may not read.
    pub(super) forbidden: BTreeSet<Name>,
    /// Whether the API server serves `NetworkAttachmentDefinitions`.
    pub(super) has_nads: bool,
    /// Oldest first.
    pub(super) events: Vec<Event>,
    pub(super) notes: Vec<String>,
}

/// A view of the gathered state for the resolver. Writes nothing.
impl ClusterView for Facts {
    async fn pod(&self, _: &str, _: &str, _: Option<&str>) -> Result<Option<Pod>, LookupError> {
        Ok(None)
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        let found = self.nads.get(&Name::new(namespace, name));
        found
            .cloned()
            .unwrap_or_else(|| Err(LookupError("it was not gathered".into())))
    }

    async fn read(&self, _: &str) -> Result<String, ReadError> {
        Err(ReadError::Other("it was not gathered".into()))
    }

    fn event(&self, _: &PodRef, _: Kind, _: &'static str, _: String) {}

    async fn write_status(&self, _: &Pod, _: &str) -> Result<(), WriteError> {
        Ok(())
    }
}
