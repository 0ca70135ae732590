//! `NodeNetworkState`: the observed network state of a node, and in the original design also its desired state (nmstate
//! §2.5, §3.2).

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

/// The network state of the node with the same name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkState {
    /// API version of the object.
    #[serde(default = "NodeNetworkState::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkState::own_kind")]
    pub kind: String,
    /// Metadata of the object.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The desired network state, in the original design. Without it, the object is a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<NodeNetworkStateSpec>,
    /// The observed network state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkStateStatus>,
}

/// The desired network state of a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkStateSpec {
    /// If false, the desired state is not enforced. The default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed: Option<bool>,
    /// Name of the node, which repeats the object's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Document of the desired network state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::nullable_document")]
    pub desired_state: Option<Value>,
}

/// The observed network state of a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkStateStatus {
    /// Document of the observed network state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub current_state: Option<Value>,
    /// Time of the last change of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_update_time: Option<Time>,
    /// Version of the library that created the document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handler_nmstate_version: String,
    /// Version of the node's NetworkManager.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_network_manager_version: String,
    /// Version of a NetworkManager in the handler's image, written by former releases.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handler_network_manager_version: String,
    /// Conditions of the desired network state and of the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the desired state that the conditions refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Fields of other writers.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

resource!(NodeNetworkState, "v1beta1", "nodenetworkstates", spec, status);

/// Returns the definition of the resource in all versions.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
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
            "The desired network state of the node, in the original design. Write access to this field allows to \
             configure the node.",
            "The observed network state of the node.",
        ],
    }
    .of::<NodeNetworkState>()
}
