//! Whether a policy selects a node (nmstate §5.5-4).

use std::collections::BTreeMap;

use serde_json::Value;

/// The node labels that a policy's spec requires. A value that is no string counts as empty.
pub(crate) fn selector(spec: &Value) -> BTreeMap<String, String> {
    let pairs = spec.get("nodeSelector").and_then(Value::as_object);
    let pairs = pairs.into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// The `key: value` pairs of a selector that the labels lack. The policy selects the node if there is none; an empty
/// selector selects every node.
pub(crate) fn unmatched(
    selector: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> Vec<String> {
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
    fn selector_matches_if_labels_have_every_pair(
        #[case] selector: &[(&str, &str)],
        #[case] labels: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        assert_eq!(unmatched(&pairs(selector), &pairs(labels)), expected);
    }
}
