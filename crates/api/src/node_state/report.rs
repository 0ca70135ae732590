//! `NodeNetworkState`: what the network of a node is; in the original design also what it is to be (nmstate §2.5, §3.2).

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Condition,
    definition::{Definition, resource},
};
use crate::Error;

/// The network of the node of the same name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkState {
    /// Version in which the object is written.
    #[serde(default = "NodeNetworkState::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkState::own_kind")]
    pub kind: String,
    /// Name, labels and so on.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// What the network is to be, as the original design has it. Without it the object is a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<NodeNetworkStateSpec>,
    /// What the network is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkStateStatus>,
}

/// What the network of a node is to be.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkStateSpec {
    /// Whether the desired state is enforced; it is unless this says false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<bool>,
    /// The node, if it is said again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Document of what is wanted of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::nullable_document")]
    pub desired_state: Option<Value>,
}

/// What the network of a node is.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkStateStatus {
    /// Document of the network as it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub current_state: Option<Value>,
    /// When the document last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_update_time: Option<Time>,
    /// Version of the library that made the document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handler_nmstate_version: String,
    /// Version of the node's NetworkManager.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_network_manager_version: String,
    /// Version of a NetworkManager in the handler's image, of former releases.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handler_network_manager_version: String,
    /// How what is wanted of the network is going, and what is wrong with the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the wish that the conditions are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whatever else somebody wrote.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

resource!(NodeNetworkState, "v1beta1", "nodenetworkstates", spec, status);

/// The definition of the resource in all versions.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    Definition {
        kind: "NodeNetworkState",
        singular: "nodenetworkstate",
        plural: "nodenetworkstates",
        short: "nns",
        versions: &[("v1beta1", false), ("v1", false), ("v1alpha1", true)],
        columns: &[],
        nullable: &["desiredState"],
        texts: [
            "What the network of the node is to be, as the original design has it. Who may write this may configure \
             the node.",
            "What the network of the node is.",
        ],
    }
    .of::<NodeNetworkState>()
}
