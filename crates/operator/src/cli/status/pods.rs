//! What keeps a pod from running.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// How long a pod may take to start before that is told, in seconds.
const PATIENCE: i64 = 60;

/// What is wrong with a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Trouble {
    /// Name of the pod.
    pub(super) pod: String,
    /// Its namespace.
    pub(super) namespace: String,
    /// Its node; empty when it has none.
    pub(super) node: String,
    /// The container, when it is about one.
    pub(super) container: String,
    /// Why, in one word.
    pub(super) reason: String,
    /// Why, for people.
    pub(super) message: String,
}

/// The name of the workload that a pod belongs to, with its kind.
pub(super) fn workload(pod: &Value) -> Option<(&'static str, String)> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find_map(|owner| {
        let name = owner.get("name")?.as_str()?;
        match owner.get("kind")?.as_str()? {
            "DaemonSet" => Some(("DaemonSet", name.to_owned())),
            // The name of a ReplicaSet is that of its Deployment and a hash.
            "ReplicaSet" => Some(("Deployment", name.rsplit_once('-')?.0.to_owned())),
            _ => None,
        }
    })
}

/// What is wrong with a pod, if anything.
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
        let statuses = pod.pointer(list).and_then(Value::as_array);
        for status in statuses.into_iter().flatten() {
            if let Some((reason, message)) = container_trouble(status) {
                return with(&text(status, "/name"), &reason, message);
            }
        }
    }
    let age = age(pod, now)?;
    let is_ready = condition(pod, "Ready").is_some_and(|found| text(found, "/status") == "True");
    if age < PATIENCE || is_ready || phase == "Succeeded" {
        return None;
    }
    match phase.as_str() {
        "Running" => with(
            "",
            "NotReady",
            "it runs, but does not say that it is ready".to_owned(),
        ),
        _ => with(
            "",
            "ContainerCreating",
            "its containers have not been created yet".to_owned(),
        ),
    }
}

/// What keeps a container from running: a reason other than that it is being started.
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
    let conditions = pod.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|found| found["type"] == kind)
}

/// How old an object is, in seconds.
fn age(object: &Value, now: Timestamp) -> Option<i64> {
    let created: Timestamp = text(object, "/metadata/creationTimestamp").parse().ok()?;
    Some(now.as_second() - created.as_second())
}

/// A text in an object; empty when it is not there.
pub(super) fn text(object: &Value, pointer: &str) -> String {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}
