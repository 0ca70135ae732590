//! Where the operator's workloads may run: the part of a pod's scheduling fields that the custom
//! resource accepts (operator §1.1). What is not listed here, the API server prunes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scheduling constraints of a group of workloads. They replace the defaults entirely, so that an
/// empty object means no constraints.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Labels that a node must have for the pods to be scheduled there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules that attract the pods to nodes and other pods or keep them away.
    pub affinity: Affinity,
    /// Taints that the pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// Rules that attract pods to nodes and other pods or keep them away.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Rules about the labels of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Rules that put pods beside other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// Rules that keep pods apart from other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// Rules about the labels of nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// Wishes, by weight; the scheduler prefers the node with the highest sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<PreferredSchedulingTerm>,
    /// Requirements that a node must meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// A wish about the labels of a node.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct PreferredSchedulingTerm {
    /// Nodes that are preferred.
    pub preference: NodeSelectorTerm,
    /// Weight of the wish, from 1 to 100.
    pub weight: i32,
}

/// Alternatives, one of which a node must meet.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// The alternatives.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that all must hold; an empty term matches no node.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements on the labels of a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// Requirements on the fields of a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<Requirement>,
}

/// One requirement on a key.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Requirement {
    /// Key that the requirement is about.
    pub key: String,
    /// How key and values relate: In, `NotIn`, Exists, `DoesNotExist`, and for nodes also Gt and Lt.
    pub operator: String,
    /// Values, according to the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Rules about pods that run in the same topology domain.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    /// Wishes, by weight; the scheduler prefers the node with the highest sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    /// Requirements that all must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
}

/// A wish about pods in the same topology domain.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightedPodAffinityTerm {
    /// Pods that the wish is about.
    pub pod_affinity_term: PodAffinityTerm,
    /// Weight of the wish, from 1 to 100.
    pub weight: i32,
}

/// Pods, and the domain in which being beside them counts.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Namespaces of the pods; none means the namespace of the pod itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Node label whose equal values make up one domain.
    pub topology_key: String,
}

/// A choice of pods by their labels; all requirements must hold.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Requirements on labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// Labels and the values that they must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// A taint that the pods tolerate.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`; empty means all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// Key of the taint; empty means all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How the key relates to the value: Equal, which is the default, or Exists.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// For how many seconds a `NoExecute` taint is tolerated; without it, for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}
