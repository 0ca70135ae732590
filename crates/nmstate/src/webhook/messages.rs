//! What users read of admission (nmstate §7.1, §7.2).

/// The status has conditions, and they stay.
pub const NOT_NEEDED: &str = "mutation not needed";
/// A capture was added, changed or removed.
pub const CAPTURE: &str = "invalid policy operation: capture field cannot be modified";
/// A value of the node selector can be no label's.
pub const SELECTOR: &str = "nodeSelector values must be valid label values";
/// maxUnavailable is something else.
pub const MAX_UNAVAILABLE: &str = "maxUnavailable must be a number of nodes, or a percentage such as \"50%\"";
/// There is nothing to look at.
pub const NO_POLICY: &str = "the review holds no policy";

/// The policy can't be read. What it holds is not repeated: there may be secrets in it.
pub fn undecodable(error: &serde_json::Error) -> String {
    format!("failed decoding policy: {error}")
}

/// The name can't be the value of a label, as which enactments have it.
pub fn name(name: &str) -> String {
    format!("invalid policy name: \"{name}\": must be no more than 63 characters or match label value format")
}

/// Handlers are not through with the policy as it was.
pub fn in_progress(name: &str) -> String {
    format!("policy {name} is still in progress")
}
