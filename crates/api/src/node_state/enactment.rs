//! `NodeNetworkConfigurationEnactment`: the state of a policy on one node (nmstate §2.4).

use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Condition,
    definition::{Definition, REASON, STATUS, resource},
};
use crate::Error;

/// A policy on one node. The name consists of the node's name, a dot, and the policy's name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationEnactment {
    /// API version of the object.
    #[serde(default = "NodeNetworkConfigurationEnactment::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkConfigurationEnactment::own_kind")]
    pub kind: String,
    /// Metadata of the object.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The state of the policy on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkConfigurationEnactmentStatus>,
}

/// The state of a policy on a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationEnactmentStatus {
    /// Document of the node's desired state, after substitutions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub desired_state: Option<Value>,
    /// Origin of that document, written by former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_state_meta_info: Option<DocumentMetaInfo>,
    /// Results of the policy's captures, by name. Captures are not evaluated again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_states: Option<BTreeMap<String, CapturedState>>,
    /// Generation of the policy that the conditions refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_generation: Option<i64>,
    /// Conditions of the policy on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Features of the library that the document uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Failed attempts, by generation of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<BTreeMap<String, i64>>,
    /// Changes that a dry run would apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub diff: Option<Value>,
    /// Fields of other writers.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

/// The result of a capture.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapturedState {
    /// The captured part of the node's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub state: Option<Value>,
    /// Origin and time of the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_info: Option<DocumentMetaInfo>,
}

/// The origin of a document.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct DocumentMetaInfo {
    /// Version of the program that created the document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Creation time of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

resource!(
    NodeNetworkConfigurationEnactment,
    "v1beta1",
    "nodenetworkconfigurationenactments",
    status
);

/// Returns the definition of the resource in all versions.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    Definition {
        kind: "NodeNetworkConfigurationEnactment",
        singular: "nodenetworkconfigurationenactment",
        plural: "nodenetworkconfigurationenactments",
        short: "nnce",
        versions: &[("v1beta1", false), ("v1alpha1", true)],
        columns: &[STATUS, ("Status Age", "date", "lastTransitionTime"), REASON],
        nullable: &[],
        texts: ["", "The state of the policy on the node."],
    }
    .of::<NodeNetworkConfigurationEnactment>()
}
