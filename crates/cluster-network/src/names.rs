//! Literals: names of objects, labels, annotations.

/// Namespace of the operator.
pub const OPERATOR_NAMESPACE: &str = "openshift-network-operator";
/// Namespace of multus.
pub const MULTUS_NAMESPACE: &str = "openshift-multus";
/// Namespace of the checks of connectivity.
pub const DIAGNOSTICS_NAMESPACE: &str = "openshift-network-diagnostics";
/// Namespace of kube-proxy.
pub const KUBE_PROXY_NAMESPACE: &str = "openshift-kube-proxy";
/// Namespace of our own default network.
pub const POD_NETWORK_NAMESPACE: &str = "weft-pod-network";

/// The default network of OpenShift.
pub const OVN_KUBERNETES: &str = "OVNKubernetes";
/// Our own default network.
pub const WEFT: &str = "Weft";

/// An additional network whose CNI configuration is given.
pub const RAW: &str = "Raw";
/// An additional network by macvlan.
pub const SIMPLE_MACVLAN: &str = "SimpleMacvlan";

/// State in which the operator does nothing.
pub const UNMANAGED: &str = "Unmanaged";

/// The configuration that our own default network writes for container runtimes.
pub const POD_NETWORK_FILE: &str = "10-weft.conflist";

/// The configuration that OVN-Kubernetes writes for container runtimes.
pub const OVN_FILE: &str = "10-ovn-kubernetes.conf";

/// Label with the part of the network that an object belongs to. Every object of ours has it, and is watched by it.
pub const PART_LABEL: &str = "networkoperator.openshift.io/part";
/// Label of workloads whose progress is a part of the operator's status (§11.1).
pub const STATUS_LABEL: &str = "networkoperator.openshift.io/generates-operator-status";
/// Its value on ours.
pub const STAND_ALONE: &str = "stand-alone";
/// Annotation with the version that rendered a workload.
pub const VERSION_ANNOTATION: &str = "release.openshift.io/version";
/// Annotation of workloads that do not decide whether the network is available (§11.2).
pub const NON_CRITICAL: &str = "networkoperator.openshift.io/non-critical";
/// Annotation of workloads that have made no progress for a while (§11.2).
pub const ROLLOUT_HUNG: &str = "networkoperator.openshift.io/rollout-hung";
/// Annotation of objects that are only created (§5.1).
pub const CREATE_ONLY: &str = "networkoperator.openshift.io/create-only";
/// Annotation of objects that are left alone for now (§5.1).
pub const CREATE_WAIT: &str = "networkoperator.openshift.io/create-wait";
/// Annotation of objects whose failure degrades nothing (§5.1).
pub const IGNORE_ERRORS: &str = "networkoperator.openshift.io/ignore-errors";
/// Annotation with a patch that goes before the object (§5.1).
pub const PRE_PATCH: &str = "networkoperator.openshift.io/pre-patch";
/// Annotation of pods with the hash of the configuration that they read once.
pub const CONFIG_HASH: &str = "network.operator.openshift.io/config-hash";
/// Annotation of the `ClusterOperator` with what was seen of the workloads (§11.2).
pub const LAST_SEEN_STATE: &str = "network.operator.openshift.io/last-seen-state";

/// Label of nodes with their operating system, and the one that is served.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// See [`OS_LABEL`].
pub const LINUX: &str = "linux";
/// Labels of control plane nodes, formerly and now.
pub const MASTER_LABEL: &str = "node-role.kubernetes.io/master";
/// See [`MASTER_LABEL`].
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// Variable of containers with the name or address of the API server.
pub const API_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// Variable of containers with its port.
pub const API_PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Name of the `ClusterOperator`.
pub const CLUSTER_OPERATOR: &str = "network";
/// ConfigMap with the applied configuration.
pub const APPLIED: &str = "applied-cluster";
/// Its key.
pub const APPLIED_KEY: &str = "applied";
/// ConfigMap with the MTU of the nodes, and its key.
pub const MTU: &str = "mtu";
/// ConfigMap that says how traffic leaves nodes.
pub const GATEWAY_MODE: &str = "gateway-mode-config";

/// Field managers of server-side apply (§5.1).
pub mod manager {
    /// Writes what is rendered, and the operator configuration.
    pub const OPERATOR_CONFIG: &str = "cluster-network-operator/operconfig";
    /// Writes what the cluster configuration decides.
    pub const CLUSTER_CONFIG: &str = "cluster-network-operator/clusterconfig";
    /// Writes statuses.
    pub const STATUS: &str = "cluster-network-operator/status-manager";
}

