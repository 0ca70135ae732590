//! What things are called (kubemacpool §1).

/// Component in the user agent of requests, and in events about collisions.
pub const COMPONENT: &str = "kubemacpool";
/// Component in events about the range.
pub const RANGE_REPORTER: &str = "configmap-controller";
/// Labels that the manager's pods are found by.
pub const MANAGER_PODS: &str = "app=kubemacpool,control-plane=mac-controller-manager";

/// Kind of a virtual machine that runs.
pub const INSTANCE_KIND: &str = "VirtualMachineInstance";
/// Group and version of this kind.
pub const INSTANCE_VERSION: &str = "kubevirt.io/v1";

/// The webhook configuration whose selectors say which namespaces are managed.
pub const WEBHOOK_CONFIGURATION: &str = "kubemacpool-mutator";
/// Webhook of pods, and the label of namespaces that its selector asks for.
pub const PODS_WEBHOOK: &str = "mutatepods.kubemacpool.io";
/// Webhook of virtual machines, and the label of namespaces that its selector asks for.
pub const MACHINES_WEBHOOK: &str = "mutatevirtualmachines.kubemacpool.io";

/// `ConfigMap` with the range.
pub const RANGE_CONFIG_MAP: &str = "kubemacpool-mac-range-config";
/// What earlier programs held virtual machines by; only ever taken away.
pub const LEGACY_FINALIZER: &str = "k8s.v1.cni.cncf.io/kubeMacPool";
/// Label of pods that run a virtual machine, and its value.
pub const LAUNCHER: (&str, &str) = ("kubevirt.io", "virt-launcher");

/// Environment variables of the manager.
pub mod env {
    /// Its namespace.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Its pod.
    pub const POD_NAME: &str = "POD_NAME";
    /// First address, in the `ConfigMap` too.
    pub const RANGE_START: &str = "RANGE_START";
    /// Last address, in the `ConfigMap` too.
    pub const RANGE_END: &str = "RANGE_END";
}

/// Port of the webhooks and probes.
pub const WEBHOOK_PORT: u16 = 8000;
/// Name of the Service in front of it.
pub const SERVICE: &str = "kubemacpool-service";
/// The Secret of the authority that vouches for the server.
pub const AUTHORITY: &str = "kubemacpool-mutator-ca";
/// Where the kubelet puts the Secret with the serving certificate.
pub const SERVING_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Path of the webhook for pods.
pub const MUTATE_PODS: &str = "/mutate-pods";
/// Path of the webhook for virtual machines.
pub const MUTATE_MACHINES: &str = "/mutate-virtualmachines";
/// Path of the readiness probe.
pub const READYZ: &str = "/readyz";
/// Path of the liveness probe.
pub const HEALTHZ: &str = "/healthz";
/// What `--tls-min-version` may be.
pub const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
/// Paths of all webhooks.
pub const WEBHOOKS: [&str; 2] = [MUTATE_PODS, MUTATE_MACHINES];

/// Annotation of a pod: the networks that it asks for.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation of a pod: what it got. Once it is there, the pod is attached.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Annotation of a virtual machine: when the last change to it was admitted.
pub const TRANSACTION_TIMESTAMP: &str = "kubemacpool.io/transaction-timestamp";
/// JSON pointer to an object's annotations.
pub const ANNOTATIONS_PATH: &str = "/metadata/annotations";
/// JSON pointer to the interfaces of a virtual machine.
pub const INTERFACES_PATH: &str = "/spec/template/spec/domain/devices/interfaces";

/// The metrics' own Service.
pub const METRICS_SERVICE: &str = "kubemacpool-metrics-service";
/// Where the metrics' certificate is taken from when there is one.
pub const METRICS_CERTIFICATES: &str = "/tmp/k8s-metrics-server/serving-certs";
/// Path of the metrics, and of the right to read them.
pub const METRICS_PATH: &str = "/metrics";

/// Reasons of events.
pub mod reason {
    /// Running objects share an address.
    pub const COLLISION: &str = "MACCollision";
    /// The ConfigMap does not say a range.
    pub const INVALID_RANGE: &str = "InvalidRange";
    /// The range that it says can't be used.
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    /// The range that it says is used.
    pub const RANGE_UPDATED: &str = "RangeUpdated";
    /// Little is left to hand out.
    pub const NEARLY_FULL: &str = "RangeNearlyFull";
}

/// Names of figures.
pub mod metric {
    /// Objects that share an address.
    pub const COLLISIONS: &str = "kmp_mac_collisions";
    /// Label with the address.
    pub const MAC: &str = "mac";
    /// Addresses that were found twice at the start.
    pub const DUPLICATES: &str = "kubevirt_kmp_duplicate_macs";
    /// Addresses that may be handed out.
    pub const RANGE: &str = "kmp_range_addresses";
    /// Those of them that managed objects have.
    pub const USED: &str = "kmp_range_used";
    /// Those of them that objects have which are not managed.
    pub const RESERVED: &str = "kmp_range_reserved";
    /// Those of them that were admitted, and not seen yet.
    pub const PENDING: &str = "kmp_range_pending";
}
