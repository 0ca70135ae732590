//! Roll-out progress of a workload, with the texts of upstream's operators (operator.md §7.2, nmstate.md §10.2).

use serde_json::Value;

use crate::object::DAEMON_SET;

/// Text for a workload whose controller has not observed its last change.
pub fn processed(subject: &str, generation: i64, observed: i64) -> String {
    format!("{subject} update is being processed (generation {generation}, observed generation {observed})")
}

/// The counters in the status of a workload, for all kinds.
struct Counts {
    unavailable: i64,
    available: i64,
    /// Whether it needs an available pod at all.
    needs_pods: bool,
    updated: i64,
    desired: i64,
    /// Running pods of an earlier template.
    old: i64,
}

impl Counts {
    fn of(kind: &str, object: &Value) -> Self {
        let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
        let status = |field: &str| number(&format!("/status/{field}")).unwrap_or(0);
        if kind == DAEMON_SET.kind {
            let desired = status("desiredNumberScheduled");
            return Self {
                unavailable: status("numberUnavailable"),
                available: status("numberAvailable"),
                needs_pods: desired != 0,
                updated: status("updatedNumberScheduled"),
                desired,
                old: 0,
            };
        }
        let updated = status("updatedReplicas");
        Self {
            unavailable: status("unavailableReplicas"),
            available: status("availableReplicas"),
            needs_pods: true,
            updated,
            desired: number("/spec/replicas").unwrap_or(1),
            old: (status("replicas") - updated).max(0),
        }
    }
}

/// The first unfinished step of a `DaemonSet` or a `Deployment`, if any. `subject` is its name in the text.
///
/// Like `kubectl rollout status`, this requires pods of the newest template: the first status after a change of a
/// Deployment that recreates its pods still counts the old pod as available.
pub fn progress(kind: &str, subject: &str, object: &Value) -> Option<String> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let (generation, observed) = (
        number("/metadata/generation"),
        number("/status/observedGeneration"),
    );
    let Counts {
        unavailable,
        available,
        needs_pods,
        updated,
        desired,
        old,
    } = Counts::of(kind, object);
    if unavailable > 0 {
        Some(format!(
            "{subject} is not available (awaiting {unavailable} nodes)"
        ))
    } else if available == 0 && needs_pods {
        Some(format!("{subject} is not yet scheduled on any nodes"))
    } else if updated < desired {
        Some(format!(
            "{subject} update is rolling out ({updated} out of {desired} updated)"
        ))
    } else if old > 0 {
        Some(format!(
            "{subject} update is rolling out ({old} old replicas are pending termination)"
        ))
    } else if generation > observed {
        Some(processed(subject, generation, observed))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::DEPLOYMENT;
    use serde_json::json;

    fn deployment(status: &Value) -> Option<String> {
        let object = json!({ "metadata": { "generation": 2 }, "spec": { "replicas": 1 }, "status": status });
        progress(DEPLOYMENT.kind, "it", &object)
    }

    // operator#83
    #[test]
    fn deployment_with_old_pods_alone_is_not_rolled_out() {
        // The controller's first status after a change of a Deployment with the strategy Recreate.
        let old_pod =
            json!({ "observedGeneration": 2, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1 });
        assert_eq!(
            deployment(&old_pod).as_deref(),
            Some("it update is rolling out (0 out of 1 updated)")
        );
        // The old pod is still counted as available while the new one starts.
        let both =
            json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1 });
        assert_eq!(
            deployment(&both).as_deref(),
            Some("it update is rolling out (1 old replicas are pending termination)")
        );
        let done =
            json!({ "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 });
        assert_eq!(deployment(&done), None);
    }

    // operator#83
    #[test]
    fn deployment_of_two_replicas_is_rolled_out_with_both() {
        let object = |updated: i64| {
            json!({
                "metadata": { "generation": 1 }, "spec": { "replicas": 2 },
                "status": {
                    "observedGeneration": 1, "replicas": updated, "updatedReplicas": updated,
                    "availableReplicas": updated,
                },
            })
        };
        assert_eq!(
            progress(DEPLOYMENT.kind, "it", &object(1)).as_deref(),
            Some("it update is rolling out (1 out of 2 updated)")
        );
        assert_eq!(progress(DEPLOYMENT.kind, "it", &object(2)), None);
    }

    // operator#83
    #[test]
    fn daemon_set_with_old_pods_is_not_rolled_out() {
        let object = |updated: i64| {
            json!({
                "metadata": { "generation": 2 },
                "status": {
                    "observedGeneration": 2, "desiredNumberScheduled": 2, "numberAvailable": 2,
                    "updatedNumberScheduled": updated,
                },
            })
        };
        assert_eq!(
            progress(DAEMON_SET.kind, "it", &object(1)).as_deref(),
            Some("it update is rolling out (1 out of 2 updated)")
        );
        assert_eq!(progress(DAEMON_SET.kind, "it", &object(2)), None);
    }
}
