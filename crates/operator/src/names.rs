//! Names that the operator and its users agree on: environment variables, objects, reasons.

/// Name of the admission policy with the rules for configurations, and of its binding.
pub const ADMISSION_POLICY: &str = "network-addons-config";
/// Resource of configurations.
pub const CONFIGURATIONS: &str = "networkaddonsconfigs";

/// Name by which our requests, events and leases are known.
pub const OPERATOR: &str = "cluster-network-addons-operator";
/// Namespace of the shipped manifests.
pub const DEFAULT_NAMESPACE: &str = "cluster-network-addons";
/// Value of the label `app.kubernetes.io/managed-by` on everything that is rendered.
pub const MANAGED_BY: &str = "cnao-operator";
/// Value of the label `app.kubernetes.io/component` when the configuration resource has none.
pub const DEFAULT_COMPONENT: &str = "network";
/// Label by which kubemacpool's objects opt out of the operator's metrics Service.
pub const CONTROL_PLANE_LABEL: &str = "control-plane";
/// Value of [`CONTROL_PLANE_LABEL`] on the objects that opt out.
pub const MAC_CONTROLLER_MANAGER: &str = "mac-controller-manager";

/// ConfigMap with what was last applied (operator §6); the plural is historic.
pub const APPLIED_CONFIG_MAP: &str = "cluster-networks-addons-operator-applied-cluster";
/// Key of the applied specification.
pub const APPLIED_KEY: &str = "applied";

/// Component that events are recorded under.
pub const EVENT_COMPONENT: &str = "cluster";

/// Name of the reconciles and their queue in metrics.
pub const CONTROLLER: &str = "networkaddonsconfig-controller";
/// Service by which the operator's metrics are scraped.
pub const METRICS_SERVICE: &str = "cluster-network-addons-operator-prometheus-metrics";

/// The operator's own metrics (operator §10.1).
pub mod metric {
    /// 1 while Available is True.
    pub const READY: &str = "kubevirt_cnao_cr_ready";
    /// 1 while the MAC pool is deployed.
    pub const MAC_POOL: &str = "kubevirt_cnao_cr_kubemacpool_deployed";
}

/// Label of pods that network policies let reach the API server and the DNS (operands §10).
pub const CLUSTER_SERVICES_LABEL: &str = "allow-access-cluster-services";

/// Annotation by which OpenShift picks the security context constraints of a pod.
pub const REQUIRED_SCC: &str = "openshift.io/required-scc";

/// Name of the one object in which OpenShift keeps a configuration of the cluster.
pub const OPENSHIFT_CLUSTER: &str = "cluster";

/// Environment variables.
pub mod env {
    /// Image of both containers of multus.
    pub const MULTUS_IMAGE: &str = "MULTUS_IMAGE";
    /// Image of the dynamic networks controller.
    pub const MULTUS_DYNAMIC_NETWORKS_IMAGE: &str = "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE";
    /// Image that installs the CNI plugins for Linux bridges.
    pub const LINUX_BRIDGE_IMAGE: &str = "LINUX_BRIDGE_IMAGE";
    /// Image of the bridge marker.
    pub const LINUX_BRIDGE_MARKER_IMAGE: &str = "LINUX_BRIDGE_MARKER_IMAGE";
    /// Image of both Open vSwitch containers.
    pub const OVS_CNI_IMAGE: &str = "OVS_CNI_IMAGE";
    /// Image of both kubemacpool Deployments.
    pub const KUBEMACPOOL_IMAGE: &str = "KUBEMACPOOL_IMAGE";
    /// Image of both macvtap containers.
    pub const MACVTAP_CNI_IMAGE: &str = "MACVTAP_CNI_IMAGE";
    /// Image that writes the zones of the secondary DNS.
    pub const KUBE_SECONDARY_DNS_IMAGE: &str = "KUBE_SECONDARY_DNS_IMAGE";
    /// Image that serves the zones of the secondary DNS.
    pub const CORE_DNS_IMAGE: &str = "CORE_DNS_IMAGE";
    /// Image of the KubeVirt IPAM controller.
    pub const KUBEVIRT_IPAM_CONTROLLER_IMAGE: &str = "KUBEVIRT_IPAM_CONTROLLER_IMAGE";

    /// The ten of them, in the order of the shipped Deployment (operator §13.1).
    pub const IMAGES: [&str; 10] = [
        MULTUS_IMAGE,
        MULTUS_DYNAMIC_NETWORKS_IMAGE,
        LINUX_BRIDGE_IMAGE,
        LINUX_BRIDGE_MARKER_IMAGE,
        OVS_CNI_IMAGE,
        KUBEMACPOOL_IMAGE,
        MACVTAP_CNI_IMAGE,
        KUBE_SECONDARY_DNS_IMAGE,
        CORE_DNS_IMAGE,
        KUBEVIRT_IPAM_CONTROLLER_IMAGE,
    ];

