//! Literals.

/// Resources are `<prefix>/<bridge>`.
pub(super) const RESOURCE_PREFIX: &str = "bridge.network.kubevirt.io/";

/// How much of a bridge there is, and how the API server writes that number.
pub(super) const CAPACITY: &str = "1000";
pub(super) const CANONICAL_CAPACITY: &str = "1k";

/// The kernel's name for the kind of link.
pub(super) const BRIDGE: &str = "bridge";

/// User agent.
pub(super) const COMPONENT: &str = "bridge-marker";

/// Defaults of the flags: seconds, minutes, port.
pub(super) const UPDATE_INTERVAL: u64 = 60;
pub(super) const RECONCILE_INTERVAL: u64 = 10;
pub(super) const HEALTH_PORT: i64 = 8081;
