//! Names of labels, annotations, objects, files and variables (nmstate §2, §11, §13).

/// Label of an enactment: policy name.
pub(crate) const POLICY_LABEL: &str = "nmstate.io/policy";
/// Label of an enactment: node name.
pub(crate) const NODE_LABEL: &str = "nmstate.io/node";
/// Label of a report: a new value requests a new report.
pub(crate) const REFRESH_LABEL: &str = "nmstate.io/force-nns-refresh";
/// Label of handler pods.
pub(crate) const HANDLER_PODS: (&str, &str) = ("component", "kubernetes-nmstate-handler");
/// Annotation of a policy: time of the last admission, in nanoseconds since 1970.
pub(crate) const MUTATED: &str = "nmstate.io/webhook-mutating-timestamp";

/// User agent towards the API server.
pub(crate) const COMPONENT: &str = "nmstate";
/// Name of the handler among the programs.
pub(crate) const HANDLER: &str = "handler";
/// Variables that select another program of `manager`; the first one that is set counts.
pub(crate) const RUN: [(&str, &str); 4] = [
    ("RUN_CERT_MANAGER", "cert-manager"),
    ("RUN_WEBHOOK_SERVER", "webhook"),
    ("RUN_METRICS_MANAGER", "metrics"),
    ("RUN_OPERATOR", "operator"),
];
/// Variables whose values become labels, with these labels.
pub(crate) const RELATIONSHIP_LABELS: [(&str, &str); 4] = [
    ("COMPONENT", "app.kubernetes.io/component"),
    ("PART_OF", "app.kubernetes.io/part-of"),
    ("VERSION", "app.kubernetes.io/version"),
    ("MANAGED_BY", "app.kubernetes.io/managed-by"),
];
/// File that exists while the handler is ready.
pub(crate) const READY_FILE: &str = "/tmp/healthy";
/// Default name that the DNS probe resolves.
pub(crate) const PROBE_HOST: &str = "root-servers.net";
/// Value of [`env::BACKEND`] for hosts without NetworkManager.
pub(crate) const KERNEL: &str = "kernel";
/// ConfigMap and key of the filter of older releases.
pub(crate) const FILTER_CONFIG: (&str, &str) = ("nmstate-config", "nmstate.yaml");
/// Annotation of a policy: `true` makes it a dry run.
pub(crate) const DRY_RUN: &str = "nmstate.io/dry-run";

/// Annotation of a policy: `true` permits changes of the spec while the policy is in progress. Nodes that are applying
/// the earlier spec roll it back.
pub(crate) const EDIT_IN_PROGRESS: &str = "nmstate.io/edit-in-progress";

/// Suffix of an event's source, after the node and a dot.
pub(crate) const EVENT_SOURCE: &str = "nmstate-handler";
/// Reason of events about failed policies.
pub(crate) const RECONCILE_FAILED: &str = "ReconcileFailed";

/// Condition types of policies and enactments (nmstate §2.3, §2.4).
pub(crate) mod condition {
    /// The desired state is applied.
    pub(crate) const AVAILABLE: &str = "Available";
    /// The policy failed on some node.
    pub(crate) const DEGRADED: &str = "Degraded";
    /// The policy failed on this node.
    pub(crate) const FAILING: &str = "Failing";
    /// The policy is being applied.
    pub(crate) const PROGRESSING: &str = "Progressing";
    /// The node waits for a slot.
    pub(crate) const PENDING: &str = "Pending";
    /// The policy is not applied because it failed on other nodes.
    pub(crate) const ABORTED: &str = "Aborted";
    /// The policy selects no node.
    pub(crate) const IGNORED: &str = "Ignored";
    /// False while a policy's maxUnavailable is invalid, and removed otherwise.
    pub(crate) const MAX_UNAVAILABLE_VALID: &str = "MaxUnavailableValid";

    /// Condition types of policies, in the order of a new policy.
    pub(crate) const OF_POLICIES: [&str; 4] = [AVAILABLE, DEGRADED, PROGRESSING, IGNORED];
    /// Condition types of enactments, in the order of a new enactment.
    pub(crate) const OF_ENACTMENTS: [&str; 5] = [AVAILABLE, FAILING, PROGRESSING, PENDING, ABORTED];
}

/// Reasons of conditions.
pub(crate) mod reason {
    /// The policy is being applied.
    pub(crate) const PROGRESSING: &str = "ConfigurationProgressing";
    /// The policy is being applied, and a node failed an attempt or became `NotReady`: it may be edited.
    pub(crate) const STALLED: &str = "ConfigurationStalled";
    /// The policy was applied.
    pub(crate) const SUCCESS: &str = "SuccessfullyConfigured";
    /// The policy failed for good.
    pub(crate) const FAILED: &str = "FailedToConfigure";
    /// The policy failed, and is retried.
    pub(crate) const RETRYING: &str = "Retrying";
    /// Other nodes hold all slots.
    pub(crate) const LIMIT_REACHED: &str = "MaxUnavailableLimitReached";
    /// maxUnavailable is neither a number nor a percentage.
    pub(crate) const INVALID_MAX_UNAVAILABLE: &str = "InvalidMaxUnavailable";
    /// Too many nodes failed.
    pub(crate) const ABORTED: &str = "ConfigurationAborted";
    /// The policy selects no node.
    pub(crate) const NO_MATCHING_NODE: &str = "NoMatchingNode";
    /// The policy was a dry run.
    pub(crate) const DRY_RUN: &str = "DryRun";
}

