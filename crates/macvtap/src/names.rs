//! Literals that kubelet, users and the CNI plugin know (cni-plugins.md §11).

/// Variable with the configuration.
pub(crate) const CONFIG: &str = "DP_MACVTAP_CONF";
/// Directory of kubelet's socket, of the plugins' sockets and of kubelet's checkpoint.
pub(crate) const KUBELET_DIR: &str = "/var/lib/kubelet/device-plugins";
/// The node's devices, as a process in the node's PID namespace sees them.
pub(crate) const DEVICE_DIR: &str = "/proc/1/root/dev";
/// Directory of the devices in the paths that kubelet is told.
pub(crate) const DEVICES: &str = "/dev";

/// Kubelet's socket, below its directory.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";
/// Kubelet's own notes, below its directory.
pub(crate) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// Domain of the resources.
pub(crate) const DOMAIN: &str = "macvtap.network.kubevirt.io";
/// Stands between the name of a resource and the number of a device.
pub(crate) const DEVICE_INFIX: &str = "Mvp";
/// Begin of the name of a device node. The index of the link follows.
pub(crate) const NODE_PREFIX: &str = "tap";

/// Kind of a link whose node is a device.
pub(crate) const MACVTAP: &str = "macvtap";
/// Kind of the links that are suitable besides hardware.
pub(crate) const BOND: &str = "bond";

/// Devices of a resource whose configuration asks for none.
pub(crate) const CAPACITY: u32 = 100;
/// Most devices of a resource: kubelet reads no message of more than 4 MiB.
pub(crate) const MOST_CAPACITY: u32 = 10_000;
