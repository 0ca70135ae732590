//! Literals: paths, environment variables, reasons.

use std::time::Duration;

/// Default path of the configuration.
pub(crate) const CONFIG: &str = "/etc/cni/net.d/multus.d/daemon-config.json";
/// Default of `criSocketPath`.
pub(crate) const CRI_SOCKET: &str = "/run/containerd/containerd.sock";
/// Default of `multusSocketPath`.
pub(crate) const MULTUS_SOCKET: &str = "/var/run/multus-cni/multus.sock";
/// Default socket of the probes. The operator mounts a volume at its directory, because the root is read-only.
pub(crate) const HEALTH_SOCKET: &str = "/run/dynamic-networks.sock";

/// Environment variable with the name of the node.
pub(crate) const NODE_NAME: &str = "NODE_NAME";
/// Environment variable with the commit of the image.
pub(crate) const COMMIT: &str = "DYNAMIC_NETWORK_CONTROLLER_COMMIT_HASH";
/// Source of the events.
pub(crate) const COMPONENT: &str = "pod-networks-updates";

/// The log filter with `-v` of 4 and more.
pub(crate) const VERBOSE_LOG: &str = "info,dynamic_networks=debug,kube_kit=debug";

/// A network was plugged in.
pub(crate) const REASON_ADDED: &str = "AddedInterface";
/// A network could not be plugged in.
pub(crate) const REASON_FAILED_ADDING: &str = "FailedAddingInterface";
/// A network was unplugged.
pub(crate) const REASON_REMOVED: &str = "RemovedInterface";
/// A network could not be unplugged.
pub(crate) const REASON_FAILED_REMOVING: &str = "FailedRemovingInterface";
/// The request of a pod is impossible.
pub(crate) const REASON_REJECTED: &str = "InterfaceAddRejected";

/// Limit of concurrent workers. Workers mostly wait, for minutes in the worst case, so the limit is high: the pods of
/// one broken network must not block all others. The daemon limits the concurrent plugin calls.
pub(crate) const WORKERS: usize = 32;
/// Longest back-off of one pod.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_mins(1);
