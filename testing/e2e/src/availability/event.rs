//! The events of watches for the check of availability.

use std::time::Duration;

use serde_json::Value;

use crate::{MANAGED_BY, MANAGER, NODE_STATE_MANAGER, OPERATOR};

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The resource version of the object.
    pub revision: u64,
    /// Time of arrival since the start of the record.
    pub at: Duration,
    /// The new state.
    pub news: News,
}

/// A new state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The configuration, or `None` after its removal.
    Configuration(Option<Configuration>),
    /// A workload of the operator, by kind and name. `None` if it is gone or being deleted.
    Workload(String, Option<Workload>),
    /// True if the operator runs.
    Operator(bool),
    /// The test damages a part, for instance by a kill of a program.
    Disturbance,
}

/// State of the `NetworkAddonsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Generation of the specification.
    pub generation: i64,
    /// True if it is being deleted.
    pub ending: bool,
    /// True if the condition Available is True.
    pub available: bool,
    /// The last transition time of that condition, in whole seconds. Empty without the condition.
    pub since: String,
    /// True if it includes node state.
    pub node_state: bool,
}

/// State of a `DaemonSet` or a `Deployment`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// Generation of the specification.
    pub generation: i64,
    /// The first part that its roll-out waits for.
    pub unfinished: Option<String>,
    /// True if the node state operator deploys it.
    pub of_node_state: bool,
}

