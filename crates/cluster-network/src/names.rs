//! Literals: names of objects, labels, annotations.

/// Namespace of the operator.
pub const OPERATOR_NAMESPACE: &str = "openshift-network-operator";
/// Namespace of multus.
pub const MULTUS_NAMESPACE: &str = "openshift-multus";
/// Namespace of the connectivity checks.
pub const DIAGNOSTICS_NAMESPACE: &str = "openshift-network-diagnostics";
/// Namespace of kube-proxy.
pub const KUBE_PROXY_NAMESPACE: &str = "openshift-kube-proxy";
/// Namespace of the default network `Weft`.
pub const POD_NETWORK_NAMESPACE: &str = "weft-pod-network";

/// Default network OVN-Kubernetes.
pub const OVN_KUBERNETES: &str = "OVNKubernetes";
/// Default network of this project.
pub const WEFT: &str = "Weft";

/// Provider of additional routing capabilities.
pub const FRR: &str = "FRR";
/// Namespace of FRR.
pub const FRR_NAMESPACE: &str = "openshift-frr-k8s";
/// ConfigMap in [`FRR_NAMESPACE`] with the certificate authorities of the webhook, on a plain cluster.
pub const FRR_BUNDLE: &str = "frr-k8s-ca";

/// Type of additional networks with a CNI configuration of the user.
pub const RAW: &str = "Raw";
/// Type of additional networks by macvlan.
pub const SIMPLE_MACVLAN: &str = "SimpleMacvlan";

/// Management state of an operator configuration that the operator leaves alone.
pub const UNMANAGED: &str = "Unmanaged";

/// Configuration of the default network `Weft` for container runtimes.
pub const POD_NETWORK_FILE: &str = "10-weft.conflist";

/// Configuration of OVN-Kubernetes for container runtimes.
pub const OVN_FILE: &str = "10-ovn-kubernetes.conf";

/// Label with the part of the network, on every rendered object. Watches select by this label.
pub const PART_LABEL: &str = "networkoperator.openshift.io/part";
/// Label of workloads whose rollout the operator reports (§11.1).
pub const STATUS_LABEL: &str = "networkoperator.openshift.io/generates-operator-status";
/// Value of [`STATUS_LABEL`] on rendered workloads.
pub const STAND_ALONE: &str = "stand-alone";
/// Annotation with the version of the operator that rendered a workload.
pub const VERSION_ANNOTATION: &str = "release.openshift.io/version";
/// Annotation of workloads that do not decide condition `Available` (§11.2).
pub const NON_CRITICAL: &str = "networkoperator.openshift.io/non-critical";
/// Annotation of workloads whose rollout makes no progress (§11.2).
pub const ROLLOUT_HUNG: &str = "networkoperator.openshift.io/rollout-hung";
/// Annotation of objects that are created, and never updated (§5.1).
pub const CREATE_ONLY: &str = "networkoperator.openshift.io/create-only";
/// Annotation of objects that are neither created, updated nor pruned for now (§5.1).
pub const CREATE_WAIT: &str = "networkoperator.openshift.io/create-wait";
/// Annotation of objects whose failed apply does not degrade the network (§5.1).
pub const IGNORE_ERRORS: &str = "networkoperator.openshift.io/ignore-errors";
/// Annotation with a patch that is sent before the object (§5.1).
pub const PRE_PATCH: &str = "networkoperator.openshift.io/pre-patch";
/// Annotation of pods with the hash of the configuration that they read at their start.
pub const CONFIG_HASH: &str = "network.operator.openshift.io/config-hash";
/// Annotation of objects in another cluster, with the name of that cluster (§18.3).
pub const CLUSTER_NAME: &str = "network.operator.openshift.io/cluster-name";
/// Deployment of the operator of a hosted cluster, in the management cluster.
pub const HOSTED_OPERATOR: &str = "cluster-network-operator";
/// URL of a hosted cluster's API server for pods of its control plane.
pub const HOSTED_API_SERVER: &str = "https://kube-apiserver:6443";
/// Name of the cluster that hosts the control plane.
pub const MANAGEMENT: &str = "management";
/// Annotation of the `ClusterOperator` with all objects in the management cluster.
pub const RELATED_CLUSTER_OBJECTS: &str = "network.operator.openshift.io/relatedClusterObjects";
/// Annotation of the `ClusterOperator` with the last observed state of the workloads (§11.2).
pub const LAST_SEEN_STATE: &str = "network.operator.openshift.io/last-seen-state";

