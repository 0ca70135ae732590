//! Placement of the operator's workloads: the scheduling fields of pods that the custom resource accepts (operator
//! §1.1). The API server prunes other fields.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scheduling constraints of a group of workloads. They replace all defaults, so that an empty object means no
/// constraints.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Required labels of nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules that attract the pods to nodes and other pods, or separate them.
    pub affinity: Affinity,
    /// Tolerations of the pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// Rules that attract pods to nodes and other pods, or separate them.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Rules for node labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Rules that place pods near other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// Rules that separate pods from other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// Rules for node labels.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// Weighted preferences. The scheduler prefers the node with the highest sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<PreferredSchedulingTerm>,
    /// Requirements that a node must meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// A preference for nodes by their labels.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct PreferredSchedulingTerm {
    /// The preferred nodes.
    pub preference: NodeSelectorTerm,
    /// Weight of the preference, from 1 to 100.
    pub weight: i32,
}

/// Alternatives. A node must match at least one of them.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// The alternatives.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all match. An empty term matches no node.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements for the labels of a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// Requirements for the fields of a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<Requirement>,
}

/// A requirement for a key.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Requirement {
    /// The key.
    pub key: String,
    /// Operator: In, `NotIn`, Exists, `DoesNotExist`, and for nodes also Gt and Lt.
    pub operator: String,
    /// Values of the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Rules for pods in the same topology domain.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    /// Weighted preferences. The scheduler prefers the node with the highest sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    /// Requirements that must all match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
}

/// A preference for pods in the same topology domain.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightedPodAffinityTerm {
    /// The preferred pods.
    pub pod_affinity_term: PodAffinityTerm,
    /// Weight of the preference, from 1 to 100.
    pub weight: i32,
}

/// Pods, and their topology domain.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Namespaces of the pods. By default, the namespace of the pod itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Node label whose value identifies the topology domain.
    pub topology_key: String,
}

/// A selection of pods by labels. All requirements must match.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Requirements for labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// Required labels with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// A taint that the pods tolerate.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Empty matches all effects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// Key of the taint. Empty matches all keys.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Operator of key and value: Equal, which is the default, or Exists.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// Seconds for which a `NoExecute` taint is tolerated. By default, without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}
