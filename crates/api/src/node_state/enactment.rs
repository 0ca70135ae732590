//! `NodeNetworkConfigurationEnactment`: what a policy is on one node, and how it went there (nmstate §2.4).

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

/// A policy on one node; its name is that of the node, a dot, and that of the policy.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationEnactment {
    /// Version in which the object is written.
    #[serde(default = "NodeNetworkConfigurationEnactment::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkConfigurationEnactment::own_kind")]
    pub kind: String,
    /// Name, labels and so on.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// How it is going.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkConfigurationEnactmentStatus>,
}

/// How a policy is going on a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationEnactmentStatus {
    /// Document of what is wanted of the node, with everything filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub desired_state: Option<Value>,
    /// Where that document comes from, of former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_state_meta_info: Option<DocumentMetaInfo>,
    /// What the policy's captures found, by name. They are not looked for again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_states: Option<BTreeMap<String, CapturedState>>,
    /// Generation of the policy that the conditions are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_generation: Option<i64>,
    /// Aspects of the state of the policy on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Features of the library that the document uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Failed attempts, by generation of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<BTreeMap<String, i64>>,
    /// What a policy that is only tried would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub diff: Option<Value>,
    /// Whatever else somebody wrote.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

/// What a capture found.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapturedState {
    /// The part of the node's state that was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub state: Option<Value>,
    /// When it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_info: Option<DocumentMetaInfo>,
}

/// Where a document comes from.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct DocumentMetaInfo {
    /// Version of what made the document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// When the document was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

resource!(
    NodeNetworkConfigurationEnactment,
    "v1beta1",
    "nodenetworkconfigurationenactments",
    status
);

/// The definition of the resource in all versions.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    Definition {
        kind: "NodeNetworkConfigurationEnactment",
        singular: "nodenetworkconfigurationenactment",
        plural: "nodenetworkconfigurationenactments",
        short: "nnce",
        versions: &[("v1beta1", false), ("v1alpha1", true)],
        columns: &[STATUS, ("Status Age", "date", "lastTransitionTime"), REASON],
        nullable: &[],
        texts: ["", "How the policy is going on the node."],
    }
    .of::<NodeNetworkConfigurationEnactment>()
}
