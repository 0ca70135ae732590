//! `NodeNetworkConfigurationPolicy`: the desired network state of selected nodes (nmstate §2.3, §3.2).

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

/// The desired network state of the selected nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkConfigurationPolicy {
    /// API version of the object.
    #[serde(default = "NodeNetworkConfigurationPolicy::own_api_version")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default = "NodeNetworkConfigurationPolicy::own_kind")]
    pub kind: String,
    /// Metadata of the object.
    #[serde(default)]
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: NodeNetworkConfigurationPolicySpec,
    /// The state of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeNetworkConfigurationPolicyStatus>,
}

/// The desired network state of the selected nodes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkConfigurationPolicySpec {
    /// Labels that a node must have. Without labels, the policy selects every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "node_selector")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Expressions over the current state of a node, by name. The desired state may refer to their results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<BTreeMap<String, String>>,
    /// Document of the desired network state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::document")]
    pub desired_state: Option<Value>,
    /// Maximum number of nodes that are configured at a time: a number, or a percentage of the selected nodes. The
    /// default is 50%.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// Original design: among policies of one node, the policy with the highest number wins. The default is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Original design: the interfaces that unnamed entries of the desired state refer to.
    #[serde(skip_serializing_if = "Option::is_none", rename = "match")]
    #[schemars(schema_with = "super::anything")]
    pub match_: Option<Value>,
    /// Original design: a former name of match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::anything")]
    pub match_rules: Option<Value>,
    /// Original design: the automatic configuration of matched interfaces without a desired state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::nullable_document")]
    pub auto_config: Option<Value>,
    /// Original design: a former name of autoConfig.
    #[serde(skip_serializing_if = "Option::is_none", rename = "autoconfig")]
    #[schemars(schema_with = "super::nullable_document")]
    pub auto_config_lower: Option<Value>,
    /// Earlier design: true configures all nodes at a time, and false one after the other. maxUnavailable takes
    /// precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<bool>,
}

/// The state of a policy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeNetworkConfigurationPolicyStatus {
    /// Conditions of the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the policy that the conditions refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of nodes that are being configured, by generation of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_node_count_map: Option<BTreeMap<String, i64>>,
    /// Number of nodes that are being configured, written by former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_node_count: Option<i64>,
    /// Time of the last change of that number, written by former releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_unavailable_node_count_update: Option<Time>,
    /// Fields of other writers.
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

/// Returns the definition of the resource in all versions.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
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
            "The desired network state of the selected nodes.",
            "The state of the policy.",
        ],
    }
    .of::<NodeNetworkConfigurationPolicy>()
}
