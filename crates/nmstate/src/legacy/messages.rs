//! What people read about the original design in conditions.

/// An object that says of itself that it is for another node.
pub(super) fn other_node(named: &str, said: &str) -> String {
    format!("spec.nodeName is {said}, but the object is named after node {named}: nothing is applied")
}

/// A part of an object that has another form than it must have.
pub(super) fn malformed(field: &str, form: &str) -> String {
    format!("{field} is not {form}: nothing is applied")
}
