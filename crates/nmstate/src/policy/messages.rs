//! Texts that users read in conditions and events (nmstate §2.3, §2.4, §5.5).

use super::slots::DEFAULT_PERCENT;

/// Message of an enactment that is being applied.
pub(crate) const APPLYING: &str = "Applying desired state";
/// Message of an enactment that waits for a slot.
pub(crate) const WAITING: &str = "Waiting for progressing nodes to finish";
/// Message of a policy that selects no node.
pub(crate) const NO_NODE: &str = "Policy does not match any node";

/// Message of an enactment that is Available without a change.
pub(crate) const UNMATCHED: &str =
    "successfully reconciled: no interface of this node matches the policy, nothing was changed";
/// The same of a dry run.
pub(crate) const UNMATCHED_TRIED: &str =
    "dry run: no interface of this node matches the policy, nothing would change";

/// The default replaces an invalid maxUnavailable.
pub(crate) fn default_limit(mistake: &str) -> String {
    format!("{mistake}; the default of {DEFAULT_PERCENT}% holds")
}

/// The policy could not be rendered.
pub(crate) fn not_generated(error: &str) -> String {
    format!("failure generating desiredState and capturedStates: {error}")
}

/// The same, if the controller retries by itself.
pub(crate) fn not_generated_yet(error: &str) -> String {
    again(&not_generated(error))
}

/// A failure after which the controller retries by itself.
pub(crate) fn again(error: &str) -> String {
    format!("{error}; another attempt follows")
}

/// The policy failed for good. The error includes the engine's log where that helps.
pub(crate) fn not_applied(node: &str, error: &str) -> String {
    format!(
        "error reconciling NodeNetworkConfigurationPolicy on node {node} at desired state apply: \"\",\n {error}"
    )
}

/// The policy failed and is retried, after `failed` earlier failures.
pub(crate) fn retrying(node: &str, failed: u32, most: u32) -> String {
    format!(
        "failed to reconcile NodeNetworkConfigurationPolicy on node {node}. Retrying {}/{most}",
        failed.saturating_add(1)
    )
}

/// The policy is not applied because other nodes failed.
pub(crate) fn aborted(enactment: &str) -> String {
    format!("reconciliation of enactment {enactment:?} has aborted")
}

/// All attempts of an enactment failed.
pub(crate) fn failed(enactment: &str, attempts: u32) -> String {
    format!("reconciliation of enactment {enactment:?} has failed after {attempts} retries")
}

/// An enactment failed with an error that no retry would change.
pub(crate) fn refused(enactment: &str) -> String {
    format!("reconciliation of enactment {enactment:?} has failed, another attempt would fail as well")
}

/// A policy failed on some nodes.
pub(crate) fn degraded(failed: usize, nodes: usize, aborted: usize) -> String {
    let mut text = format!("{failed}/{nodes} nodes failed to configure");
    if aborted > 0 {
        text += &format!(", {aborted} nodes aborted configuration");
    }
    text
}

/// A policy is in progress on some nodes.
pub(crate) fn progressing(finished: usize, awaited: usize, pending: usize, not_ready: usize) -> String {
    let mut text = format!("Policy is progressing {finished}/{awaited} nodes finished");
    if pending > 0 {
        text += &format!(", {pending} pending");
    }
    text + &ignored(not_ready)
}

/// A policy was applied on all nodes.
pub(crate) fn available(available: usize, nodes: usize, not_ready: usize) -> String {
    format!("{available}/{nodes} nodes successfully configured") + &ignored(not_ready)
}

/// A dry run of a policy ended on all nodes.
pub(crate) fn tried(tried: usize, nodes: usize, not_ready: usize) -> String {
    format!("{tried}/{nodes} nodes tried, nothing was applied") + &ignored(not_ready)
}

fn ignored(not_ready: usize) -> String {
    match not_ready {
        0 => String::new(),
        count => format!(", {count} nodes ignored due to NotReady state"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // nmstate#29
    #[test]
    fn attempts_are_counted_from_one() {
        assert_eq!(
            retrying("node01", 0, 5),
            "failed to reconcile NodeNetworkConfigurationPolicy on node node01. Retrying 1/5"
        );
        assert_eq!(
            failed("node01.br1", 5),
            "reconciliation of enactment \"node01.br1\" has failed after 5 retries"
        );
        assert_eq!(
            aborted("node01.br1"),
            "reconciliation of enactment \"node01.br1\" has aborted"
        );
    }

    #[test]
    fn error_is_on_its_own_line() {
        assert_eq!(
            not_applied("node01", "InvalidArgument: c"),
            "error reconciling NodeNetworkConfigurationPolicy on node node01 at desired state apply: \"\",\n \
             InvalidArgument: c"
        );
    }
}
