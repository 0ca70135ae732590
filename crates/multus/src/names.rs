//! Literals: paths, file names, environment variables, reasons.

/// Where the daemon's configuration is mounted.
pub const DAEMON_CONFIG: &str = "/etc/cni/net.d/multus.d/daemon-config.json";
/// The socket inside `socketDir`.
pub const SOCKET: &str = "multus.sock";
/// Default of `socketDir`.
pub const SOCKET_DIR: &str = "/run/multus/";
/// The CNI configuration that makes the runtime call the shim.
pub const CONF_FILE: &str = plugins::multus_shim::ended::CONF_FILE;
/// The same for configurations of thin mode from CNI 1.0.0 on.
pub const CONF_LIST_FILE: &str = "00-multus.conflist";
/// Files that begin so are ours and never a primary configuration.
pub const CONF_PREFIX: &str = "00-multus";
/// Default of `cniConfigDir`.
pub const CNI_CONFIG_DIR: &str = "/etc/cni/net.d";
/// Default of `confDir`: CNI configurations that a NAD without one refers to by name.
pub const CONF_DIR: &str = "/etc/cni/multus/net.d";
/// Default of `cniDir`: scratch files and the result cache.
pub const CNI_DIR: &str = plugins::multus_shim::missed::CNI_DIR;
/// Result cache below `cniDir`.
pub const RESULTS: &str = "results";
/// How the names of scratch files end that were set aside, and those of calls.
pub const CORRUPT: &str = ".corrupt";
/// See [`CORRUPT`].
pub const BROKEN: &str = ".broken";
/// Sockets of container runtimes, where a host usually has them.
pub const CRI_SOCKETS: [&str; 5] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
/// Default of `binDir`.
pub const BIN_DIR: &str = "/opt/cni/bin";
/// Default of `multusNamespace`, and the only default of `systemNamespaces`.
pub const KUBE_SYSTEM: &str = "kube-system";
/// `name` of the generated configuration.
pub const NETWORK_NAME: &str = "multus-cni-network";
/// `type` of the generated configuration.
pub const SHIM: &str = "multus-shim";
/// `type` of the configuration of thin mode.
pub const THIN: &str = "multus";
/// The master's interface, where a call does not name it.
pub const MASTER_INTERFACE: &str = "eth0";

/// Keys of `CNI_ARGS` by which Kubernetes' runtimes name the pod.
pub mod pod_args {
    /// Its namespace.
    pub const NAMESPACE: &str = "K8S_POD_NAMESPACE";
    /// Its name.
    pub const NAME: &str = "K8S_POD_NAME";
    /// Its UID.
    pub const UID: &str = "K8S_POD_UID";
    /// Its sandbox.
    pub const SANDBOX: &str = "K8S_POD_INFRA_CONTAINER_ID";
}

/// Where kubelet puts the identity of a pod.
pub const ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Its token, in there.
pub const TOKEN: &str = "token";
/// The node whose pods are watched.
pub const NODE_NAME: &str = "MULTUS_NODE_NAME";
/// Source of the events of this component.
pub const COMPONENT: &str = "multus";

/// An interface was attached.
pub const REASON_ADDED: &str = "AddedInterface";
/// A NAD named by a pod is not there.
pub const REASON_NO_NETWORK: &str = "NoNetworkFound";
/// A delegate failed.
pub const REASON_FAILED: &str = "FailedAddingInterface";

/// Who signs the certificates of nodes.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Organisation of those certificates; with the node's name behind it the common name.
pub const CERTIFICATE_GROUP: &str = "system:multus";
/// Source of the events of the approver.
pub const APPROVER: &str = "cert-approver";
/// Literals of the admission webhooks.
pub mod admission {
    use kube_kit::object;
    use webhook::manager::Names;

    /// Name of the program in requests.
    pub const COMPONENT: &str = "nad-webhook";
    /// The variable with the namespace of the pod.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// The Service, the Secret of the server, the webhook configurations.
    pub const NAME: &str = "weft-nad-webhook";
    /// What the certificate manager looks after.
    pub const OBJECTS: Names = Names {
        configuration: NAME,
        kinds: &[
            object::VALIDATING_WEBHOOK_CONFIGURATION,
            object::MUTATING_WEBHOOK_CONFIGURATION,
        ],
        authority: "weft-nad-webhook-ca",
        service: NAME,
    };
    /// Where definitions are looked at.
    pub const VALIDATE: &str = "/validate-network-attachment-definitions";
    /// Where resources are requested for pods.
    pub const INJECT: &str = "/inject-resources";
}
