//! Problems that keep a pod from running.

use k8s_openapi::jiff::Timestamp;
use kube_kit::document;
use serde_json::Value;

/// Maximum time in seconds that a pod may take to start before it is reported.
const START_LIMIT: i64 = 60;

/// The problem of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Trouble {
    pub(super) pod: String,
    pub(super) namespace: String,
    pub(super) node: String,
    /// The container, if the problem concerns a single one.
    pub(super) container: String,
    /// Reason in CamelCase.
    pub(super) reason: String,
    pub(super) message: String,
}

/// The kind and the name of the workload of a pod.
pub(super) fn workload(pod: &Value) -> Option<(&'static str, String)> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find_map(|owner| {
        let name = owner.get("name")?.as_str()?;
        match owner.get("kind")?.as_str()? {
            "DaemonSet" => Some(("DaemonSet", name.to_owned())),
            // The name of a ReplicaSet is that of its Deployment with a hash.
            "ReplicaSet" => Some(("Deployment", name.rsplit_once('-')?.0.to_owned())),
            _ => None,
        }
    })
}

/// The problem of a pod, if it has one.
pub(super) fn trouble(pod: &Value, now: Timestamp) -> Option<Trouble> {
    if pod.pointer("/metadata/deletionTimestamp").is_some() {
        return None;
    }
    let with = |container: &str, reason: &str, message: String| {
        Some(Trouble {
            pod: text(pod, "/metadata/name"),
            namespace: text(pod, "/metadata/namespace"),
            node: text(pod, "/spec/nodeName"),
            container: container.to_owned(),
            reason: reason.to_owned(),
            message,
        })
    };
    let phase = text(pod, "/status/phase");
    if phase == "Failed" {
        let reason = text(pod, "/status/reason");
        return with(
            "",
            if reason.is_empty() { "Failed" } else { &reason },
            text(pod, "/status/message"),
        );
    }
    if let Some(unscheduled) =
        condition(pod, "PodScheduled").filter(|found| text(found, "/status") == "False")
    {
        return with("", &text(unscheduled, "/reason"), text(unscheduled, "/message"));
    }
    for list in ["/status/initContainerStatuses", "/status/containerStatuses"] {
        for status in document::list(pod, list) {
            if let Some((reason, message)) = container_trouble(status) {
                return with(&text(status, "/name"), &reason, message);
            }
        }
    }
    let age = age(pod, now)?;
    let is_ready = condition(pod, "Ready").is_some_and(|found| text(found, "/status") == "True");
    if age < START_LIMIT || is_ready || phase == "Succeeded" {
        return None;
    }
    match phase.as_str() {
        "Running" => with("", "NotReady", "it runs, but is not ready".to_owned()),
        _ => with(
            "",
            "ContainerCreating",
            "its containers are not created yet".to_owned(),
        ),
    }
}

/// The problem of a container, unless it is just starting.
fn container_trouble(status: &Value) -> Option<(String, String)> {
    let waiting = text(status, "/state/waiting/reason");
    let last = |pointer: &str| {
        let end = status.pointer(pointer)?;
        let code = end.get("exitCode").and_then(Value::as_i64)?;
        let restarts = status.get("restartCount").and_then(Value::as_i64).unwrap_or(0);
        let reason = text(end, "/reason");
        let reason = if reason.is_empty() {
            "Error".to_owned()
        } else {
            reason
        };
        (code != 0).then(|| format!("it ended with exit code {code} ({reason}), {restarts} restarts"))
    };
    match waiting.as_str() {
        "ContainerCreating" | "PodInitializing" => None,
        "" => last("/state/terminated").map(|message| ("Terminated".to_owned(), message)),
        "CrashLoopBackOff" => {
            let message =
                last("/lastState/terminated").unwrap_or_else(|| text(status, "/state/waiting/message"));
            Some((waiting, message))
        }
        _ => Some((waiting, text(status, "/state/waiting/message"))),
    }
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    document::list(pod, "/status/conditions").find(|found| found["type"] == kind)
}

/// Age of an object in seconds.
fn age(object: &Value, now: Timestamp) -> Option<i64> {
    let created: Timestamp = text(object, "/metadata/creationTimestamp").parse().ok()?;
    Some(now.as_second() - created.as_second())
}

/// A text in an object; empty if it is absent.
pub(super) fn text(object: &Value, pointer: &str) -> String {
    document::text(object, pointer).to_owned()
}
