//! Literals: paths, file names, environment variables, reasons.

/// Path of the daemon's configuration.
pub(crate) const DAEMON_CONFIG: &str = "/etc/cni/net.d/multus.d/daemon-config.json";
/// The socket inside `socketDir`.
pub(crate) const SOCKET: &str = "multus.sock";
/// Default of `socketDir`.
pub(crate) const SOCKET_DIR: &str = "/run/multus/";
/// The CNI configuration that makes the runtime call the shim.
pub(crate) const CONF_FILE: &str = plugins::multus_shim::ended::CONF_FILE;
/// The same in thin mode for CNI 1.0.0 and later.
pub(crate) const CONF_LIST_FILE: &str = "00-multus.conflist";
/// Prefix of multus' own files, which are never a primary configuration.
pub(crate) const CONF_PREFIX: &str = "00-multus";
/// Default of `cniConfigDir`.
pub(crate) const CNI_CONFIG_DIR: &str = "/etc/cni/net.d";
/// Default of `confDir`: CNI configurations that a NAD without one refers to by name.
pub(crate) const CONF_DIR: &str = "/etc/cni/multus/net.d";
/// Default of `cniDir`: scratch files and the result cache.
pub(crate) const CNI_DIR: &str = plugins::multus_shim::kept_dels::CNI_DIR;
/// Result cache below `cniDir`.
pub(crate) const RESULTS: &str = "results";
/// Suffix of scratch files that were set aside.
pub(crate) const CORRUPT: &str = ".corrupt";
/// Suffix of kept DELs that were set aside.
pub(crate) const BROKEN: &str = ".broken";
/// Usual sockets of container runtimes.
pub const CRI_SOCKETS: [&str; 5] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
/// Default of `binDir`.
pub(crate) const BIN_DIR: &str = "/opt/cni/bin";
/// Default of `multusNamespace`, and the only default of `systemNamespaces`.
pub(crate) const KUBE_SYSTEM: &str = "kube-system";
/// `name` of the generated configuration.
pub(crate) const NETWORK_NAME: &str = "multus-cni-network";
/// `type` of the generated configuration.
pub(crate) const SHIM: &str = "multus-shim";
/// `type` of the configuration of thin mode.
pub(crate) const THIN: &str = "multus";
/// Default of the master's interface.
pub(crate) const MASTER_INTERFACE: &str = "eth0";

/// Keys of `CNI_ARGS` that identify the pod.
pub(crate) mod pod_args {
    /// Namespace of the pod.
    pub(crate) const NAMESPACE: &str = "K8S_POD_NAMESPACE";
    /// Name of the pod.
    pub(crate) const NAME: &str = "K8S_POD_NAME";
    /// UID of the pod.
    pub(crate) const UID: &str = "K8S_POD_UID";
    /// ID of its sandbox.
    pub(crate) const SANDBOX: &str = "K8S_POD_INFRA_CONTAINER_ID";
}

/// Directory of a pod's service account.
pub(crate) const ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// File name of its token.
pub(crate) const TOKEN: &str = "token";
/// Environment variable with the name of the node.
pub(crate) const NODE_NAME: &str = "MULTUS_NODE_NAME";
/// Source of the daemon's events.
pub(crate) const COMPONENT: &str = "multus";

/// An interface was attached.
pub(crate) const REASON_ADDED: &str = "AddedInterface";
/// A NAD of a pod does not exist.
pub(crate) const REASON_NO_NETWORK: &str = "NoNetworkFound";
/// A delegate failed.
pub(crate) const REASON_FAILED: &str = "FailedAddingInterface";

/// Signer of the nodes' certificates.
pub(crate) const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Organisation of these certificates, and prefix of their common names.
pub(crate) const CERTIFICATE_GROUP: &str = "system:multus";
/// Source of the approver's events.
pub(crate) const APPROVER: &str = "cert-approver";
/// Literals of the admission webhooks.
pub(crate) mod admission {
    use kube_kit::object;
    use webhook::manager::Names;

    /// User agent of the program.
    pub(crate) const COMPONENT: &str = "nad-webhook";
    /// Environment variable with the namespace of the pod.
    pub(crate) const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Name of the Service, of the serving certificate's Secret and of the webhook configurations.
    pub(crate) const NAME: &str = "weft-nad-webhook";
    /// The objects of the certificate manager.
    pub(crate) const OBJECTS: Names = Names {
        configuration: NAME,
        kinds: &[
            object::VALIDATING_WEBHOOK_CONFIGURATION,
            object::MUTATING_WEBHOOK_CONFIGURATION,
        ],
        authority: "weft-nad-webhook-ca",
        service: NAME,
    };
    /// Path of the validating webhook.
    pub(crate) const VALIDATE: &str = "/validate-network-attachment-definitions";
    /// Path of the mutating webhook.
    pub(crate) const INJECT: &str = "/inject-resources";
}
