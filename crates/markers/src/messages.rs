//! Texts that users know from the logs of the established markers.

/// The node's capacity is not what we left there.
pub(crate) fn reported_bridges_differ(node: &str) -> String {
    format!("cached bridges are different than the reported bridges on node {node}")
}

/// A patch did not go through; it is tried again.
pub(crate) fn update_failed(cause: &dyn std::fmt::Display) -> String {
    format!("Update failed: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_established_markers() {
        let differ = "cached bridges are different than the reported bridges on node node01";
        assert_eq!(reported_bridges_differ("node01"), differ);
        assert_eq!(update_failed(&"cause"), "Update failed: cause");
    }
}