/// Annotation of the `ClusterOperator` with the machine configurations that pools may carry (§11.2).
pub const MACHINE_CONFIG_STATE: &str = "network.operator.openshift.io/rendered-machineconfig-state";

/// Label of nodes with their operating system.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// Value of [`OS_LABEL`] on the nodes of the network.
pub const LINUX: &str = "linux";
/// Label of control plane nodes in old Kubernetes versions and on OpenShift.
pub const MASTER_LABEL: &str = "node-role.kubernetes.io/master";
/// Label of control plane nodes.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// Variable of containers with the name or address of the API server.
pub const API_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// Variable of containers with the port of the API server.
pub const API_PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Name of the `ClusterOperator`.
pub const CLUSTER_OPERATOR: &str = "network";
/// ConfigMap with the applied configuration.
pub const APPLIED: &str = "applied-cluster";
/// Key of the configuration in ConfigMap [`APPLIED`].
pub const APPLIED_KEY: &str = "applied";
/// ConfigMap with the MTU of the nodes, and its key of that value.
pub const MTU: &str = "mtu";
/// ConfigMap with the gateway mode of OVN-Kubernetes.
pub const GATEWAY_MODE: &str = "gateway-mode-config";

/// The network of an egress router (§17.5).
pub const EGRESS_ROUTER_NETWORK: &str = "egress-router-cni-nad";
/// The Deployment of an egress router (§17.5).
pub const EGRESS_ROUTER_DEPLOYMENT: &str = "egress-router-cni-deployment";
/// Annotation of pods with their selection of networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// The networking plugin of OpenShift's web console: its `ConsolePlugin`, Deployment, Service and `ConfigMap`, its entry
/// in the console, and the placeholder of its image (§18.1).
pub const CONSOLE_PLUGIN: &str = "networking-console-plugin";

/// The controller that assigns private addresses of the cloud to nodes: its Deployment, account and roles (§18.5).
pub const CLOUD_NETWORK: &str = "cloud-network-config-controller";
/// Namespace of [`CLOUD_NETWORK`].
pub const CLOUD_NETWORK_NAMESPACE: &str = "openshift-cloud-network-config-controller";
/// ConfigMap with the cloud's configuration, in [`MANAGED_NAMESPACE`] and in [`CLOUD_NETWORK_NAMESPACE`].
pub const CLOUD_CONFIG: &str = "kube-cloud-config";

/// `ConfigMap` in the operator's namespace that switches iptables-alerter off, and its key (§17.3).
pub const ALERTER_CONFIG: &str = "iptables-alerter-config";

/// The operator of network observability: its `ClusterExtension` and namespace, and the beginning of the
/// names of its `ClusterServiceVersion`s (§18.6).
pub const OBSERVABILITY: &str = "netobserv-operator";
/// Namespaces with the `ClusterServiceVersion` of network observability: that of upstream's operator, and the
/// one that OpenShift's catalog suggests to users.
pub const OBSERVABILITY_NAMESPACES: [&str; 2] = [OBSERVABILITY, "openshift-netobserv-operator"];
/// Definition of the kind that requests network observability.
pub const FLOW_COLLECTORS: &str = "flowcollectors.flows.netobserv.io";
/// Feature gate of the installation of network observability.
pub const OBSERVABILITY_GATE: &str = "NetworkObservabilityInstall";

/// Field managers of server-side apply (§5.1).
pub mod manager {
    /// Field manager of rendered objects and of the operator configuration.
    pub const OPERATOR_CONFIG: &str = "cluster-network-operator/operconfig";
    /// Field manager of the fields that the cluster configuration decides.
    pub const CLUSTER_CONFIG: &str = "cluster-network-operator/clusterconfig";
    /// Field manager of the objects and statuses of egress routers.
    pub const EGRESS_ROUTER: &str = "cluster-network-operator/egress_router";
    /// Field manager of the addresses of the API and of the ingress.
    pub const INFRASTRUCTURE: &str = "cluster-network-operator/infrastructureconfig";
    /// Field manager of the objects with which network observability is installed.
    pub const OBSERVABILITY: &str = "cno-observability-controller";
    /// Field manager of statuses.
    pub const STATUS: &str = "cluster-network-operator/status-manager";
}

