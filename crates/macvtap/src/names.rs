//! Literals for kubelet, users and the CNI plugin (cni-plugins.md §11).

/// Variable with the configuration.
pub(crate) const CONFIG: &str = "DP_MACVTAP_CONF";
/// Directory of kubelet's socket, the plugins' sockets and kubelet's checkpoint.
pub(crate) const KUBELET_DIR: &str = "/var/lib/kubelet/device-plugins";
/// The node's devices, for a process in the node's PID namespace.
pub(crate) const DEVICE_DIR: &str = "/proc/1/root/dev";
/// Directory of devices in paths for kubelet.
pub(crate) const DEVICES: &str = "/dev";

/// Kubelet's socket, in its directory.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";
/// Kubelet's checkpoint, in its directory.
pub(crate) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// Domain of the resources.
pub(crate) const DOMAIN: &str = "macvtap.network.kubevirt.io";
/// Separator of the resource name and the number of a device.
pub(crate) const DEVICE_INFIX: &str = "Mvp";
/// Prefix of the name of a device node, before the index of the link.
pub(crate) const NODE_PREFIX: &str = "tap";

/// Kind of suitable links besides hardware.
pub(crate) const BOND: &str = "bond";

/// Bytes of the longest name by which the kernel finds a link; alternative names may be longer.
pub(crate) const LONGEST_NAME: usize = 15;

/// Default number of devices of a resource.
pub(crate) const CAPACITY: u32 = 100;
/// Maximum number of devices of a resource: kubelet reads no message of more than 4 MiB.
pub(crate) const MOST_CAPACITY: u32 = 10_000;
