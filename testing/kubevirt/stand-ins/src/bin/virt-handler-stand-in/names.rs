//! Names that KubeVirt gives things.

/// Label of launcher pods, with [`LAUNCHER`] as its value.
pub(crate) const APP: &str = "kubevirt.io";
pub(crate) const LAUNCHER: &str = "virt-launcher";
/// Label of a launcher pod: the UID of its instance.
pub(crate) const CREATED_BY: &str = "kubevirt.io/created-by";
/// Labels of an instance: the node of its guest, and the one that the guest is to come to.
pub(crate) const NODE_NAME: &str = "kubevirt.io/nodeName";
pub(crate) const MIGRATION_TARGET: &str = "kubevirt.io/migrationTargetNodeName";
/// Annotation of a pod: what multus plugged into it.
pub(crate) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Readiness gate of a launcher pod.
pub(crate) const UNPAUSED: &str = "kubevirt.io/virtual-machine-unpaused";
/// Label of a node that guests may come to.
pub(crate) const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// Annotation of a node: when its handler last said that it lives.
pub(crate) const HEARTBEAT: &str = "kubevirt.io/heartbeat";
/// Labels of a node for each model of processor that it has or can play; the model follows.
pub(crate) const CPU_MODELS: [&str; 3] = [
    "host-model-cpu.node.kubevirt.io",
    "cpu-model.node.kubevirt.io",
    "cpu-model-migration.node.kubevirt.io",
];
/// Extended resource of nodes: what a guest's network needs.
pub(crate) const TUN: &str = "devices.kubevirt.io/tun";

/// Source of what is said about an interface: the guest's own devices. virt-controller adds multus as another one.
pub(crate) const DOMAIN: &str = "domain";
