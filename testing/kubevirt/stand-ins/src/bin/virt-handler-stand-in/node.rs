//! The labels, annotations and resources by which virt-controller accepts a node for guests.

use serde_json::{Value, json};

use crate::names::{CPU_MODELS, HEARTBEAT, SCHEDULABLE, TUN};

/// Processor model of all nodes, so that guests can migrate between all of them.
const CPU_MODEL: &str = "StandIn";
/// Number of guests that fit on a node.
const GUESTS: &str = "1k";

/// Returns labels and annotations of a node.
pub(crate) fn heartbeat(now: &str) -> Value {
    let mut labels = json!({ SCHEDULABLE: "true" });
    for prefix in CPU_MODELS {
        labels[format!("{prefix}/{CPU_MODEL}")] = json!("true");
    }
    json!({ "metadata": { "labels": labels, "annotations": { HEARTBEAT: now } } })
}

/// Returns resources of a node. The kubelet keeps them, and admits pods by them.
pub(crate) fn resources() -> Value {
    let amounts = json!({ TUN: GUESTS });
    json!({ "status": { "capacity": amounts, "allocatable": amounts } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_accept_guests_of_the_same_processor_model() {
        let patch = heartbeat("2026-01-01T00:00:00Z");
        let metadata = &patch["metadata"];
        assert_eq!(metadata["annotations"][HEARTBEAT], "2026-01-01T00:00:00Z");
        assert_eq!(metadata["labels"][SCHEDULABLE], "true");
        assert_eq!(metadata["labels"]["cpu-model.node.kubevirt.io/StandIn"], "true");
        assert_eq!(resources()["status"]["allocatable"][TUN], "1k");
    }
}
