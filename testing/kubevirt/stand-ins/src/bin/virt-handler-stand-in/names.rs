//! Literals of KubeVirt.

/// Label of launcher pods, with [`LAUNCHER`] as its value.
pub(crate) const APP: &str = "kubevirt.io";
pub(crate) const LAUNCHER: &str = "virt-launcher";
/// Label of launcher pods with the UID of their instance.
pub(crate) const CREATED_BY: &str = "kubevirt.io/created-by";
/// Labels of an instance: the node of its guest, and the target node.
pub(crate) const NODE_NAME: &str = "kubevirt.io/nodeName";
pub(crate) const MIGRATION_TARGET: &str = "kubevirt.io/migrationTargetNodeName";
/// Annotation of a pod with the networks of multus.
pub(crate) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Readiness gate of a launcher pod.
pub(crate) const UNPAUSED: &str = "kubevirt.io/virtual-machine-unpaused";
/// Label of nodes that accept guests.
pub(crate) const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// Annotation of a node with the time of its last heartbeat.
pub(crate) const HEARTBEAT: &str = "kubevirt.io/heartbeat";
/// Prefixes of node labels for supported processor models. The model follows.
pub(crate) const CPU_MODELS: [&str; 3] = [
    "host-model-cpu.node.kubevirt.io",
    "cpu-model.node.kubevirt.io",
    "cpu-model-migration.node.kubevirt.io",
];
/// Extended resource of nodes for the network of a guest.
pub(crate) const TUN: &str = "devices.kubevirt.io/tun";

/// Source of an interface's entry: the devices of the guest. virt-controller adds multus as another source.
pub(crate) const DOMAIN: &str = "domain";