/// Environment variables of the operator (§1.1).
pub mod env {
    /// Version for annotations and statuses.
    pub const VERSION: &str = "RELEASE_VERSION";
    /// Image of Weft.
    pub const OWN_IMAGE: &str = "NETWORK_OPERATOR_IMAGE";
    /// Image of kube-proxy.
    pub const KUBE_PROXY_IMAGE: &str = "KUBE_PROXY_IMAGE";
    /// Image of kube-rbac-proxy.
    pub const KUBE_RBAC_PROXY_IMAGE: &str = "KUBE_RBAC_PROXY_IMAGE";
    /// Directory of CNI configurations on the nodes.
    pub const CNI_CONF_DIR: &str = "CNI_CONF_DIR";
    /// Directory of CNI plugins on the nodes.
    pub const CNI_BIN_DIR: &str = "CNI_BIN_DIR";
    /// Image of the component that enforces network policies on additional networks.
    pub const MULTI_NETWORK_POLICY_IMAGE: &str = "MULTUS_NETWORKPOLICY_IMAGE";
    /// Image of the IPAM plugin whereabouts and its components.
    pub const WHEREABOUTS_IMAGE: &str = "WHEREABOUTS_CNI_IMAGE";
    /// Image of the pods of egress routers.
    pub const EGRESS_ROUTER_IMAGE: &str = "EGRESS_ROUTER_CNI_IMAGE";
    /// Image of FRR and of the programs that configure it.
    pub const FRR_IMAGE: &str = "FRR_K8S_IMAGE";
    /// Image of the networking plugin of OpenShift's web console.
    pub const CONSOLE_PLUGIN_IMAGE: &str = "NETWORKING_CONSOLE_PLUGIN_IMAGE";
    /// Image of network-metrics-daemon.
    pub const NETWORK_METRICS_IMAGE: &str = "NETWORK_METRICS_DAEMON_IMAGE";
    /// Image of the controller that assigns private addresses of the cloud to nodes.
    pub const CLOUD_NETWORK_IMAGE: &str = "CLOUD_NETWORK_CONFIG_CONTROLLER_IMAGE";
    /// Image of OVN-Kubernetes.
    pub const OVN_IMAGE: &str = "OVN_IMAGE";
    /// Interval of northd's probes of its database connections, in milliseconds.
    pub const OVN_NORTHD_PROBE: &str = "OVN_NORTHD_PROBE_INTERVAL";
    /// Interval of probes of connections to southbound databases, in milliseconds.
    pub const OVN_CONTROLLER_PROBE: &str = "OVN_CONTROLLER_INACTIVITY_PROBE";
    /// Interval of probes of connections to northbound databases, in milliseconds.
    pub const OVN_NB_PROBE: &str = "OVN_NB_INACTIVITY_PROBE";
    /// Port on which nodes answer health checks for egress addresses.
    pub const OVN_EGRESS_PORT: &str = "OVN_EGRESSIP_HEALTHCHECK_PORT";
    /// Name of the operator's own pod.
    pub const POD_NAME: &str = "POD_NAME";
    /// Image pull policy.
    pub const PULL_POLICY: &str = "IMAGE_PULL_POLICY";
    /// Image of the operator in installations of upstream's operator.
    pub const CHECK_SOURCE_IMAGE: &str = "NETWORK_CHECK_SOURCE_IMAGE";
    /// `true` if another cluster hosts the control plane (§18.3).
    pub const HYPERSHIFT: &str = "HYPERSHIFT";
    /// Name of the `HostedControlPlane`.
    pub const HOSTED_NAME: &str = "HOSTED_CLUSTER_NAME";
    /// Namespace of the hosted control plane.
    pub const HOSTED_NAMESPACE: &str = "HOSTED_CLUSTER_NAMESPACE";
    /// Image of OVN-Kubernetes for the management cluster.
    pub const OVN_CONTROL_PLANE_IMAGE: &str = "OVN_CONTROL_PLANE_IMAGE";
    /// Image of the program that gets tokens of the hosted cluster.
    pub const TOKEN_MINTER_IMAGE: &str = "TOKEN_MINTER_IMAGE";
    /// Audience of these tokens.
    pub const TOKEN_AUDIENCE: &str = "TOKEN_AUDIENCE";
    /// Image of the proxy into the network of the hosted cluster.
    pub const SOCKS_PROXY_IMAGE: &str = "SOCKS5_PROXY_IMAGE";
    /// Image with kubectl for the management cluster.
    pub const CLI_CONTROL_PLANE_IMAGE: &str = "CLI_CONTROL_PLANE_IMAGE";
    /// Image with kubectl.
    pub const CLI_IMAGE: &str = "CLI_IMAGE";
    /// Image of the release, for annotations of pods.
    pub const RELEASE_IMAGE: &str = "OPENSHIFT_RELEASE_IMAGE";
    /// User of the pods in the management cluster.
    pub const RUN_AS_USER: &str = "RUN_AS_USER";
    /// `ConfigMap` with the certificate authorities of the management cluster's services.
    pub const CA_CONFIG_MAP: &str = "CA_CONFIG_MAP";
    /// Key of these certificate authorities.
    pub const CA_CONFIG_MAP_KEY: &str = "CA_CONFIG_MAP_KEY";
    /// `true` if clients inside a hosted cluster reach its API server through the cluster's proxy.
    pub const PROXIED_API_SERVER: &str = "PROXY_INTERNAL_APISERVER_ADDRESS";
    /// `1` if the Prometheus of Red Hat's observability service monitors the management cluster.
    pub const RHOBS_MONITORING: &str = "RHOBS_MONITORING";
    /// The proxy of the management cluster, for HTTP.
    pub const MANAGEMENT_HTTP_PROXY: &str = "MGMT_HTTP_PROXY";
    /// The proxy of the management cluster, for TLS.
    pub const MANAGEMENT_HTTPS_PROXY: &str = "MGMT_HTTPS_PROXY";
    /// Hosts that the management cluster reaches without its proxy.
    pub const MANAGEMENT_NO_PROXY: &str = "MGMT_NO_PROXY";
    /// `SecretProviderClass` with credentials of Azure, in the management cluster.
    pub const AZURE_SECRET_CLASS: &str = "ARO_HCP_SECRET_PROVIDER_CLASS";
    /// File of [`AZURE_SECRET_CLASS`].
    pub const AZURE_CREDENTIALS: &str = "MANAGED_AZURE_HCP_CREDENTIALS_FILE_PATH";
    /// File with credentials of GCP, in the management cluster.
    pub const GCP_CREDENTIALS: &str = "GCP_CNCC_CREDENTIALS_FILE";
    /// Name or address of the API server, for programs on the nodes.
    pub const API_HOST: &str = "APISERVER_OVERRIDE_HOST";
    /// Port of the API server, for programs on the nodes.
    pub const API_PORT: &str = "APISERVER_OVERRIDE_PORT";
}

