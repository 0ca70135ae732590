//! Literals: objects, labels, reasons and addresses.

use std::time::Duration;

/// Where the programs of network diagnostics and their checks are.
pub const NAMESPACE: &str = "openshift-network-diagnostics";
/// Label of pods that checks start from, and of pods that they lead to: its value is [`SOURCE`] or [`TARGET`].
pub const APP: &str = "app";
/// Application of the pods that checks start from; names of checks begin with it.
pub const SOURCE: &str = "network-check-source";
/// Application, DaemonSet and Service of the pods that checks lead to.
pub const TARGET: &str = "network-check-target";
/// Label that says who generated a check.
pub const MANAGED_BY: &str = "networking.openshift.io/managedBy";
/// Its value.
pub const MANAGER: &str = "oc-connectivity-check-controller";
/// What stands between source and target in the name of a check.
pub const TO: &str = "-to-";

/// Who the checking program is in events.
pub const EVENT_COMPONENT: &str = "check-endpoint";
/// Who the checking program is for the API server.
pub const CHECK_ENDPOINTS: &str = "check-endpoints";
/// Variables that name the pod that the checking program runs in.
pub const POD_NAME: &str = "POD_NAME";
/// And its namespace.
pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
/// Variable with the name of the node that a target runs on.
pub const NODE_NAME: &str = "K8S_NODE_NAME";
/// Port of a target.
pub const TARGET_PORT: u16 = 8080;
/// Directory with the certificate of the metrics.
pub const SERVING_CERTIFICATE: &str = "/var/run/secrets/serving-cert";

/// The condition of a check.
pub const REACHABLE: &str = "Reachable";

/// How often an endpoint is checked.
pub const INTERVAL: Duration = Duration::from_mins(1);
/// How long a connection may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Reasons of entries in the lists of a check.
pub mod entry {
    /// The host's name was resolved.
    pub const DNS_RESOLVE: &str = "DNSResolve";
    /// It was not.
    pub const DNS_ERROR: &str = "DNSError";
    /// The connection came about.
    pub const TCP_CONNECT: &str = "TCPConnect";
    /// It did not.
    pub const TCP_CONNECT_ERROR: &str = "TCPConnectError";
}

/// Reasons of conditions and events.
pub mod reason {
    /// The latest connection came about.
    pub const SUCCESS: &str = "TCPConnectSuccess";
    /// An outage began.
    pub const OUTAGE: &str = "ConnectivityOutageDetected";
    /// It ended.
    pub const RESTORED: &str = "ConnectivityRestored";
}
