//! Log lines that users know from upstream's markers.

/// The node's capacity differs from the last patch.
pub(crate) fn reported_bridges_differ(node: &str) -> String {
    format!("cached bridges are different than the reported bridges on node {node}")
}

/// A patch failed; it is retried.
pub(crate) fn update_failed(cause: &dyn std::fmt::Display) -> String {
    format!("Update failed: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_equal_those_of_upstream() {
        let differ = "cached bridges are different than the reported bridges on node node01";
        assert_eq!(reported_bridges_differ("node01"), differ);
        assert_eq!(update_failed(&"cause"), "Update failed: cause");
    }
}
