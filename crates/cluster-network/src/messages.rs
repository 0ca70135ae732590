//! Texts that the specification fixes.

use std::fmt::Display;

/// A list of errors, in the format `[one two]`.
fn list<E: Display>(errors: &[E]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("[{}]", errors.join(" "))
}

/// The cluster configuration is invalid (§2.2).
pub fn invalid_cluster_config(error: &str) -> String {
    format!(
        "The cluster configuration is invalid ({error}). Use 'oc edit network.config.openshift.io cluster' to fix."
    )
}

/// The operator configuration is invalid (§4).
pub fn invalid_operator_config(errors: &[String]) -> String {
    format!(
        "The operator configuration is invalid (invalid configuration: {}). Use 'oc edit network.operator.openshift.io \
         cluster' to fix.",
        list(errors)
    )
}

/// The change from the applied configuration is unsafe (§5).
pub fn unsafe_change(errors: &[String]) -> String {
    format!(
        "Not applying unsafe configuration change: invalid configuration: {}. Use 'oc edit \
         network.operator.openshift.io cluster' to undo the change.",
        list(errors)
    )
}

/// Additional networks are invalid (§8.1).
pub fn invalid_additional_networks(errors: &[String]) -> String {
    format!("invalid Additional Network Configuration: {}", list(errors))
}

/// The configuration of kube-proxy is invalid (§9.3).
pub fn invalid_kube_proxy(errors: &[String]) -> String {
    let errors = match errors {
        [one] => one.clone(),
        more => format!("[{}]", more.join(", ")),
    };
    format!("failed to generate kube-proxy configuration file: {errors}")
}

/// The operator configuration does not exist (§5).
pub const NO_OPERATOR_CONFIG: &str = "Operator configuration /cluster was deleted";
/// The operator configuration cannot be read (§10.1).
pub const OPERATOR_CONFIG_UNREADABLE: &str = "Failed to get networks.operator.openshift.io cluster";
/// No workload is available yet (§10.2).
pub const STARTING_UP: &str = "The network is starting up";
/// No workload has been observed yet (§11.2).
pub const DEPLOYING: &str = "Deploying";
/// OVN-Kubernetes is configured without its image.
pub const NO_OVN_IMAGE: &str = "OVN-Kubernetes is to be deployed, and its image is not known: set environment variable \
                                OVN_IMAGE of the operator";
/// `IPsec` is configured, but nodes get no certificate for it.
pub const IPSEC_WITHOUT_IDENTITY: &str = "ipsecConfig has mode Full, and ConfigMap network-node-identity disables the \
                                          identities of nodes: their requests for certificates will be refused";
/// The operator has no address of the API server.
pub const NO_API_SERVER: &str = "OVN-Kubernetes is to be deployed, and the address of the API server is not known: set \
                                 environment variable APISERVER_OVERRIDE_HOST of the operator";

/// An unsuccessful apply (§5).
pub fn could_not_apply(object: &str, error: &str) -> String {
    format!("Error while updating operator configuration: could not apply {object}: {error}")
}

/// Remedy for a missing namespace of an additional network (§5).
pub const NAMESPACE_HINT: &str = "Namespace error for networkattachment definition, consider possible solutions: (1) Edit \
                                  config files to include existing namespace (2) Create non-existent namespace (3) Delete \
                                  erroneous network-attachment-definition";

/// Network policies for additional networks are configured without the image of their component.
pub const NO_MULTI_NETWORK_POLICY: &str = "useMultiNetworkPolicy is set, and the image of the program for it is not known: \
                                           set environment variable MULTUS_NETWORKPOLICY_IMAGE of the operator";
/// A network has IPAM whereabouts, without the image of whereabouts.
pub const NO_WHEREABOUTS: &str = "an additional network has IPAM whereabouts, which another installer has to deploy, because \
                                  environment variable WHEREABOUTS_CNI_IMAGE of the operator is not set";
/// kube-proxy is configured without its image.
pub const NO_KUBE_PROXY_IMAGE: &str = "kube-proxy is to be deployed, and its image is not known: set environment variable \
                                       KUBE_PROXY_IMAGE of the operator, or deployKubeProxy to false";

/// Another installer runs kube-proxy (§19).
pub fn foreign_kube_proxy(daemon_set: &str) -> String {
    format!(
        "kube-proxy is not deployed, because DaemonSet {daemon_set} runs it already: set deployKubeProxy to false, or \
         remove that DaemonSet"
    )
}

/// A pod is in a crash loop (§11.2).
pub fn crash_loop(workload: &str, pod: &str) -> String {
    format!("{workload} rollout is not making progress - pod {pod} is in CrashLoopBackOff State")
}

/// Texts about the cluster-wide proxy (§15.1).
pub mod proxy {
    /// `noProxy` is set without a proxy.
    pub const NO_PROXY_SET: &str = "httpProxy or httpsProxy must be set when using proxy";
    /// The `ConfigMap` of the installer lacks its key.
    pub const NO_INSTALL_CONFIG: &str = "missing install-config in configmap";

    /// The URL of a proxy lacks an allowed scheme.
    pub fn wrong_scheme(field: &str, schemes: &str) -> String {
        format!("{field} must be a URL of scheme {schemes}")
    }

    /// An entry of `noProxy` is invalid.
    pub fn invalid_no_proxy(entry: &str) -> String {
        format!("invalid noProxy: {entry}")
    }

    /// The platform reports no address of the API server.
    pub fn no_internal_url(infrastructure: &str) -> String {
        format!("internal api server url missing from infrastructure config '{infrastructure}'")
    }

    /// The status of the network has no service addresses yet.
    pub fn no_services(network: &str) -> String {
        format!("serviceNetwork missing from network '{network}' status")
    }

    /// The status of the network has no pod addresses yet.
    pub fn no_pods(network: &str) -> String {
        format!("clusterNetwork missing from network `{network}` status")
    }
}

/// Texts about signing requests (§17.4).
pub mod signer {
    /// The requester is not a node.
    pub fn invalid_user(user: &str) -> String {
        format!("requester {user:?} is not a node of this cluster")
    }

    /// A request is approved.
    pub fn approved(request: &str) -> String {
        format!("Auto-approved CSR {request:?}")
    }
}

/// Value of label `is_legacy_api` for a default network without `IPsec` (§16).
pub const IPSEC_NOT_SUPPORTED: &str = "N/A - ipsec not supported (non-OVN network)";

/// Help text of the metric of the `IPsec` state.
pub const IPSEC_HELP: &str = "A metric with a constant '1' value labeled by the IPsec mode and whether it is configured by the legacy API";