/// Names of metrics.
pub mod metric {
    /// The state of `IPsec`.
    pub const IPSEC_STATE: &str = "openshift_network_operator_ipsec_state";
    /// Conditions of the operator.
    pub const CONDITION: &str = "weft_cluster_network_condition";
}

/// `PrometheusRule` with the alerts for the operator's conditions.
pub const ALERTS: &str = "network-operator-rules";

/// Label of kube-proxy's pods and `DaemonSet` in an installation by kubeadm.
pub const FOREIGN_KUBE_PROXY: (&str, &str) = ("k8s-app", "kube-proxy");
/// User agent.
pub const COMPONENT: &str = "network-operator";
/// ConfigMap in which the probers report the MTU of their nodes.
pub const MTU_PROBER_RESULTS: &str = "mtu-prober";
/// Key with the MTU of each node, in ConfigMap [`MTU`].
pub const MTU_OF_NODES: &str = "nodes";
/// Label of the prober's pods.
pub const MTU_PROBER_APP: &str = "mtu-prober";
/// Field manager of the MTU prober.
pub const MTU_PROBER: &str = "cluster-network-operator/mtu-prober";
/// The Deployment of the operator.
pub const OPERATOR_DEPLOYMENT: &str = "network-operator";

/// Lease of the leading operator.
pub const LEADER_LEASE: &str = "network-operator-lock";
/// Namespace of OVN-Kubernetes.
pub const OVN_NAMESPACE: &str = "openshift-ovn-kubernetes";
/// Namespace of the node identity components of OVN-Kubernetes.
pub const NODE_IDENTITY_NAMESPACE: &str = "openshift-network-node-identity";
/// `DaemonSet` of the node identity components, and `OperatorPKI` of their certificate.
pub const NODE_IDENTITY: &str = "network-node-identity";
/// Namespace of `ConfigMaps` that all users may read.
pub const MANAGED_NAMESPACE: &str = "openshift-config-managed";
/// Namespace of Kubernetes' own components.
pub const KUBE_SYSTEM: &str = "kube-system";
/// `ConfigMap` in `kube-system` with the state of the installation.
pub const BOOTSTRAP: &str = "bootstrap";
/// `ConfigMap` in `kube-system` with the configuration of the installer.
pub const INSTALL_CONFIG: &str = "cluster-config-v1";
/// `ClusterOperator` of the machine config operator.
pub const MACHINE_OPERATOR: &str = "machine-config";
/// `ConfigMaps` that tune OVN-Kubernetes (§7.1).
pub const OVS_FLOWS: &str = "ovs-flows-config";
/// See [`OVS_FLOWS`].
pub const UDP_AGGREGATION: &str = "udp-aggregation-config";
/// See [`OVS_FLOWS`].
pub const HARDWARE_OFFLOAD: &str = "hardware-offload-config";
/// See [`OVS_FLOWS`].
pub const OVN_OVERRIDES: &str = "ovn-kubernetes-config-overrides";
/// `DaemonSet` and `ConfigMap` of OVN-Kubernetes' nodes, and the key of the latter.
pub const OVN_NODE: &str = "ovnkube-node";
/// `DaemonSet`s of OVN-Kubernetes' nodes with hardware offload: smart NICs, and hosts of DPUs.
pub const OVN_OFFLOADED_NODES: [&str; 2] = ["ovnkube-node-smart-nic", "ovnkube-node-dpu-host"];
/// See [`OVN_NODE`].
pub const OVN_CONFIG: &str = "ovnkube-config";
/// See [`OVN_NODE`].
pub const OVN_CONFIG_KEY: &str = "ovnkube.conf";
/// Annotation of the pods of [`OVN_NODE`] with the hash of the file. The pods read the file only at their start.
pub const OVN_CONFIG_HASH: &str = "network.operator.openshift.io/ovnkube-node-config-hash";

