//! What things are called (nmstate §2, §11, §13).

/// Label of an enactment: its policy.
pub const POLICY_LABEL: &str = "nmstate.io/policy";
/// Label of an enactment: its node.
pub const NODE_LABEL: &str = "nmstate.io/node";
/// Label of a report: whoever changes its value asks for a new one.
pub const REFRESH_LABEL: &str = "nmstate.io/force-nns-refresh";
/// Label of handlers' pods, and its value.
pub const HANDLER_PODS: (&str, &str) = ("component", "kubernetes-nmstate-handler");
/// Annotation of a policy: when it was last admitted, in nanoseconds since 1970.
pub const MUTATED: &str = "nmstate.io/webhook-mutating-timestamp";

/// Name of the client towards the API server.
pub const COMPONENT: &str = "nmstate";
/// The program that runs on every node.
pub const HANDLER: &str = "handler";
/// Variables that make another program of `manager`, and that program; the first that is there counts.
pub const RUN: [(&str, &str); 4] = [
    ("RUN_CERT_MANAGER", "cert-manager"),
    ("RUN_WEBHOOK_SERVER", "webhook"),
    ("RUN_METRICS_MANAGER", "metrics"),
    ("RUN_OPERATOR", "operator"),
];
/// Variables whose values become labels, and those labels.
pub const RELATIONSHIP_LABELS: [(&str, &str); 4] = [
    ("COMPONENT", "app.kubernetes.io/component"),
    ("PART_OF", "app.kubernetes.io/part-of"),
    ("VERSION", "app.kubernetes.io/version"),
    ("MANAGED_BY", "app.kubernetes.io/managed-by"),
];
/// File that is there when the handler is ready.
pub const READY_FILE: &str = "/tmp/healthy";
/// Name that the DNS probe looks up where nobody says another.
pub const PROBE_HOST: &str = "root-servers.net";
/// What [`env::BACKEND`] says for hosts without NetworkManager.
pub const KERNEL: &str = "kernel";
/// ConfigMap with the filter of older releases, and its key.
pub const FILTER_CONFIG: (&str, &str) = ("nmstate-config", "nmstate.yaml");
/// Annotation of a policy: with the value `true` enactments say what they would change, and change nothing.
pub const DRY_RUN: &str = "nmstate.io/dry-run";

/// Annotation of a policy: with the value `true` its spec may be changed while it is in progress. Nodes that apply the
/// former one roll it back.
pub const EDIT_IN_PROGRESS: &str = "nmstate.io/edit-in-progress";

/// What an event's source is called after the node and a dot.
pub const EVENT_SOURCE: &str = "nmstate-handler";
/// Reason of events about policies that could not be applied.
pub const RECONCILE_FAILED: &str = "ReconcileFailed";

/// Aspects of the state of policies and enactments (nmstate §2.3, §2.4).
pub mod condition {
    /// It is as it is wanted.
    pub const AVAILABLE: &str = "Available";
    /// A policy failed on some node.
    pub const DEGRADED: &str = "Degraded";
    /// An enactment failed.
    pub const FAILING: &str = "Failing";
    /// It is being applied.
    pub const PROGRESSING: &str = "Progressing";
    /// It waits for other nodes.
    pub const PENDING: &str = "Pending";
    /// It is not tried because other nodes failed.
    pub const ABORTED: &str = "Aborted";
    /// A policy is for no node.
    pub const IGNORED: &str = "Ignored";
    /// A policy's maxUnavailable is understood: false where it is not, and not there at all otherwise.
    pub const MAX_UNAVAILABLE_VALID: &str = "MaxUnavailableValid";

    /// Of policies, in the order in which a new one has them.
    pub const OF_POLICIES: [&str; 4] = [AVAILABLE, DEGRADED, PROGRESSING, IGNORED];
    /// Of enactments, in that order.
    pub const OF_ENACTMENTS: [&str; 5] = [AVAILABLE, FAILING, PROGRESSING, PENDING, ABORTED];
}

/// Why conditions are as they are.
pub mod reason {
    /// It is being applied.
    pub const PROGRESSING: &str = "ConfigurationProgressing";
    /// It is being applied, and a node failed an attempt or became `NotReady`: it may be edited.
    pub const STALLED: &str = "ConfigurationStalled";
    /// It was applied.
    pub const SUCCESS: &str = "SuccessfullyConfigured";
    /// It could not be applied.
    pub const FAILED: &str = "FailedToConfigure";
    /// It could not be applied, and will be tried again.
    pub const RETRYING: &str = "Retrying";
    /// As many nodes as may are being configured.
    pub const LIMIT_REACHED: &str = "MaxUnavailableLimitReached";
    /// It is neither a number nor a percentage.
    pub const INVALID_MAX_UNAVAILABLE: &str = "InvalidMaxUnavailable";
    /// Too many nodes failed.
    pub const ABORTED: &str = "ConfigurationAborted";
    /// No node matches.
    pub const NO_MATCHING_NODE: &str = "NoMatchingNode";
    /// It was only tried.
    pub const DRY_RUN: &str = "DryRun";
}

