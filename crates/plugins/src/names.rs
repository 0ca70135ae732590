//! Names of plugins and of what they leave on a node.

/// Plugin `bridge`.
pub const BRIDGE: &str = "bridge";
/// Plugin `host-local`, an IPAM plugin.
pub const HOST_LOCAL: &str = "host-local";
/// Plugin `loopback`.
pub const LOOPBACK: &str = "loopback";
/// Plugin `static`, an IPAM plugin.
pub const STATIC: &str = "static";
/// Plugin `tuning`.
pub const TUNING: &str = "tuning";

/// The binary that is all of them.
pub const BINARY: &str = "weft-cni";
/// Prefix of the names under which an installation beside a platform's own plugins puts ours.
pub const PREFIX: &str = "cnv-";

/// Driver kinds of the kernel.
pub(crate) mod kind {
    pub(crate) const VETH: &str = "veth";
}

/// Begin of the names of host ends; eight hexadecimal digits follow.
pub(crate) const VETH_PREFIX: &str = "veth";
/// The bridge of a config that names none.
pub(crate) const DEFAULT_BRIDGE: &str = "cni0";
/// The loopback interface.
pub(crate) const LO: &str = "lo";

/// Keys of `CNI_ARGS`.
pub(crate) mod arg {
    pub(crate) const MAC: &str = "MAC";
    pub(crate) const IP: &str = "IP";
    pub(crate) const GATEWAY: &str = "GATEWAY";
}

/// Where `host-local` keeps its leases, when the config does not say.
pub(crate) const HOST_LOCAL_DATA: &str = "/var/lib/cni/networks";
/// Where `host-local` keeps who has which address, for looking it up.
pub(crate) const HOST_LOCAL_INDEX: &str = "/run/cni/weft/host-local";

/// Where `tuning` keeps what it changed, when the config does not say.
pub(crate) const TUNING_DATA: &str = "/run/cni/tuning";
/// The node's list of sysctls that pods may set.
pub(crate) const TUNING_ALLOW_LIST: &str = "/etc/cni/tuning/allowlist.conf";
