//! What the operator and what it deploys are called (nmstate §10, §11).

use crate::names;

/// Who writes the status.
pub const FIELD_OWNER: &str = "nmstate-operator";
/// Kind that everything deployed belongs to.
pub const OWNER_KIND: &str = "NMState";
/// Label that tells what the operator deployed from everything else, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nmstate-operator");
/// Port of the probes.
pub const HEALTH_PORT: u16 = 8081;
/// The role that collects what may be read of a cluster.
pub const CLUSTER_READER: &str = "cluster-reader";
/// OpenShift's one `APIServer` and its one `Console`.
pub const OPENSHIFT_CLUSTER: &str = "cluster";
/// Group and version of a kind that only OpenShift has.
pub const OPENSHIFT_API: &str = "security.openshift.io/v1";
/// That kind.
pub const OPENSHIFT_RESOURCE: &str = "securitycontextconstraints";
/// The ConfigMap with the TLS profile, and its key.
pub const TLS_CONFIG: (&str, &str) = ("nmstate-tls-config", "profile.json");
/// Where that ConfigMap is mounted: [`names::TLS_PROFILE`] is its key there.
pub const TLS_DIRECTORY: &str = "/etc/nmstate/tls";
/// Annotation of pods: their TLS profile. Another one is another pod.
pub const TLS_HASH: &str = "nmstate.io/tls-profile-hash";
/// Annotation that has OpenShift issue a certificate.
pub const SERVING_CERTIFICATE: &str = "service.beta.openshift.io/serving-cert-secret-name";
/// The Secret that it is in for the metrics.
pub const OPENSHIFT_METRICS: &str = "openshift-nmstate-metrics";
/// The Secret that it is in for the webhook, whose Service says so in its manifest.
pub const OPENSHIFT_WEBHOOK: &str = "openshift-nmstate-webhook";

/// Namespace of events about what has none.
pub const EVENTS_NAMESPACE: &str = "default";

/// Namespace and name of the Service of the API server.
pub const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// Port of the API server that policies allow in any case, and how the names of those policies end.
pub const API_PORT: (i32, &str) = (6443, "-egress-api-6443");

/// The handler.
pub const HANDLER: &str = "nmstate-handler";
/// The webhook; also its Service and its Secret.
pub const WEBHOOK: &str = names::WEBHOOK_SERVICE;
/// The metrics.
pub const METRICS: &str = "nmstate-metrics";
/// The network policy that lets the metrics' port be asked.
pub const METRICS_INGRESS: &str = "allow-metrics-ingress-8443";
/// The Service of the metrics.
pub const MONITOR: &str = names::METRICS_SERVICE;
/// What keeps certificates where OpenShift does not.
pub const CERT_MANAGER: &str = "nmstate-cert-manager";
/// The role of the handler that is for events.
pub const HANDLER_EVENTS: &str = "nmstate-handler-events";
/// The admission policy that holds handlers to their own node, and its binding.
pub const HANDLER_NODE: &str = "nmstate-handler-node";
/// The role that lets those read node network state who may read the cluster.
pub const READER: &str = "nmstate-cluster-reader";
/// The console's plugin, as it is called in its manifests.
pub const PLUGIN: &str = "nmstate-console-plugin";

/// Namespaces as they are called in manifests.
pub mod namespace {
    /// Of everything deployed.
    pub const HANDLER: &str = "nmstate";
    /// Of the operator.
    pub const OPERATOR: &str = "nmstate-operator";
    /// Of Prometheus.
    pub const MONITORING: &str = "monitoring";
}

/// Environment variables.
pub mod env {
    /// The operator's own namespace.
    pub const OPERATOR_NAMESPACE: &str = "OPERATOR_NAMESPACE";
    /// Namespace of Prometheus.
    pub const MONITORING_NAMESPACE: &str = "MONITORING_NAMESPACE";
    /// Image that everything deployed runs.
    pub const HANDLER_IMAGE: &str = "RELATED_IMAGE_HANDLER_IMAGE";
    /// When it is pulled.
    pub const PULL_POLICY: &str = "HANDLER_IMAGE_PULL_POLICY";
    /// Whether profiles are served.
    pub const ENABLE_PROFILER: &str = "ENABLE_PROFILER";
    /// Where.
    pub const PROFILER_PORT: &str = "PROFILER_PORT";
    /// Name of the console's plugin.
    pub const PLUGIN_NAME: &str = "PLUGIN_NAME";
    /// Its image.
    pub const PLUGIN_IMAGE: &str = "PLUGIN_IMAGE";
    /// Its port.
    pub const PLUGIN_PORT: &str = "PLUGIN_PORT";
    /// Ours: where manifests are read from instead of the ones in the program.
    pub const MANIFESTS: &str = "WEFT_NMSTATE_MANIFESTS";
    /// Intervals of certificates.
    pub const CERTIFICATES: [&str; 4] = [
        "CA_ROTATE_INTERVAL",
        "CA_OVERLAP_INTERVAL",
        "CERT_ROTATE_INTERVAL",
        "CERT_OVERLAP_INTERVAL",
    ];
}

/// Variables of the operator that are the handler's too.
pub const HANDED_ON: [&str; 7] = [
    names::env::MAX_RETRIES,
    names::env::MAX_BACKOFF,
    names::env::INITIAL_BACKOFF,
    names::env::BACKEND,
    names::env::ORIGINAL_DESIGN,
    names::env::DRIFT_INTERVAL,
    names::env::RESYNC_INTERVAL,
];

/// Reasons of conditions.
pub mod reason {
    /// Something is on its way.
    pub const DEPLOYING: &str = "Deploying";
    /// Everything is there.
    pub const DEPLOYED: &str = "SuccessfullyDeployed";
    /// Something can't be deployed.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// The TLS profile names what can't be served.
    pub const TLS_PROFILE: &str = "TLSProfileNotFullyHonored";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_look_for_the_tls_profile_where_it_is_mounted() {
        assert_eq!(format!("{TLS_DIRECTORY}/{}", TLS_CONFIG.1), names::TLS_PROFILE);
    }
}
