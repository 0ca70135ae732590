//! Literals of all markers.

/// How much of a bridge there is, and how the API server writes that number.
pub(crate) const CAPACITY: &str = "1000";
pub(crate) const CANONICAL_CAPACITY: &str = "1k";

/// Defaults of the flags: seconds, minutes.
pub(crate) const UPDATE_INTERVAL: u64 = 60;
pub(crate) const RECONCILE_INTERVAL: u64 = 10;
