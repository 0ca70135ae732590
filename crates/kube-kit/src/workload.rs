//! How far a workload is, in the words that operators of networks use of it (operator.md §7.2, nmstate.md §10.2).

use serde_json::Value;

use crate::object::DAEMON_SET;

/// A workload whose last change nobody has taken up yet.
pub fn processed(subject: &str, generation: i64, observed: i64) -> String {
    format!("{subject} update is being processed (generation {generation}, observed generation {observed})")
}

/// The first thing that is still going on with a `DaemonSet` or a `Deployment`, if any. `subject` is how it is called in
/// front of people.
pub fn progress(kind: &str, subject: &str, object: &Value) -> Option<String> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let (generation, observed) = (
        number("/metadata/generation"),
        number("/status/observedGeneration"),
    );
    let (unavailable, available, updated, desired) = if kind == DAEMON_SET.kind {
        (
            number("/status/numberUnavailable"),
            number("/status/numberAvailable"),
            number("/status/updatedNumberScheduled"),
            number("/status/desiredNumberScheduled"),
        )
    } else {
        // A Deployment that is being rolled out has unavailable replicas, or too few available ones.
        (
            number("/status/unavailableReplicas"),
            number("/status/availableReplicas"),
            1,
            1,
        )
    };
    if unavailable > 0 {
        Some(format!(
            "{subject} is not available (awaiting {unavailable} nodes)"
        ))
    } else if available == 0 && desired != 0 {
        Some(format!("{subject} is not yet scheduled on any nodes"))
    } else if updated < desired {
        Some(format!(
            "{subject} update is rolling out ({updated} out of {desired} updated)"
        ))
    } else if generation > observed {
        Some(processed(subject, generation, observed))
    } else {
        None
    }
}
