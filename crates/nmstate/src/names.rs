//! What things are called (nmstate §2, §11, §13).

/// Group of all kinds.
pub const GROUP: &str = "nmstate.io";

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

/// Environment variables.
pub mod env {
    /// The handler's node.
    pub const NODE_NAME: &str = "NODE_NAME";
    /// The pod's name.
    pub const POD_NAME: &str = "POD_NAME";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
    /// Namespace of what the operator deploys; the pod's namespace where that is not said.
    pub const HANDLER_NAMESPACE: &str = "HANDLER_NAMESPACE";
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
}