    /// Image of the operator itself.
    pub const OPERATOR_IMAGE: &str = "OPERATOR_IMAGE";
    /// Name of the operator; kept in the manifest for tools.
    pub const OPERATOR_NAME: &str = "OPERATOR_NAME";
    /// Version that goes into status and labels.
    pub const OPERATOR_VERSION: &str = "OPERATOR_VERSION";
    /// Namespace of the operator.
    pub const OPERATOR_NAMESPACE: &str = "OPERATOR_NAMESPACE";
    /// Namespace of everything that is deployed.
    pub const OPERAND_NAMESPACE: &str = "OPERAND_NAMESPACE";
    /// Must exist, may be empty.
    pub const WATCH_NAMESPACE: &str = "WATCH_NAMESPACE";
    /// Name of the operator's pod.
    pub const POD_NAME: &str = "POD_NAME";
    /// Namespace of the monitoring stack.
    pub const MONITORING_NAMESPACE: &str = "MONITORING_NAMESPACE";
    /// Service account of the monitoring stack.
    pub const MONITORING_SERVICE_ACCOUNT: &str = "MONITORING_SERVICE_ACCOUNT";
    /// Where alerts link to.
    pub const RUNBOOK_URL_TEMPLATE: &str = "RUNBOOK_URL_TEMPLATE";
    /// Verbosity of the log.
    pub const LOG_LEVEL: &str = "CNAO_LOG_LEVEL";
}

/// Types of the conditions in status.
pub mod condition {
    /// Everything asked for is there.
    pub const AVAILABLE: &str = "Available";
    /// Something is being rolled out.
    pub const PROGRESSING: &str = "Progressing";
    /// Something is wrong.
    pub const DEGRADED: &str = "Degraded";
    /// End of the types of the components' own conditions.
    const OF_COMPONENT: &str = "Available";

    /// Type of a component's own condition: `LinuxBridgeAvailable` for `linuxBridge`.
    pub fn of_component(name: &str) -> String {
        let mut letters = name.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first
            .into_iter()
            .chain(letters)
            .chain(OF_COMPONENT.chars())
            .collect()
    }

    /// Whether a type is that of a component's own condition, of this version's or another's.
    pub fn is_of_component(kind: &str) -> bool {
        kind != AVAILABLE && kind.ends_with(OF_COMPONENT)
    }

    /// Type that the first generation wrote instead of [`DEGRADED`].
    pub const FAILING: &str = "Failing";
}

/// Reasons of conditions and events (operator §7.3, §7.4).
pub mod reason {
    /// OpenShift's network configuration can't be read.
    pub const OPENSHIFT_NETWORK: &str = "FailedToGetOpenShiftNetworkConfig";
    /// The specification is invalid.
    pub const VALIDATE: &str = "FailedToValidate";
    /// What was applied before can't be read, or the change is unsafe.
    pub const PREVIOUS_CONFIG: &str = "FailedToGetPreviousConfigSpec";
    /// Objects can't be rendered.
    pub const RENDER: &str = "FailedToRender";
    /// Objects of removed components can't be rendered.
    pub const RENDER_DELETE: &str = "FailedToRenderDelete";
    /// An object can't be applied.
    pub const APPLY: &str = "FailedToApply";
    /// A watch is refused, fails or is stale.
    pub const WATCH: &str = "FailedToWatch";
    /// An object can't be deleted.
    pub const DELETE: &str = "FailedToDeleteObjects";
    /// The namespace of a workload is gone.
    pub const NO_NAMESPACE: &str = "NoNamespace";
    /// A DaemonSet is gone.
    pub const NO_DAEMON_SET: &str = "NoDaemonSet";
    /// A Deployment is gone.
    pub const NO_DEPLOYMENT: &str = "NoDeployment";
    /// Available is False because of a failure.
    pub const FAILING: &str = "Failing";
    /// Available is False because something is being rolled out.
    pub const STARTUP: &str = "Startup";
    /// Progressing is True.
    pub const DEPLOYING: &str = "Deploying";
    /// Progressing is False because somebody has to act.
    pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";
    /// Event: a workload was changed.
    pub const MODIFIED: &str = "Modified";
    /// Event: workloads are being rolled out.
    pub const PROGRESSING: &str = "Progressing";
    /// Event: everything is there again.
    pub const AVAILABLE: &str = "Available";
}
