//! Objects as far as the metrics look at them: what is left out is not even read. A node's state may have a megabyte, and
//! some bytes of it count.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::names;

/// What a node's network is.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkState)]
pub struct NodeNetworkState {
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
    /// Where it leads, as it is written.
    pub(super) fn destination(&self) -> &str {
        self.destination.as_deref().unwrap_or_default()
    }
}

/// What nodes' networks are to be.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkConfigurationPolicy)]
pub struct NodeNetworkConfigurationPolicy {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    pub(super) status: Option<PolicyStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PolicyStatus {
    pub(super) conditions: Option<Vec<Condition>>,
}

/// What a node makes of a policy.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkConfigurationEnactment)]
pub struct NodeNetworkConfigurationEnactment {
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
    /// The node that a label names.
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
