//! Texts that users read in conditions and events (nmstate §2.3, §2.4, §5.5).

use super::slots::DEFAULT_PERCENT;

/// An enactment is being applied.
pub const APPLYING: &str = "Applying desired state";
/// An enactment waits for its turn.
pub const WAITING: &str = "Waiting for progressing nodes to finish";
/// A policy is for no node.
pub const NO_NODE: &str = "Policy does not match any node";

/// An enactment is Available, and nothing was done.
pub const UNMATCHED: &str =
    "successfully reconciled: no interface of this node matches the policy, nothing was changed";
/// The same of a policy that is only tried.
pub const UNMATCHED_TRIED: &str =
    "dry run: no interface of this node matches the policy, nothing would change";

/// The default holds in the place of a maxUnavailable that is not understood.
pub fn default_limit(mistake: &str) -> String {
    format!("{mistake}; the default of {DEFAULT_PERCENT}% holds")
}

/// The document of an enactment could not be made.
pub fn not_generated(error: &str) -> String {
    format!("failure generating desiredState and capturedStates: {error}")
}

/// The same, where the controller tries again by itself.
pub fn not_generated_yet(error: &str) -> String {
    not_generated(error) + "; another attempt follows"
}

/// An enactment could not be applied, finally. What the engine logged is part of the error, where it helps.
pub fn not_applied(node: &str, error: &str) -> String {
    format!(
        "error reconciling NodeNetworkConfigurationPolicy on node {node} at desired state apply: \"\",\n {error}"
    )
}

/// An enactment could not be applied, and will be tried again; `failed` attempts before this one.
pub fn retrying(node: &str, failed: u32, most: u32) -> String {
    format!(
        "failed to reconcile NodeNetworkConfigurationPolicy on node {node}. Retrying {}/{most}",
        failed.saturating_add(1)
    )
}

/// An enactment is not tried any more because others failed.
pub fn aborted(enactment: &str) -> String {
    format!("reconciliation of enactment {enactment:?} has aborted")
}

/// An enactment failed as often as it may.
pub fn failed(enactment: &str, attempts: u32) -> String {
    format!("reconciliation of enactment {enactment:?} has failed after {attempts} retries")
}

/// An enactment failed in a way that no other attempt would change.
pub fn refused(enactment: &str) -> String {
    format!("reconciliation of enactment {enactment:?} has failed, another attempt would fail as well")
}

/// Nodes on which a policy failed.
pub fn degraded(failed: usize, nodes: usize, aborted: usize) -> String {
    let mut text = format!("{failed}/{nodes} nodes failed to configure");
    if aborted > 0 {
        text += &format!(", {aborted} nodes aborted configuration");
    }
    text
}

/// Nodes that are done with a policy.
pub fn progressing(finished: usize, awaited: usize, pending: usize, not_ready: usize) -> String {
    let mut text = format!("Policy is progressing {finished}/{awaited} nodes finished");
    if pending > 0 {
        text += &format!(", {pending} pending");
    }
    text + &ignored(not_ready)
}

/// Nodes that have what a policy wants.
pub fn available(available: usize, nodes: usize, not_ready: usize) -> String {
    format!("{available}/{nodes} nodes successfully configured") + &ignored(not_ready)
}

/// Nodes that a policy was only tried on.
pub fn tried(tried: usize, nodes: usize, not_ready: usize) -> String {
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
    fn the_error_follows_on_a_line_of_its_own() {
        assert_eq!(
            not_applied("node01", "InvalidArgument: c"),
            "error reconciling NodeNetworkConfigurationPolicy on node node01 at desired state apply: \"\",\n \
             InvalidArgument: c"
        );
    }
}
