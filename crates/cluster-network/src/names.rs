//! Literals: names of objects, labels, annotations.

/// Namespace of the operator.
pub const OPERATOR_NAMESPACE: &str = "openshift-network-operator";