/// Value of `spec.migration.nodePolicies`: dry runs alone.
pub const DRY_RUN: &str = "DryRun";
/// Value of `spec.migration.nodePolicies`: dry runs, then the change.
pub const APPLY: &str = "Apply";
/// Value of [`PART_LABEL`] on the node network policies of a migration, and suffix of their field manager.
pub const MTU_MIGRATION: &str = "mtu-migration";
/// Annotation of the operator configuration with the MTUs of a begun migration, while its policies exist.
pub const MTU_MIGRATION_BEGUN: &str = "networkoperator.openshift.io/mtu-migration";
/// Annotation of policies with the MTU that they lead to, or [`FORMER`].
pub const MTU_GOAL: &str = "networkoperator.openshift.io/mtu";
/// Value of [`MTU_GOAL`] on policies that lead back.
pub const FORMER: &str = "former";
/// Annotation of policies with the interfaces before the migration.
pub const FORMER_MTU: &str = "networkoperator.openshift.io/former-mtu";
/// Annotation of policies that are a dry run of a node that an earlier version may have changed.
pub const MTU_CHANGED: &str = "networkoperator.openshift.io/mtu-changed";
/// Deployment of OVN-Kubernetes' control plane.
pub const OVN_CONTROL_PLANE: &str = "ovnkube-control-plane";
/// Label of nodes by which policies select them.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// Literals of `docs/behaviour/nmstate.md`.
pub mod nmstate {
    /// Annotation of policies that nodes compare and do not apply.
    pub const DRY_RUN: &str = "nmstate.io/dry-run";
    /// Annotation of policies that may be edited while nodes apply them.
    pub const EDIT_IN_PROGRESS: &str = "nmstate.io/edit-in-progress";
    /// Condition of enactments: the policy is applied.
    pub const AVAILABLE: &str = "Available";
    /// Condition of enactments: the policy is being applied.
    pub const PROGRESSING: &str = "Progressing";
    /// Condition of enactments: the policy failed.
    pub const FAILING: &str = "Failing";
    /// Condition of enactments: the policy is not applied, because it failed elsewhere.
    pub const ABORTED: &str = "Aborted";
    /// Label of enactments with the name of their node.
    pub const NODE_LABEL: &str = "nmstate.io/node";
    /// Label of enactments with the name of their policy.
    pub const POLICY_LABEL: &str = "nmstate.io/policy";
    /// Condition of node network states: the report was too large, and parts of it are left out.
    pub const PRUNED: &str = "Pruned";
    /// Reason of [`FAILING`] if the handler retries what failed.
    pub const RETRYING: &str = "Retrying";
    /// Reason of [`AVAILABLE`] after a dry run.
    pub const TRIED: &str = "DryRun";
}