/// The webhook configuration, and the organization of its certificate authority.
pub(crate) const WEBHOOK_CONFIGURATION: &str = "nmstate";
/// Service of the webhook, and the Secret of its serving certificate, unless the configuration names others.
pub(crate) const WEBHOOK_SERVICE: &str = "nmstate-webhook";
/// Secret of the certificate authority.
pub(crate) const WEBHOOK_AUTHORITY: &str = "nmstate-ca";
/// Port of the webhook.
pub(crate) const WEBHOOK_PORT: u16 = 9443;
/// Directory of the webhook's serving certificate.
pub(crate) const WEBHOOK_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Path of the webhook's probe.
pub(crate) const READYZ: &str = "/readyz";
/// Paths of the webhooks.
pub(crate) mod path {
    /// Removes the conditions of a policy.
    pub(crate) const CONDITIONS: &str = "/nodenetworkconfigurationpolicies-mutate";
    /// Sets missing conditions of a policy to Unknown.
    pub(crate) const STATUS: &str = "/nodenetworkconfigurationpolicies-status-mutate";
    /// Records the time of admission in a policy.
    pub(crate) const TIMESTAMP: &str = "/nodenetworkconfigurationpolicies-timestamp-mutate";
    /// Validates changes of a policy, for clusters without validating admission policies.
    pub(crate) const VALIDATE_UPDATE: &str = "/nodenetworkconfigurationpolicies-update-validate";
    /// Validates new policies, for clusters without validating admission policies.
    pub(crate) const VALIDATE_CREATE: &str = "/nodenetworkconfigurationpolicies-create-validate";
}

/// Service of the metrics.
pub(crate) const METRICS_SERVICE: &str = "nmstate-monitor";
/// Default of [`env::METRICS_BIND_ADDRESS`].
pub(crate) const METRICS_ADDRESS: &str = ":8089";
/// Directory of the metrics' serving certificate on OpenShift.
pub(crate) const METRICS_CERTIFICATES: &str = "/tmp/k8s-metrics-server/serving-certs";
/// Path of the metrics, also in the access check.
pub(crate) const METRICS_PATH: &str = "/metrics";
/// File with the TLS profile on OpenShift.
pub(crate) const TLS_PROFILE: &str = "/etc/nmstate/tls/profile.json";

/// Environment variables.
pub(crate) mod env {
    /// `true` on OpenShift.
    pub(crate) const IS_OPENSHIFT: &str = "IS_OPENSHIFT";
    /// Address on which metrics are served.
    pub(crate) const METRICS_BIND_ADDRESS: &str = "METRICS_BIND_ADDRESS";
    /// Name of the handler's node.
    pub(crate) const NODE_NAME: &str = "NODE_NAME";
    /// Name of the pod.
    pub(crate) const POD_NAME: &str = "POD_NAME";
    /// Namespace of the pod.
    pub(crate) const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Namespace of the deployed objects; the pod's namespace by default.
    pub(crate) const HANDLER_NAMESPACE: &str = "HANDLER_NAMESPACE";
    /// Prefix of the names of deployed objects.
    pub(crate) const PREFIX: &str = "HANDLER_PREFIX";
    /// Lock file of the node's handler.
    pub(crate) const LOCK_FILE: &str = "NMSTATE_INSTANCE_NODE_LOCK_FILE";
    /// Name that the DNS probe resolves.
    pub(crate) const PROBE_DNS_HOST: &str = "PROBE_DNS_HOST";
    /// Maximum number of attempts at a policy.
    pub(crate) const MAX_RETRIES: &str = "NNCP_MAX_RETRIES";
    /// Maximum back-off, in seconds.
    pub(crate) const MAX_BACKOFF: &str = "NNCP_MAX_BACKOFF_SECONDS";
    /// Back-off before the second attempt, in seconds.
    pub(crate) const INITIAL_BACKOFF: &str = "NNCP_INITIAL_BACKOFF_SECONDS";
    /// Ours: `kernel` for hosts without NetworkManager.
    pub(crate) const BACKEND: &str = "WEFT_NMSTATE_BACKEND";
    /// Ours: `false` disables the original design: `NodeNetworkState.spec`, and policies that match interfaces.
    pub(crate) const ORIGINAL_DESIGN: &str = "WEFT_NMSTATE_ORIGINAL_DESIGN";
    /// Ours: the file that exists while the handler is ready.
    pub(crate) const READY_FILE: &str = "WEFT_NMSTATE_READY_FILE";
    /// Ours: interval at which policies are compared with the host, in seconds.
    pub(crate) const DRIFT_INTERVAL: &str = "WEFT_NMSTATE_DRIFT_SECONDS";
    /// Ours: interval at which the host is read without an event, in seconds.
    pub(crate) const RESYNC_INTERVAL: &str = "WEFT_NMSTATE_RESYNC_SECONDS";
}
