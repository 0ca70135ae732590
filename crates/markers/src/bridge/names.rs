//! Literals.

/// Resources are `<prefix>/<bridge>`.
pub(super) const RESOURCE_PREFIX: &str = "bridge.network.kubevirt.io/";

/// The kernel's name for the kind of link.
pub(super) const BRIDGE: &str = "bridge";

/// User agent.
pub(super) const COMPONENT: &str = "bridge-marker";

/// Default of the flag.
pub(super) const HEALTH_PORT: i64 = 8081;
