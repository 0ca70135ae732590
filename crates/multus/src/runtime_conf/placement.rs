//! Decides whether a DaemonSet places a pod on a node, as the DaemonSet controller does, for a daemon at its end.
//!
//! The answer is no only when it is certain. Unknown features of later Kubernetes versions count as yes: then the
//! node keeps multus' configuration.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The only field of a node that selectors may use.
const NODE_NAME_FIELD: &str = "metadata.name";
/// Prefix of taints by node conditions, which the DaemonSet controller's pods tolerate.
const CONDITION_TAINTS: &str = "node.kubernetes.io/";

/// The fields of a DaemonSet that decide where its pods run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DaemonSet {
    metadata: ObjectMeta,
    spec: DaemonSetSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DaemonSetSpec {
    template: Template,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: Placement,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Placement {
    node_name: String,
    node_selector: BTreeMap<String, String>,
    affinity: Affinity,
    tolerations: Vec<Toleration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// The fields of a node that decide which pods run there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    metadata: ObjectMeta,
    spec: NodeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

impl DaemonSet {
    /// Whether the controller would create a pod on this node. A DaemonSet under deletion places none.
    pub(crate) fn wants(&self, node: &Node) -> bool {
        let Placement {
            node_name,
            node_selector,
            affinity,
            tolerations,
        } = &self.spec.template.spec;
        let required = &affinity
            .node_affinity
            .required_during_scheduling_ignored_during_execution;
        let tolerated = |taint: &Taint| tolerations.iter().any(|toleration| tolerates(toleration, taint));
        self.metadata.deletion_timestamp.is_none()
            && (node_name.is_empty() || node_name == node.name())
            && node_selector
                .iter()
                .all(|(key, value)| node.label(key) == Some(value.as_str()))
            && required.as_ref().is_none_or(|selector| {
                let mut terms = selector.node_selector_terms.iter();
                terms.any(|term| node.matches(term))
            })
            && node
                .spec
                .taints
                .iter()
                .all(|taint| !keeps_pods_away(taint) || tolerated(taint))
    }
}

impl Node {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn label(&self, key: &str) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    fn field(&self, key: &str) -> Option<&str> {
        (key == NODE_NAME_FIELD).then(|| self.name())
    }

    /// Whether all requirements of a term hold. An empty term matches no node.
    fn matches(&self, term: &NodeSelectorTerm) -> bool {
        let labels = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        !(labels.is_empty() && fields.is_empty())
            && labels.iter().all(|needed| meets(self.label(&needed.key), needed))
            && fields.iter().all(|needed| meets(self.field(&needed.key), needed))
    }
}

fn meets(found: Option<&str>, needed: &NodeSelectorRequirement) -> bool {
    let values = needed.values.as_deref().unwrap_or_default();
    let is_listed = found.is_some_and(|found| values.iter().any(|value| value == found));
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().and_then(|value| number(value));
    let compared = found.and_then(number).zip(bound);
    match needed.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compared.is_some_and(|(found, bound)| found > bound),
        "Lt" => compared.is_some_and(|(found, bound)| found < bound),
        _ => true,
    }
}

fn keeps_pods_away(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !taint.key.starts_with(CONDITION_TAINTS)
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let covers = |wanted: Option<&str>, found: &str| {
        let wanted = wanted.unwrap_or_default();
        wanted.is_empty() || wanted == found
    };
    covers(toleration.effect.as_deref(), &taint.effect)
        && covers(toleration.key.as_deref(), &taint.key)
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            Some(_) => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(taints: &Value) -> Node {
        let node = json!({"metadata": {"name": "node01", "labels": {"zone": "a", "cpus": "8"}},
            "spec": {"taints": taints}});
        serde_json::from_value(node).unwrap()
    }

    fn wants(placement: &Value, taints: &Value) -> bool {
        let set = json!({"metadata": {"name": "multus"}, "spec": {"template": {"spec": placement}}});
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        set.wants(&node(taints))
    }

    fn affine(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn node_selector_must_match_all_labels() {
        // multus#114
        let selects = |selector: &Value| wants(&json!({"nodeSelector": selector}), &json!([]));
        assert!(wants(&json!({}), &json!([])));
        assert!(selects(&json!({"zone": "a", "cpus": "8"})));
        assert!(!selects(&json!({"zone": "b"})));
        assert!(!selects(&json!({"zone": "a", "gpu": "yes"})));
        assert!(wants(&json!({"nodeName": "node01"}), &json!([])));
        assert!(!wants(&json!({"nodeName": "node02"}), &json!([])));
    }

    #[test]
    fn one_term_of_the_affinity_must_match() {
        // multus#114
        let one = |key: &str, operator: &str, values: &Value| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            wants(&affine(&json!([{"matchExpressions": [expression]}])), &json!([]))
        };
        for (key, operator, values, is_wanted) in [
            ("zone", "In", json!(["a", "b"]), true),
            ("zone", "In", json!(["b"]), false),
            ("gpu", "In", json!(["yes"]), false),
            ("zone", "NotIn", json!(["b"]), true),
            ("zone", "NotIn", json!(["a"]), false),
            ("gpu", "NotIn", json!(["yes"]), true),
            ("zone", "Exists", json!([]), true),
            ("gpu", "Exists", json!([]), false),
            ("gpu", "DoesNotExist", json!([]), true),
            ("zone", "DoesNotExist", json!([]), false),
            ("cpus", "Gt", json!(["7"]), true),
            ("cpus", "Gt", json!(["8"]), false),
            ("cpus", "Lt", json!(["9"]), true),
            ("zone", "Lt", json!(["9"]), false),
            ("zone", "Resembles", json!(["b"]), true),
        ] {
            assert_eq!(
                one(key, operator, &values),
                is_wanted,
                "{key} {operator} {values}"
            );
        }
        let is_a = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let is_b = json!({"key": "zone", "operator": "In", "values": ["b"]});
        let wanted = |terms: &Value| wants(&affine(terms), &json!([]));
        assert!(wanted(
            &json!([{"matchExpressions": [is_b]}, {"matchExpressions": [is_a]}])
        ));
        assert!(!wanted(&json!([{"matchExpressions": [is_a, is_b]}])));
        assert!(!wanted(&json!([{}])), "an empty term matches nothing");
        let field = |name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        assert!(wanted(&field("node01")));
        assert!(!wanted(&field("node02")));
    }

    #[test]
    fn taints_must_be_tolerated() {
        // multus#114
        let taint = |effect: &str| json!([{"key": "team", "value": "x", "effect": effect}]);
        let tolerating =
            |toleration: &Value, effect: &str| wants(&json!({"tolerations": [toleration]}), &taint(effect));
        for effect in ["NoSchedule", "NoExecute"] {
            assert!(!wants(&json!({}), &taint(effect)), "{effect}");
            assert!(tolerating(&json!({"operator": "Exists"}), effect));
            assert!(tolerating(&json!({"key": "team", "value": "x"}), effect));
            assert!(tolerating(
                &json!({"key": "team", "operator": "Exists", "effect": effect}),
                effect
            ));
            assert!(!tolerating(&json!({"key": "team", "value": "y"}), effect));
            assert!(!tolerating(
                &json!({"key": "other", "operator": "Exists"}),
                effect
            ));
            assert!(!tolerating(
                &json!({"operator": "Exists", "effect": "PreferNoSchedule"}),
                effect
            ));
        }
        assert!(wants(&json!({}), &taint("PreferNoSchedule")));
        let condition = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]);
        assert!(wants(&json!({}), &condition));
    }

    #[test]
    fn daemon_set_under_deletion_places_no_pod() {
        // multus#114
        let set = json!({"metadata": {"name": "multus", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        assert!(!set.wants(&node(&json!([]))));
    }
}
