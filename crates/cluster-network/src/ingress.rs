//! Labels with which network policies allow ingress traffic from the host's network (§17.1).

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub mod controller;

/// Labels of the namespace of the host's network, while the default ingress controller is published on that network.
const LABELS: [(&str, &str); 2] = [
    ("policy-group.network.openshift.io/ingress", ""),
    ("network.openshift.io/policy-group", "ingress"),
];

/// True if an ingress controller is published on the host's network: the value of
/// `status.endpointPublishingStrategy.type`.
pub fn is_on_host(strategy: &str) -> bool {
    strategy == "HostNetwork"
}

/// Merge patch for the namespace with these labels. `None` if nothing changes.
pub fn patch(labels: &BTreeMap<String, String>, is_on_host: bool) -> Option<Value> {
    let mut changes = serde_json::Map::new();
    for (key, value) in LABELS {
        let has = labels.get(key).map(String::as_str);
        if is_on_host && has != Some(value) {
            changes.insert(key.to_owned(), json!(value));
        }
        if !is_on_host && has.is_some() {
            changes.insert(key.to_owned(), Value::Null);
        }
    }
    (!changes.is_empty()).then(|| json!({ "metadata": { "labels": changes } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_labels_follow_the_strategy() {
        let none = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let added = patch(&none, is_on_host("HostNetwork"));
        assert_eq!(
            added,
            Some(json!({ "metadata": { "labels": {
                "policy-group.network.openshift.io/ingress": "", "network.openshift.io/policy-group": "ingress",
            } } }))
        );
        let both: BTreeMap<_, _> = LABELS
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(patch(&both, true), None);
        assert_eq!(patch(&none, false), None);
        let removed = patch(&both, is_on_host("LoadBalancerService"));
        assert_eq!(
            removed,
            Some(json!({ "metadata": { "labels": {
                "policy-group.network.openshift.io/ingress": null, "network.openshift.io/policy-group": null,
            } } }))
        );
    }
}
