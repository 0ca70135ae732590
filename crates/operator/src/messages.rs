//! Texts that users see and that the specification fixes (operator §5.1, §7).

pub mod specification;

/// Puts the errors of a specification into one text, one a line.
pub fn invalid_configuration(errors: &[String]) -> String {
    format!("invalid configuration:\n{}", errors.join("\n"))
}

/// Message of a condition: the specification is invalid.
pub fn failed_to_validate(errors: &[String]) -> String {
    format!(
        "failed to validate NetworkConfig.Spec: {}",
        invalid_configuration(errors)
    )
}

/// Message of a condition: what was applied before can't be read.
pub fn previous_configuration(cause: &str) -> String {
    format!("failed to retrieve previously applied configuration: {cause}")
}

/// Message of a condition: the change is not allowed.
pub fn unsafe_change(errors: &[String]) -> String {
    format!("not applying unsafe change: {}", invalid_configuration(errors))
}

/// Message of Available when the configuration level fails.
pub const UNABLE_TO_APPLY: &str = "Unable to apply desired configuration";
/// Message of Progressing when the configuration level fails.
pub const HUMAN_NEEDED: &str = "Human interaction is needed, please fix the desired configuration";
/// Message of Available when a workload is gone.
pub const PODS_FAILING: &str = "Some problems occurred while deploying components' pods";
/// Message of Available while workloads are rolled out.
pub const IN_PROCESS: &str = "Configuration is in process";
/// Event: a workload was changed.
pub const MODIFIED: &str = "Config spec was modified";
/// Event: workloads are being rolled out.
pub const PROGRESSING: &str = "Operator is progressing";
/// Event: everything is there again.
pub const AVAILABLE: &str = "All applied components are available";

/// What [`READY`](crate::names::metric::READY) means.
pub const READY_HELP: &str = "CNAO CR Ready";
/// What [`MAC_POOL`](crate::names::metric::MAC_POOL) means.
pub const MAC_POOL_HELP: &str = "KubeMacpool is deployed by CNAO CR";

/// Event: something failed.
pub fn operator_failed(message: &str) -> String {
    format!("Operator failed: {message}")
}

/// Reason of the event about a failure with this reason.
pub fn failed_reason(reason: &str) -> String {
    format!("Failed: {reason}")
}

/// A template was not named.
pub const NO_INPUT_FILE: &str = "Must specify input file";