/// Environment variables of the operator (§1.1).
pub mod env {
    /// Version for annotations and statuses.
    pub const VERSION: &str = "RELEASE_VERSION";
    /// Our image.
    pub const OWN_IMAGE: &str = "NETWORK_OPERATOR_IMAGE";
    /// Image of kube-proxy.
    pub const KUBE_PROXY_IMAGE: &str = "KUBE_PROXY_IMAGE";
    /// Image of kube-rbac-proxy.
    pub const KUBE_RBAC_PROXY_IMAGE: &str = "KUBE_RBAC_PROXY_IMAGE";
    /// Directory of CNI configurations on the nodes.
    pub const CNI_CONF_DIR: &str = "CNI_CONF_DIR";
    /// Directory of CNI plugins on the nodes.
    pub const CNI_BIN_DIR: &str = "CNI_BIN_DIR";
    /// Image of the program that enforces network policies on additional networks.
    pub const MULTI_NETWORK_POLICY_IMAGE: &str = "MULTUS_NETWORKPOLICY_IMAGE";
    /// Image of the IPAM plugin whereabouts and its programs.
    pub const WHEREABOUTS_IMAGE: &str = "WHEREABOUTS_CNI_IMAGE";
    /// Image of OVN-Kubernetes.
    pub const OVN_IMAGE: &str = "OVN_IMAGE";
    /// Milliseconds between probes of northd's connections to its databases.
    pub const OVN_NORTHD_PROBE: &str = "OVN_NORTHD_PROBE_INTERVAL";
    /// Milliseconds between probes of connections to southbound databases.
    pub const OVN_CONTROLLER_PROBE: &str = "OVN_CONTROLLER_INACTIVITY_PROBE";
    /// Milliseconds between probes of connections to northbound databases.
    pub const OVN_NB_PROBE: &str = "OVN_NB_INACTIVITY_PROBE";
    /// Port at which nodes answer those that check them for egress addresses.
    pub const OVN_EGRESS_PORT: &str = "OVN_EGRESSIP_HEALTHCHECK_PORT";
    /// Name of the operator's own pod.
    pub const POD_NAME: &str = "POD_NAME";
    /// When images are pulled.
    pub const PULL_POLICY: &str = "IMAGE_PULL_POLICY";
    /// Name or address of the API server for what runs on the nodes.
    pub const API_HOST: &str = "APISERVER_OVERRIDE_HOST";
    /// Its port.
    pub const API_PORT: &str = "APISERVER_OVERRIDE_PORT";
}

/// Names of metrics.
pub mod metric {
    /// The state of `IPsec`.
    pub const IPSEC_STATE: &str = "openshift_network_operator_ipsec_state";
}

/// Label of kube-proxy's pods and `DaemonSet` as kubeadm installs it.
pub const FOREIGN_KUBE_PROXY: (&str, &str) = ("k8s-app", "kube-proxy");
/// User agent.
pub const COMPONENT: &str = "network-operator";
/// ConfigMap in which probers of the MTU report the MTU of their nodes.
pub const MTU_PROBER_RESULTS: &str = "mtu-prober";
/// Key of the MTU of each node, in the ConfigMap of the result.
pub const MTU_OF_NODES: &str = "nodes";
/// Label of the prober's pods.
pub const MTU_PROBER_APP: &str = "mtu-prober";
/// Field manager of what the prober of the MTU writes.
pub const MTU_PROBER: &str = "cluster-network-operator/mtu-prober";
/// The Deployment of the operator.
pub const OPERATOR_DEPLOYMENT: &str = "network-operator";

/// Lease of the operator that works.
pub const LEADER_LEASE: &str = "network-operator-lock";
/// Namespace of OVN-Kubernetes.
pub const OVN_NAMESPACE: &str = "openshift-ovn-kubernetes";
/// Namespace of the programs that make each of its nodes a user.
pub const NODE_IDENTITY_NAMESPACE: &str = "openshift-network-node-identity";
/// Their `DaemonSet`, and the `OperatorPKI` of their certificate.
pub const NODE_IDENTITY: &str = "network-node-identity";
/// Namespace of `ConfigMaps` that all users may read.
pub const MANAGED_NAMESPACE: &str = "openshift-config-managed";
/// Namespace of the cluster's own components.
pub const KUBE_SYSTEM: &str = "kube-system";
/// `ConfigMap` there that says how far the installation is.
pub const BOOTSTRAP: &str = "bootstrap";
/// `ConfigMap` there with the configuration of the installer.
pub const INSTALL_CONFIG: &str = "cluster-config-v1";
/// `ClusterOperator` of the operator of machines.
pub const MACHINE_OPERATOR: &str = "machine-config";
/// `ConfigMaps` that tune OVN-Kubernetes (§7.1).
pub const OVS_FLOWS: &str = "ovs-flows-config";
/// See [`OVS_FLOWS`].
pub const UDP_AGGREGATION: &str = "udp-aggregation-config";
/// See [`OVS_FLOWS`].
pub const HARDWARE_OFFLOAD: &str = "hardware-offload-config";
/// See [`OVS_FLOWS`].
pub const OVN_OVERRIDES: &str = "ovn-kubernetes-config-overrides";
