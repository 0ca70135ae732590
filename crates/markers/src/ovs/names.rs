//! Literals.

/// Resources are `<prefix>/<bridge>`.
pub(super) const RESOURCE_PREFIX: &str = "ovs-cni.network.kubevirt.io/";

/// User agent.
pub(super) const COMPONENT: &str = "ovs-marker";

/// Default of the flag, in seconds.
pub(super) const HEALTH_INTERVAL: u64 = 60;

/// The file of the probes.
pub(super) const HEALTH_FILE: &str = "/tmp/healthy";
