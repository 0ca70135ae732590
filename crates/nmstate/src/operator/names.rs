//! Names of the operator and of the objects that it deploys (nmstate §10, §11).

use crate::names;

/// Field manager of the status.
pub(crate) const FIELD_OWNER: &str = "nmstate-operator";
/// Kind of the deployed objects' owner.
pub(crate) const OWNER_KIND: &str = "NMState";
/// Label of the deployed objects.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nmstate-operator");
/// Port of the probes.
pub(crate) const HEALTH_PORT: u16 = 8081;
/// Aggregated role of cluster readers.
pub(crate) const CLUSTER_READER: &str = "cluster-reader";
/// Name of OpenShift's only `APIServer` and `Console`.
pub(crate) const OPENSHIFT_CLUSTER: &str = "cluster";
/// Group and version of a kind that only OpenShift has.
pub(crate) const OPENSHIFT_API: &str = "security.openshift.io/v1";
/// The resource of that kind.
pub(crate) const OPENSHIFT_RESOURCE: &str = "securitycontextconstraints";
/// ConfigMap and key of the TLS profile.
pub(crate) const TLS_CONFIG: (&str, &str) = ("nmstate-tls-config", "profile.json");
/// Mount point of that ConfigMap, which contains [`names::TLS_PROFILE`].
pub(crate) const TLS_DIRECTORY: &str = "/etc/nmstate/tls";
/// Pod annotation with the hash of the TLS profile: a change restarts the pods.
pub(crate) const TLS_HASH: &str = "nmstate.io/tls-profile-hash";
/// Annotation for a serving certificate of OpenShift.
pub(crate) const SERVING_CERTIFICATE: &str = "service.beta.openshift.io/serving-cert-secret-name";
/// Secret of that certificate for the metrics.
pub(crate) const OPENSHIFT_METRICS: &str = "openshift-nmstate-metrics";
/// Secret of that certificate for the webhook; its Service has the annotation in the manifest.
pub(crate) const OPENSHIFT_WEBHOOK: &str = "openshift-nmstate-webhook";

/// Namespace of events about cluster-scoped objects.
pub(crate) const EVENTS_NAMESPACE: &str = "default";

/// Namespace and name of the API server's Service.
pub(crate) const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// Port of the API server that network policies always permit, and the suffix of their names.
pub(crate) const API_PORT: (i32, &str) = (6443, "-egress-api-6443");

/// The handler.
pub(crate) const HANDLER: &str = "nmstate-handler";
/// The webhook; also its Service and its Secret.
pub(crate) const WEBHOOK: &str = names::WEBHOOK_SERVICE;
/// The metrics.
pub(crate) const METRICS: &str = "nmstate-metrics";
/// Network policy for scrapes of the metrics.
pub(crate) const METRICS_INGRESS: &str = "allow-metrics-ingress-8443";
/// The Service of the metrics.
pub(crate) const MONITOR: &str = names::METRICS_SERVICE;
/// The certificate manager outside OpenShift.
pub(crate) const CERT_MANAGER: &str = "nmstate-cert-manager";
/// The handler's role for events.
pub(crate) const HANDLER_EVENTS: &str = "nmstate-handler-events";
/// Admission policy that restricts handlers to their own node, and its binding.
pub(crate) const HANDLER_NODE: &str = "nmstate-handler-node";
/// Role that lets cluster readers read node network state.
pub(crate) const READER: &str = "nmstate-cluster-reader";
/// The console plugin, by its name in the manifests.
pub(crate) const PLUGIN: &str = "nmstate-console-plugin";

/// Namespaces, by their names in the manifests.
pub(crate) mod namespace {
    /// Namespace of all deployed objects.
    pub(crate) const HANDLER: &str = "nmstate";
    /// Namespace of the operator.
    pub(crate) const OPERATOR: &str = "nmstate-operator";
    /// Namespace of Prometheus.
    pub(crate) const MONITORING: &str = "monitoring";
}

/// Environment variables.
pub(crate) mod env {
    /// The operator's own namespace.
    pub(crate) const OPERATOR_NAMESPACE: &str = "OPERATOR_NAMESPACE";
    /// Namespace of Prometheus.
    pub(crate) const MONITORING_NAMESPACE: &str = "MONITORING_NAMESPACE";
    /// Image of all deployed workloads.
    pub(crate) const HANDLER_IMAGE: &str = "RELATED_IMAGE_HANDLER_IMAGE";
    /// Pull policy of that image.
    pub(crate) const PULL_POLICY: &str = "HANDLER_IMAGE_PULL_POLICY";
    /// Whether the workloads serve profiles.
    pub(crate) const ENABLE_PROFILER: &str = "ENABLE_PROFILER";
    /// Port of the profiles.
    pub(crate) const PROFILER_PORT: &str = "PROFILER_PORT";
    /// Name of the console plugin.
    pub(crate) const PLUGIN_NAME: &str = "PLUGIN_NAME";
    /// Image of the console plugin.
    pub(crate) const PLUGIN_IMAGE: &str = "PLUGIN_IMAGE";
    /// Port of the console plugin.
    pub(crate) const PLUGIN_PORT: &str = "PLUGIN_PORT";
    /// Ours: directory of manifests that replace those in the program.
    pub(crate) const MANIFESTS: &str = "WEFT_NMSTATE_MANIFESTS";
    /// Intervals of certificates.
    pub(crate) const CERTIFICATES: [&str; 4] = [
        "CA_ROTATE_INTERVAL",
        "CA_OVERLAP_INTERVAL",
        "CERT_ROTATE_INTERVAL",
        "CERT_OVERLAP_INTERVAL",
    ];
}

/// Variables of the operator that it forwards to the handler.
pub(crate) const FORWARDED: [&str; 7] = [
    names::env::MAX_RETRIES,
    names::env::MAX_BACKOFF,
    names::env::INITIAL_BACKOFF,
    names::env::BACKEND,
    names::env::ORIGINAL_DESIGN,
    names::env::DRIFT_INTERVAL,
    names::env::RESYNC_INTERVAL,
];

/// Reasons of conditions.
pub(crate) mod reason {
    /// A workload is not rolled out yet.
    pub(crate) const DEPLOYING: &str = "Deploying";
    /// Everything is rolled out.
    pub(crate) const DEPLOYED: &str = "SuccessfullyDeployed";
    /// The deployment failed.
    pub(crate) const INTERNAL_ERROR: &str = "InternalError";
    /// The TLS profile has unsupported entries.
    pub(crate) const TLS_PROFILE: &str = "TLSProfileNotFullyHonored";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_profile_path_is_in_the_mounted_directory() {
        assert_eq!(format!("{TLS_DIRECTORY}/{}", TLS_CONFIG.1), names::TLS_PROFILE);
    }
}