/// The configuration of the webhooks; the authority of their certificates has its name.
pub const WEBHOOK_CONFIGURATION: &str = "nmstate";
/// Service in front of the webhook, and the Secret with its certificate, where the configuration names no other.
pub const WEBHOOK_SERVICE: &str = "nmstate-webhook";
/// The Secret of the authority.
pub const WEBHOOK_AUTHORITY: &str = "nmstate-ca";
/// Port of the webhook.
pub const WEBHOOK_PORT: u16 = 9443;
/// Where the kubelet puts the webhook's certificate.
pub const WEBHOOK_CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Path of the webhook's probe.
pub const READYZ: &str = "/readyz";
/// Paths of the webhooks.
pub mod path {
    /// Empties the conditions of a policy.
    pub const CONDITIONS: &str = "/nodenetworkconfigurationpolicies-mutate";
    /// Lets empty conditions of a policy be unknown ones.
    pub const STATUS: &str = "/nodenetworkconfigurationpolicies-status-mutate";
    /// Says in a policy when it was admitted.
    pub const TIMESTAMP: &str = "/nodenetworkconfigurationpolicies-timestamp-mutate";
    /// Whether a policy may be changed so, for clusters without validating admission policies.
    pub const VALIDATE_UPDATE: &str = "/nodenetworkconfigurationpolicies-update-validate";
    /// Whether there may be such a policy, for clusters without validating admission policies.
    pub const VALIDATE_CREATE: &str = "/nodenetworkconfigurationpolicies-create-validate";
}

/// Service in front of the metrics.
pub const METRICS_SERVICE: &str = "nmstate-monitor";
/// Where the metrics are served unless [`env::METRICS_BIND_ADDRESS`] says otherwise.
pub const METRICS_ADDRESS: &str = ":8089";
/// Where the kubelet puts the metrics' certificate on OpenShift.
pub const METRICS_CERTIFICATES: &str = "/tmp/k8s-metrics-server/serving-certs";
/// Path of the metrics, and of the right to read them.
pub const METRICS_PATH: &str = "/metrics";
/// File with the TLS profile on OpenShift.
pub const TLS_PROFILE: &str = "/etc/nmstate/tls/profile.json";

/// Environment variables.
pub mod env {
    /// `true` on OpenShift.
    pub const IS_OPENSHIFT: &str = "IS_OPENSHIFT";
    /// Where metrics are served.
    pub const METRICS_BIND_ADDRESS: &str = "METRICS_BIND_ADDRESS";
    /// The handler's node.
    pub const NODE_NAME: &str = "NODE_NAME";
    /// The pod's name.
    pub const POD_NAME: &str = "POD_NAME";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Namespace of what the operator deploys; the pod's namespace where that is not said.
    pub const HANDLER_NAMESPACE: &str = "HANDLER_NAMESPACE";
    /// What names of deployed objects begin with.
    pub const PREFIX: &str = "HANDLER_PREFIX";
    /// File that one handler of a node holds.
    pub const LOCK_FILE: &str = "NMSTATE_INSTANCE_NODE_LOCK_FILE";
    /// Name that the DNS probe looks up.
    pub const PROBE_DNS_HOST: &str = "PROBE_DNS_HOST";
    /// Attempts at a policy.
    pub const MAX_RETRIES: &str = "NNCP_MAX_RETRIES";
    /// The longest wait before another attempt, in seconds.
    pub const MAX_BACKOFF: &str = "NNCP_MAX_BACKOFF_SECONDS";
    /// The wait before the second attempt, in seconds.
    pub const INITIAL_BACKOFF: &str = "NNCP_INITIAL_BACKOFF_SECONDS";
    /// Ours: `kernel` for hosts without NetworkManager.
    pub const BACKEND: &str = "WEFT_NMSTATE_BACKEND";
    /// Ours: `false` leaves the original design unheard: what nodes' states ask for, and policies that match interfaces.
    pub const ORIGINAL_DESIGN: &str = "WEFT_NMSTATE_ORIGINAL_DESIGN";
    /// Ours: another file that is there when the handler is ready.
    pub const READY_FILE: &str = "WEFT_NMSTATE_READY_FILE";
    /// Ours: how often policies are compared with the host, in seconds.
    pub const DRIFT_INTERVAL: &str = "WEFT_NMSTATE_DRIFT_SECONDS";
    /// Ours: how often the host is read though nobody tells of a change, in seconds.
    pub const RESYNC_INTERVAL: &str = "WEFT_NMSTATE_RESYNC_SECONDS";
}
