//! User-visible texts that the specification fixes (operator §5.1, §7).

pub(crate) mod specification;

/// Joins the errors of a specification, one per line.
pub(crate) fn invalid_configuration(errors: &[String]) -> String {
    format!("invalid configuration:\n{}", errors.join("\n"))
}

/// Message of Degraded: the specification is invalid.
pub(crate) fn failed_to_validate(errors: &[String]) -> String {
    format!(
        "failed to validate NetworkConfig.Spec: {}",
        invalid_configuration(errors)
    )
}

/// Message of Degraded: the record of the last applied configuration cannot be read.
pub(crate) fn previous_configuration(cause: &str) -> String {
    format!("failed to retrieve previously applied configuration: {cause}")
}

/// Message of Degraded: the change is not allowed.
pub(crate) fn unsafe_change(errors: &[String]) -> String {
    format!("not applying unsafe change: {}", invalid_configuration(errors))
}

/// Message of Available when the configuration as a whole is rejected.
pub(crate) const UNABLE_TO_APPLY: &str = "Unable to apply desired configuration";
/// Message of Progressing when the configuration as a whole is rejected.
pub(crate) const HUMAN_NEEDED: &str = "Human interaction is needed, please fix the desired configuration";
/// Message of Available when a workload is gone.
pub(crate) const PODS_FAILING: &str = "Some problems occurred while deploying components' pods";
/// Message of Available while workloads are rolled out.
pub(crate) const IN_PROCESS: &str = "Configuration is in process";
/// Event: a workload was changed.
pub(crate) const MODIFIED: &str = "Config spec was modified";
/// Event: workloads are being rolled out.
pub(crate) const PROGRESSING: &str = "Operator is progressing";
/// Event: all components are available again.
pub(crate) const AVAILABLE: &str = "All applied components are available";

/// Help of [`READY`](crate::names::metric::READY).
pub(crate) const READY_HELP: &str = "CNAO CR Ready";
/// Help of [`MAC_POOL`](crate::names::metric::MAC_POOL).
pub(crate) const MAC_POOL_HELP: &str = "KubeMacpool is deployed by CNAO CR";

/// Event: a step failed.
pub fn operator_failed(message: &str) -> String {
    format!("Operator failed: {message}")
}

/// Reason of the event about a failure with this reason.
pub(crate) fn failed_reason(reason: &str) -> String {
    format!("Failed: {reason}")
}
