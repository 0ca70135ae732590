//! Literals of all markers.

/// Capacity of each bridge, in the form of the API server.
pub(crate) const CAPACITY: &str = "1000";
pub(crate) const CANONICAL_CAPACITY: &str = "1k";

/// Defaults of the flags, in seconds and in minutes.
pub(crate) const UPDATE_INTERVAL: u64 = 60;
pub(crate) const RECONCILE_INTERVAL: u64 = 10;
