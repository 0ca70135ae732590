//! What a node says to virt-controller: that guests may come to it.

use serde_json::{Value, json};

use crate::names::{CPU_MODELS, HEARTBEAT, SCHEDULABLE, TUN};

/// Model of all processors, so that guests can move between all nodes.
const CPU_MODEL: &str = "StandIn";
/// Guests that a node has room for.
const GUESTS: &str = "1k";

/// Labels and annotations of every node.
pub(crate) fn heartbeat(now: &str) -> Value {
    let mut labels = json!({ SCHEDULABLE: "true" });
    for prefix in CPU_MODELS {
        labels[format!("{prefix}/{CPU_MODEL}")] = json!("true");
    }
    json!({ "metadata": { "labels": labels, "annotations": { HEARTBEAT: now } } })
}

/// What every node has for guests: the kubelet keeps it, and admits pods by it.
pub(crate) fn resources() -> Value {
    let amounts = json!({ TUN: GUESTS });
    json!({ "status": { "capacity": amounts, "allocatable": amounts } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_takes_guests_of_the_same_processor_everywhere() {
        let patch = heartbeat("2026-01-01T00:00:00Z");
        let metadata = &patch["metadata"];
        assert_eq!(metadata["annotations"][HEARTBEAT], "2026-01-01T00:00:00Z");
        assert_eq!(metadata["labels"][SCHEDULABLE], "true");
        assert_eq!(metadata["labels"]["cpu-model.node.kubevirt.io/StandIn"], "true");
        assert_eq!(resources()["status"]["allocatable"][TUN], "1k");
    }
}
