//! Names of objects, labels, annotations, variables and metrics (kubemacpool §1).

/// User agent of requests, and component of events about collisions.
pub(crate) const COMPONENT: &str = "kubemacpool";
/// Component of events about the range.
pub(crate) const RANGE_REPORTER: &str = "configmap-controller";
/// Label selector of the manager's pods.
pub(crate) const MANAGER_PODS: &str = "app=kubemacpool,control-plane=mac-controller-manager";

/// Webhook configuration whose selectors determine the managed namespaces.
pub(crate) const WEBHOOK_CONFIGURATION: &str = "kubemacpool-mutator";
/// Webhook of pods, and the label key in its namespace selector.
pub(crate) const PODS_WEBHOOK: &str = "mutatepods.kubemacpool.io";
/// Webhook of virtual machines, and the label key in its namespace selector.
pub(crate) const MACHINES_WEBHOOK: &str = "mutatevirtualmachines.kubemacpool.io";

/// `ConfigMap` with the range.
pub(crate) const RANGE_CONFIG_MAP: &str = "kubemacpool-mac-range-config";
/// Finalizer of virtual machines that earlier releases set; it is only removed.
pub(crate) const LEGACY_FINALIZER: &str = "k8s.v1.cni.cncf.io/kubeMacPool";
/// Label of pods that run a virtual machine.
pub(crate) const LAUNCHER: (&str, &str) = ("kubevirt.io", "virt-launcher");

/// Environment variables of the manager.
pub(crate) mod env {
    /// Namespace of the manager.
    pub(crate) const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Pod name of the manager.
    pub(crate) const POD_NAME: &str = "POD_NAME";
    /// First address; also a key of the `ConfigMap`.
    pub(crate) const RANGE_START: &str = "RANGE_START";
    /// Last address; also a key of the `ConfigMap`.
    pub(crate) const RANGE_END: &str = "RANGE_END";
}

/// Port of the webhooks and probes.
pub(crate) const WEBHOOK_PORT: u16 = 8000;
/// Service of the webhooks.
pub(crate) const SERVICE: &str = "kubemacpool-service";
/// Secret of the certificate authority.
pub(crate) const AUTHORITY: &str = "kubemacpool-mutator-ca";
/// Directory of the mounted serving certificate.
pub(crate) const SERVING_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Path of the webhook for pods.
pub(crate) const MUTATE_PODS: &str = "/mutate-pods";
/// Path of the webhook for virtual machines.
pub(crate) const MUTATE_MACHINES: &str = "/mutate-virtualmachines";
/// Path of the readiness probe.
pub(crate) const READYZ: &str = "/readyz";
/// Path of the liveness probe.
pub(crate) const HEALTHZ: &str = "/healthz";
/// Accepted values of `--tls-min-version`.
pub(crate) const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
/// Paths of all webhooks.
pub(crate) const WEBHOOKS: [&str; 2] = [MUTATE_PODS, MUTATE_MACHINES];

/// Annotation of a pod: its networks.
pub(crate) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation of a pod: its attached networks.
pub(crate) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Annotation of a virtual machine: time at which its last change was admitted.
pub(crate) const TRANSACTION_TIMESTAMP: &str = "kubemacpool.io/transaction-timestamp";
/// JSON pointer to an object's annotations.
pub(crate) const ANNOTATIONS_PATH: &str = "/metadata/annotations";
/// JSON pointer to the interfaces of a virtual machine.
pub(crate) const INTERFACES_PATH: &str = "/spec/template/spec/domain/devices/interfaces";

/// Service of the metrics.
pub(crate) const METRICS_SERVICE: &str = "kubemacpool-metrics-service";
/// Directory of the metrics' serving certificate, if it is mounted.
pub(crate) const METRICS_CERTIFICATES: &str = "/tmp/k8s-metrics-server/serving-certs";
/// Path of the metrics, also in the access check.
pub(crate) const METRICS_PATH: &str = "/metrics";

/// Reasons of events.
pub(crate) mod reason {
    /// Running objects share an address.
    pub(crate) const COLLISION: &str = "MACCollision";
    /// The ConfigMap has no valid range.
    pub(crate) const INVALID_RANGE: &str = "InvalidRange";
    /// The range in the ConfigMap cannot be used.
    pub(crate) const UPDATE_FAILED: &str = "UpdateFailed";
    /// The range in the ConfigMap is used.
    pub(crate) const RANGE_UPDATED: &str = "RangeUpdated";
    /// Few addresses are free.
    pub(crate) const NEARLY_FULL: &str = "RangeNearlyFull";
}

/// Names of metrics.
pub(crate) mod metric {
    /// Number of objects that share an address.
    pub(crate) const COLLISIONS: &str = "kmp_mac_collisions";
    /// Label with the address.
    pub(crate) const MAC: &str = "mac";
    /// Number of addresses that two objects had at the start.
    pub(crate) const DUPLICATES: &str = "kubevirt_kmp_duplicate_macs";
    /// Number of allocatable addresses.
    pub(crate) const RANGE: &str = "kmp_range_addresses";
    /// Number of them that managed objects have.
    pub(crate) const USED: &str = "kmp_range_used";
    /// Number of them that only unmanaged objects have.
    pub(crate) const RESERVED: &str = "kmp_range_reserved";
    /// Number of them that were admitted and are not observed yet.
    pub(crate) const PENDING: &str = "kmp_range_pending";
}
