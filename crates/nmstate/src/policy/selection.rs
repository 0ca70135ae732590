//! Whether a policy is for a node (nmstate §5.5-4).

use std::collections::BTreeMap;

use serde_json::Value;

/// Labels of the nodes that a policy with this specification is for. What is no text is an empty one.
pub fn selector(spec: &Value) -> BTreeMap<String, String> {
    let pairs = spec.get("nodeSelector").and_then(Value::as_object);
    let pairs = pairs.into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// What a selector asks for and the node's labels do not have, as `key: value`; a policy is for the node when nothing is
/// left. An empty selector asks for nothing.
pub fn unmatched(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Vec<String> {
    let missing = selector
        .iter()
        .filter(|(key, value)| labels.get(*key) != Some(value));
    missing.map(|(key, value)| format!("{key}: {value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs.iter();
        owned
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    // nmstate#18
    #[rstest::rstest]
    #[case::empty(&[], &[("a", "1")], &[])]
    #[case::empty_both(&[], &[], &[])]
    #[case::all_pairs(&[("a", "1"), ("b", "")], &[("a", "1"), ("b", ""), ("c", "3")], &[])]
    #[case::missing(&[("a", "1"), ("b", "2")], &[("a", "1")], &["b: 2"])]
    #[case::other_value(&[("a", "1"), ("b", "")], &[("a", "2"), ("b", "2")], &["a: 1", "b: "])]
    fn every_pair_of_the_selector_must_be_among_the_labels(
        #[case] selector: &[(&str, &str)],
        #[case] labels: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        assert_eq!(unmatched(&pairs(selector), &pairs(labels)), expected);
    }
}
