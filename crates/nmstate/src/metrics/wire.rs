//! Partial types of the objects: other fields are not even parsed. A node's state may exceed a megabyte, of which the
//! metrics need a few bytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::names;

/// A node's report.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkState)]
pub(crate) struct NodeNetworkState {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    pub(super) status: Option<StateStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateStatus {
    pub(super) current_state: Option<State>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct State {
    pub(super) interfaces: Option<Vec<Interface>>,
    pub(super) routes: Option<Routes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Interface {
    #[serde(rename = "type")]
    pub(super) kind: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Routes {
    pub(super) running: Option<Vec<Route>>,
    pub(super) config: Option<Vec<Route>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Route {
    destination: Option<Box<str>>,
}

impl Route {
    /// Destination as written.
    pub(super) fn destination(&self) -> &str {
        self.destination.as_deref().unwrap_or_default()
    }
}

/// A policy.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkConfigurationPolicy)]
pub(crate) struct NodeNetworkConfigurationPolicy {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    pub(super) status: Option<PolicyStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PolicyStatus {
    pub(super) conditions: Option<Vec<Condition>>,
}

/// An enactment.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkConfigurationEnactment)]
pub(crate) struct NodeNetworkConfigurationEnactment {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    pub(super) status: Option<EnactmentStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct EnactmentStatus {
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) features: Option<Vec<Box<str>>>,
}

impl NodeNetworkConfigurationEnactment {
    /// Node of the label.
    pub(super) fn node(&self) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(names::NODE_LABEL).map(String::as_str)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: Option<Box<str>>,
    pub(super) status: Option<Box<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    resource_version: Option<String>,
    labels: Option<Labels>,
}

#[derive(Deserialize)]
struct Labels {
    #[serde(rename = "nmstate.io/node")]
    node: Option<String>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    let node = metadata.labels.and_then(|labels| labels.node);
    Ok(ObjectMeta {
        name: metadata.name,
        resource_version: metadata.resource_version,
        labels: node.map(|node| [(names::NODE_LABEL.to_owned(), node)].into()),
        ..ObjectMeta::default()
    })
}
