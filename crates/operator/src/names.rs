//! Names that the operator shares with its users: environment variables, objects, reasons.

/// Name of the admission policy for configurations, and of its binding.
pub(crate) const ADMISSION_POLICY: &str = "network-addons-config";
/// Resource of configurations.
pub(crate) const CONFIGURATIONS: &str = "networkaddonsconfigs";

/// Name of the operator in requests, events and leases.
pub const OPERATOR: &str = "cluster-network-addons-operator";
/// Namespace of the shipped manifests.
pub const DEFAULT_NAMESPACE: &str = "cluster-network-addons";
/// Namespace of the monitoring stack in the shipped manifests.
pub const MONITORING_NAMESPACE: &str = "openshift-monitoring";
/// Value of the label `app.kubernetes.io/managed-by` on all rendered objects.
pub const MANAGED_BY: &str = "cnao-operator";
/// Default value of the label `app.kubernetes.io/component`, for a configuration resource without the label.
pub(crate) const DEFAULT_COMPONENT: &str = "network";
/// Label that excludes kubemacpool's objects from the operator's metrics Service.
pub(crate) const CONTROL_PLANE_LABEL: &str = "control-plane";
/// Value of [`CONTROL_PLANE_LABEL`] on the excluded objects.
pub(crate) const MAC_CONTROLLER_MANAGER: &str = "mac-controller-manager";

/// ConfigMap that records the last applied configuration (operator §6); the plural is historic.
pub(crate) const APPLIED_CONFIG_MAP: &str = "cluster-networks-addons-operator-applied-cluster";
/// Key of the applied specification.
pub(crate) const APPLIED_KEY: &str = "applied";

/// Component of the operator's events.
pub(crate) const EVENT_COMPONENT: &str = "cluster";

/// Name of the controller and its queue in metrics.
pub(crate) const CONTROLLER: &str = "networkaddonsconfig-controller";
/// Service through which the operator's metrics are scraped.
pub(crate) const METRICS_SERVICE: &str = "cluster-network-addons-operator-prometheus-metrics";

/// The operator's own metrics (operator §10.1).
pub(crate) mod metric {
    /// 1 while Available is True.
    pub(crate) const READY: &str = "kubevirt_cnao_cr_ready";
    /// 1 while the MAC pool is deployed.
    pub(crate) const MAC_POOL: &str = "kubevirt_cnao_cr_kubemacpool_deployed";
}

/// Label of pods that network policies allow to reach the API server and the DNS (operands §10).
pub(crate) const CLUSTER_SERVICES_LABEL: &str = "allow-access-cluster-services";

/// Annotation that selects the security context constraints of a pod on OpenShift.
pub(crate) const REQUIRED_SCC: &str = "openshift.io/required-scc";

/// Name of the singleton objects of OpenShift's cluster configuration.
pub(crate) const OPENSHIFT_CLUSTER: &str = "cluster";

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

    /// Image of the operator itself.
    pub const OPERATOR_IMAGE: &str = "OPERATOR_IMAGE";
    /// Name of the operator; kept in the manifest for tools.
    pub const OPERATOR_NAME: &str = "OPERATOR_NAME";
    /// Version in status and labels.
    pub const OPERATOR_VERSION: &str = "OPERATOR_VERSION";
    /// Namespace of the operator.
    pub const OPERATOR_NAMESPACE: &str = "OPERATOR_NAMESPACE";
    /// Namespace of the operands.
    pub const OPERAND_NAMESPACE: &str = "OPERAND_NAMESPACE";
    /// Must be set, and may be empty.
    pub const WATCH_NAMESPACE: &str = "WATCH_NAMESPACE";
    /// Name of the operator's pod.
    pub const POD_NAME: &str = "POD_NAME";
    /// Namespace of the monitoring stack.
    pub const MONITORING_NAMESPACE: &str = "MONITORING_NAMESPACE";
    /// Service account of the monitoring stack.
    pub const MONITORING_SERVICE_ACCOUNT: &str = "MONITORING_SERVICE_ACCOUNT";
    /// Template of the links of alerts.
    pub const RUNBOOK_URL_TEMPLATE: &str = "RUNBOOK_URL_TEMPLATE";
    /// Verbosity of the log.
    pub const LOG_LEVEL: &str = "CNAO_LOG_LEVEL";
}

/// Types of the conditions in status.
pub mod condition {
    /// All requested components are deployed and ready.
    pub const AVAILABLE: &str = "Available";
    /// A workload is being rolled out.
    pub const PROGRESSING: &str = "Progressing";
    /// A step failed.
    pub const DEGRADED: &str = "Degraded";
    /// Suffix of the types of the components' own conditions.
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

    /// Whether a type is that of a component's own condition, of any version of the operator.
    pub fn is_of_component(kind: &str) -> bool {
        kind != AVAILABLE && kind.ends_with(OF_COMPONENT)
    }

    /// Type that the first generation wrote instead of [`DEGRADED`].
    pub const FAILING: &str = "Failing";
}

/// Reasons of conditions and events (operator §7.3, §7.4).
pub mod reason {
    /// OpenShift's network configuration cannot be read.
    pub const OPENSHIFT_NETWORK: &str = "FailedToGetOpenShiftNetworkConfig";
    /// The specification is invalid.
    pub const VALIDATE: &str = "FailedToValidate";
    /// The record of the last applied configuration cannot be read, or the change is not allowed.
    pub const PREVIOUS_CONFIG: &str = "FailedToGetPreviousConfigSpec";
    /// Objects cannot be rendered.
    pub const RENDER: &str = "FailedToRender";
    /// Objects of removed components cannot be rendered.
    pub const RENDER_DELETE: &str = "FailedToRenderDelete";
    /// An object cannot be applied.
    pub const APPLY: &str = "FailedToApply";
    /// A watch is refused, fails or is stale.
    pub const WATCH: &str = "FailedToWatch";
    /// An object cannot be deleted.
    pub const DELETE: &str = "FailedToDeleteObjects";
    /// The namespace of a workload is gone.
    pub const NO_NAMESPACE: &str = "NoNamespace";
    /// A DaemonSet is gone.
    pub const NO_DAEMON_SET: &str = "NoDaemonSet";
    /// A Deployment is gone.
    pub const NO_DEPLOYMENT: &str = "NoDeployment";
    /// Available is False because of a failure.
    pub const FAILING: &str = "Failing";
    /// Available is False because a workload is being rolled out.
    pub const STARTUP: &str = "Startup";
    /// Progressing is True.
    pub const DEPLOYING: &str = "Deploying";
    /// Progressing is False because a user has to act.
    pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";
    /// Event: a workload was changed.
    pub const MODIFIED: &str = "Modified";
    /// Event: workloads are being rolled out.
    pub const PROGRESSING: &str = "Progressing";
    /// Event: all components are available again.
    pub const AVAILABLE: &str = "Available";
}