impl Event {
    /// Parses an event of the API server. `None` for irrelevant objects, bookmarks and errors.
    pub fn read(at: Duration, event: &Value) -> Option<Self> {
        let exists = match event["type"].as_str()? {
            "ADDED" | "MODIFIED" => true,
            "DELETED" => false,
            _ => return None,
        };
        let object = &event["object"];
        let metadata = &object["metadata"];
        let (kind, name) = (object["kind"].as_str()?, metadata["name"].as_str()?);
        let ending = !metadata["deletionTimestamp"].is_null();
        let generation = metadata["generation"].as_i64().unwrap_or_default();
        let news = match kind {
            "NetworkAddonsConfig" => {
                let conditions = object["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                let available = conditions.find(|condition| condition["type"] == "Available");
                let since = available.and_then(|condition| condition["lastTransitionTime"].as_str());
                News::Configuration(exists.then(|| Configuration {
                    generation,
                    ending,
                    available: available.is_some_and(|condition| condition["status"] == "True"),
                    since: since.unwrap_or_default().to_owned(),
                    node_state: !object["spec"]["nmstate"].is_null(),
                }))
            }
            "DaemonSet" | "Deployment" if name == OPERATOR => {
                News::Operator(exists && unfinished(kind, object).is_none())
            }
            "DaemonSet" | "Deployment" => {
                let manager = metadata["labels"][MANAGED_BY].as_str()?;
                if ![MANAGER, NODE_STATE_MANAGER].contains(&manager) {
                    return None;
                }
                let state = || Workload {
                    generation,
                    unfinished: unfinished(kind, object),
                    of_node_state: manager == NODE_STATE_MANAGER,
                };
                News::Workload(format!("{kind} {name}"), (exists && !ending).then(state))
            }
            _ => return None,
        };
        Some(Self {
            revision: metadata["resourceVersion"].as_str()?.parse().ok()?,
            at,
            news,
        })
    }
}

/// Returns the first part that the roll-out of a workload waits for, by the rules of `kubectl rollout status`.
pub fn unfinished(kind: &str, object: &Value) -> Option<String> {
    let number = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let status = |field: &str| number(&format!("/status/{field}"));
    let fewer = |field: &str, than: i64| {
        let found = status(field);
        (found < than).then(|| format!("{field} is {found} of {than}"))
    };
    let (generation, observed) = (number("/metadata/generation"), status("observedGeneration"));
    if observed < generation {
        return Some(format!("generation {generation}, observed {observed}"));
    }
    if kind == "DaemonSet" {
        let desired = status("desiredNumberScheduled");
        return fewer("updatedNumberScheduled", desired).or_else(|| fewer("numberAvailable", desired));
    }
    // The API server sets the default of 1.
    let wanted = object
        .pointer("/spec/replicas")
        .and_then(Value::as_i64)
        .unwrap_or(1);
    let (replicas, updated) = (status("replicas"), status("updatedReplicas"));
    let old = (replicas > updated).then(|| format!("{} old replicas are left", replicas - updated));
    let updating = fewer("updatedReplicas", wanted).or(old);
    updating.or_else(|| fewer("availableReplicas", updated))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unfinished_follows_kubectl_rollout_status() {
        let object = |generation: i64, spec: Value, status: Value| json!({ "metadata": { "generation": generation }, "spec": spec, "status": status });
        let set = |observed: i64, desired: i64, updated: i64, available: i64| {
            let status = json!({
                "observedGeneration": observed, "desiredNumberScheduled": desired,
                "updatedNumberScheduled": updated, "numberAvailable": available,
            });
            unfinished("DaemonSet", &object(2, json!({}), status))
        };
        assert_eq!(set(1, 2, 2, 2).as_deref(), Some("generation 2, observed 1"));
        assert_eq!(
            set(2, 2, 1, 2).as_deref(),
            Some("updatedNumberScheduled is 1 of 2")
        );
        assert_eq!(set(2, 2, 2, 1).as_deref(), Some("numberAvailable is 1 of 2"));
        assert_eq!(set(2, 2, 2, 2), None);
        assert_eq!(set(2, 0, 0, 0), None, "no node is selected");

        let deployment = |wanted: Value, replicas: i64, updated: i64, available: i64| {
            let status = json!({
                "observedGeneration": 2, "replicas": replicas,
                "updatedReplicas": updated, "availableReplicas": available,
            });
            unfinished("Deployment", &object(2, json!({ "replicas": wanted }), status))
        };
        assert_eq!(
            deployment(json!(2), 2, 1, 2).as_deref(),
            Some("updatedReplicas is 1 of 2")
        );
        assert_eq!(
            deployment(json!(1), 2, 1, 2).as_deref(),
            Some("1 old replicas are left")
        );
        assert_eq!(
            deployment(json!(1), 1, 1, 0).as_deref(),
            Some("availableReplicas is 0 of 1")
        );
        assert_eq!(
            deployment(Value::Null, 0, 0, 0).as_deref(),
            Some("updatedReplicas is 0 of 1")
        );
        assert_eq!(deployment(json!(0), 0, 0, 0), None);
        assert_eq!(deployment(json!(1), 1, 1, 1), None);
        assert!(unfinished("Deployment", &object(1, json!({}), Value::Null)).is_some());
    }

    #[test]
    fn event_of_the_api_server_is_parsed() {
        let at = Duration::from_secs(7);
        let sent = |what: &str, mut object: Value, labels: Value| {
            object["metadata"]["resourceVersion"] = "42".into();
            object["metadata"]["labels"] = labels;
            let event = Event::read(at, &json!({ "type": what, "object": object }));
            event.map(|event| {
                assert_eq!((event.revision, event.at), (42, at));
                event.news
            })
        };
        let condition =
            json!({ "type": "Available", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z" });
        let config = json!({
            "kind": "NetworkAddonsConfig", "metadata": { "name": "cluster", "generation": 3 },
            "spec": { "nmstate": {} },
            "status": { "conditions": [{ "type": "Degraded", "status": "False" }, condition] },
        });
        let expected = Configuration {
            generation: 3,
            ending: false,
            available: true,
            since: "2026-01-02T03:04:05Z".to_owned(),
            node_state: true,
        };
        assert_eq!(
            sent("MODIFIED", config.clone(), Value::Null),
            Some(News::Configuration(Some(expected)))
        );
        assert_eq!(
            sent("DELETED", config.clone(), Value::Null),
            Some(News::Configuration(None))
        );
        assert_eq!(sent("BOOKMARK", config, Value::Null), None);

        let ours = json!({ MANAGED_BY: MANAGER });
        let set = json!({ "kind": "DaemonSet", "metadata": { "name": "multus", "generation": 1 } });
        let made = Workload {
            generation: 1,
            unfinished: Some("generation 1, observed 0".to_owned()),
            of_node_state: false,
        };
        let handler = Workload {
            of_node_state: true,
            ..made.clone()
        };
        let news = |state| Some(News::Workload("DaemonSet multus".to_owned(), state));
        assert_eq!(sent("ADDED", set.clone(), ours.clone()), news(Some(made)));
        assert_eq!(sent("DELETED", set.clone(), ours.clone()), news(None));
        assert_eq!(sent("ADDED", set.clone(), json!({})), None, "without the label");
        let theirs = json!({ MANAGED_BY: NODE_STATE_MANAGER });
        assert_eq!(sent("ADDED", set.clone(), theirs), news(Some(handler)));
        let mut ending = set;
        ending["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        assert_eq!(sent("MODIFIED", ending, ours), news(None));

        let mut operator = json!({
            "kind": "Deployment", "metadata": { "name": OPERATOR, "generation": 1 }, "spec": { "replicas": 1 },
            "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
        });
        assert_eq!(
            sent("ADDED", operator.clone(), Value::Null),
            Some(News::Operator(true))
        );
        operator["status"]["availableReplicas"] = 0.into();
        assert_eq!(
            sent("MODIFIED", operator, Value::Null),
            Some(News::Operator(false))
        );
    }
}
