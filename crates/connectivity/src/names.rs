//! Literals: names of objects, labels, reasons and addresses.

use std::time::Duration;

/// Namespace of the diagnostics' workloads and of the checks.
pub(crate) const NAMESPACE: &str = "openshift-network-diagnostics";
/// Label of source and target pods. Its value is [`SOURCE`] or [`TARGET`].
pub(crate) const APP: &str = "app";
/// Value of [`APP`] for source pods, and prefix of the names of checks.
pub(crate) const SOURCE: &str = "network-check-source";
/// Value of [`APP`] for target pods, and name of their DaemonSet and Service.
pub(crate) const TARGET: &str = "network-check-target";
/// Label of generated checks.
pub(crate) const MANAGED_BY: &str = "networking.openshift.io/managedBy";
/// Value of [`MANAGED_BY`].
pub(crate) const MANAGER: &str = "oc-connectivity-check-controller";
/// Separator of source and target in the name of a check.
pub(crate) const TO: &str = "-to-";

/// Source component of events.
pub(crate) const EVENT_COMPONENT: &str = "check-endpoint";
/// User agent of `weft check-endpoints`.
pub(crate) const CHECK_ENDPOINTS: &str = "check-endpoints";
/// Variable with the name of the program's own pod.
pub(crate) const POD_NAME: &str = "POD_NAME";
/// Variable with the namespace of the program's own pod.
pub(crate) const POD_NAMESPACE: &str = "POD_NAMESPACE";
/// Variable with the name of a target's node.
pub(crate) const NODE_NAME: &str = "K8S_NODE_NAME";
/// Port of a target.
pub(crate) const TARGET_PORT: u16 = 8080;
/// Directory of the serving certificate for metrics.
pub(crate) const SERVING_CERTIFICATE: &str = "/var/run/secrets/serving-cert";

/// Annotation of a check with the time of the latest request to run it at once.
pub(crate) const REQUESTED: &str = "networkoperator.openshift.io/check-requested";

/// Type of the condition of a check.
pub(crate) const REACHABLE: &str = "Reachable";

/// Interval between two checks of an endpoint.
pub(crate) const INTERVAL: Duration = Duration::from_mins(1);
/// Least time from a run of a check to the next run that is requested.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);
/// Timeout of a connection.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Reasons of entries in the lists of a check.
pub(crate) mod entry {
    pub(crate) const DNS_RESOLVE: &str = "DNSResolve";
    pub(crate) const DNS_ERROR: &str = "DNSError";
    pub(crate) const TCP_CONNECT: &str = "TCPConnect";
    pub(crate) const TCP_CONNECT_ERROR: &str = "TCPConnectError";
}

/// Reasons of conditions and events.
pub(crate) mod reason {
    /// Reason of the condition of a reachable endpoint.
    pub(crate) const SUCCESS: &str = "TCPConnectSuccess";
    pub(crate) const OUTAGE: &str = "ConnectivityOutageDetected";
    pub(crate) const RESTORED: &str = "ConnectivityRestored";
}
