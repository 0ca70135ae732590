//! `NodeNetworkConfigurationPolicy`: what the network of some nodes is to be (nmstate §2.3, §3.2).

use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, Time},
        util::intstr::IntOrString,
    },
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Condition,
    definition::{Definition, REASON, STATUS, resource},
};
use crate::Error;

/// What the network of the selected nodes is to be.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkConfigurationPolicy {
    /// Version in which the object is written.
    #[serde(default = "NodeNetworkConfigurationPolicy::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkConfigurationPolicy::own_kind")]
    pub kind: String,
    /// Name, labels and so on.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: NodeNetworkConfigurationPolicySpec,
    /// How it is going.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkConfigurationPolicyStatus>,
}

/// What is wanted of the network of the selected nodes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkConfigurationPolicySpec {
    /// Labels that a node must have, all of them. Without any, the policy is for every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "node_selector")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Expressions over the current state of a node, by name, whose results the desired state may refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<BTreeMap<String, String>>,
    /// Document of what is wanted of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub desired_state: Option<Value>,
    /// How many nodes may be configured at a time: a number, or a percentage of the selected nodes. 50% unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// Original design: among policies of one node, the one with the higher number wins. 0 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Original design: interfaces that nameless entries of the desired state are for.
    #[serde(skip_serializing_if = "Option::is_none", rename = "match")]
    #[schemars(schema_with = "super::anything")]
    pub match_: Option<Value>,
    /// Original design: an earlier spelling of match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::anything")]
    pub match_rules: Option<Value>,
    /// Original design: what is made of the matched interfaces without a desired state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::nullable_document")]
    pub auto_config: Option<Value>,
    /// Original design: an earlier spelling of autoConfig.
    #[serde(skip_serializing_if = "Option::is_none", rename = "autoconfig")]
    #[schemars(schema_with = "super::nullable_document")]
    pub auto_config_lower: Option<Value>,
    /// Earlier design: true is for all nodes at a time, false for one by one. maxUnavailable counts before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<bool>,
}

/// How a policy is going.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationPolicyStatus {
    /// Aspects of the state of the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the policy that the conditions are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many nodes are being configured, by generation of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_node_count_map: Option<BTreeMap<String, i64>>,
    /// How many nodes were being configured, of former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_node_count: Option<i64>,
    /// When that number last changed, of former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_unavailable_node_count_update: Option<Time>,
    /// Whatever else somebody wrote.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string" },
        "maxProperties": 256,
        "x-kubernetes-validations": [{
            "rule": "self.all(k, !format.qualifiedName().validate(k).hasValue())",
            "message": "nodeSelector keys must be valid qualified names",
        }],
    })
}

fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

resource!(
    NodeNetworkConfigurationPolicy,
    "v1",
    "nodenetworkconfigurationpolicies",
    spec,
    status
);

/// The definition of the resource in all versions.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    Definition {
        kind: "NodeNetworkConfigurationPolicy",
        singular: "nodenetworkconfigurationpolicy",
        plural: "nodenetworkconfigurationpolicies",
        short: "nncp",
        versions: &[("v1", false), ("v1beta1", true), ("v1alpha1", true)],
        columns: &[STATUS, REASON],
        nullable: &["autoConfig", "autoconfig"],
        texts: [
            "What the network of the selected nodes is to be.",
            "How the policy is going.",
        ],
    }
    .of::<NodeNetworkConfigurationPolicy>()
}
