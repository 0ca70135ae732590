//! Literals: paths, environment variables, reasons.

use std::time::Duration;

/// The configuration, where no flag says otherwise.
pub const CONFIG: &str = "/etc/cni/net.d/multus.d/daemon-config.json";
/// Default of `criSocketPath`.
pub const CRI_SOCKET: &str = "/run/containerd/containerd.sock";
/// Default of `multusSocketPath`.
pub const MULTUS_SOCKET: &str = "/var/run/multus-cni/multus.sock";
/// Where the controller answers its own probe. The operator mounts a volume at its directory: all else is read-only.
pub const HEALTH_SOCKET: &str = "/run/dynamic-networks.sock";

/// The node whose pods are watched.
pub const NODE_NAME: &str = "NODE_NAME";
/// What the program was built from, if the image says so.
pub const COMMIT: &str = "DYNAMIC_NETWORK_CONTROLLER_COMMIT_HASH";
/// Source of the events of this component.
pub const COMPONENT: &str = "pod-networks-updates";

/// The log filter with `-v` of 4 and more.
pub const VERBOSE_LOG: &str = "info,dynamic_networks=debug,kube_kit=debug";

/// A network was plugged in.
pub const REASON_ADDED: &str = "AddedInterface";
/// A network could not be plugged in.
pub const REASON_FAILED_ADDING: &str = "FailedAddingInterface";
/// A network was unplugged.
pub const REASON_REMOVED: &str = "RemovedInterface";
/// A network could not be unplugged.
pub const REASON_FAILED_REMOVING: &str = "FailedRemovingInterface";
/// What a pod asks for is nothing that could be done.
pub const REASON_REJECTED: &str = "InterfaceAddRejected";

/// How many pods are worked on at once. Most of what a worker does is to wait, minutes in the worst case, and the pods
/// of one broken network must not keep all others waiting; how much is done at once is the daemon's concern.
pub const WORKERS: usize = 32;
/// Longest pause between attempts on one pod.
pub const LONGEST_PAUSE: Duration = Duration::from_mins(1);
