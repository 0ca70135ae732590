//! Messages of the webhook (nmstate §7.1, §7.2).

/// The status already has conditions.
pub(crate) const NOT_NEEDED: &str = "mutation not needed";
/// A capture was added, changed or removed.
pub(crate) const CAPTURE: &str = "invalid policy operation: capture field cannot be modified";
/// A value of the node selector is no label value.
pub(crate) const SELECTOR: &str = "nodeSelector values must be valid label values";
/// maxUnavailable is invalid.
pub(crate) const MAX_UNAVAILABLE: &str =
    "maxUnavailable must be a number of nodes, or a percentage such as \"50%\"";
/// The review has no object.
pub(crate) const NO_POLICY: &str = "the review holds no policy";

/// The policy is malformed. Its content is not repeated: it may contain secrets.
pub(crate) fn undecodable(error: &serde_json::Error) -> String {
    format!("failed decoding policy: {error}")
}

/// The policy's name is no label value, as enactments need it.
pub(crate) fn name(name: &str) -> String {
    format!("invalid policy name: \"{name}\": must be no more than 63 characters or match label value format")
}

/// The earlier spec is still being applied.
pub(crate) fn in_progress(name: &str) -> String {
    format!("policy {name} is still in progress")
}
