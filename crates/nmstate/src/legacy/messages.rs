//! Messages about the original design, for conditions.

/// The object names another node.
pub(super) fn other_node(named: &str, node_name: &str) -> String {
    format!("spec.nodeName is {node_name}, but the object is named after node {named}: nothing is applied")
}

/// A field is malformed.
pub(super) fn malformed(field: &str, form: &str) -> String {
    format!("{field} is not {form}: nothing is applied")
}
