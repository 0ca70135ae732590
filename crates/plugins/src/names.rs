//! Names of plugins and of what they leave on a node.

/// Plugin `bridge`.
pub const BRIDGE: &str = "bridge";
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

/// Where `tuning` keeps what it changed, when the config does not say.
pub(crate) const TUNING_DATA: &str = "/run/cni/tuning";
/// The node's list of sysctls that pods may set.
pub(crate) const TUNING_ALLOW_LIST: &str = "/etc/cni/tuning/allowlist.conf";

/// What our plugins keep beside the established formats; in memory, as the attachments are.
pub(crate) const STATE: &str = "/run/cni/weft";
/// Between the container's id and the interface in a record's name; neither can contain it.
pub(crate) const RECORD_SEPARATOR: char = ':';
