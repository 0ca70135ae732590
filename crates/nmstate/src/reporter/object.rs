//! The object with a node's report (nmstate §2.5, §5.2).
//!
//! Objects are edited as they were read, so that nothing of other writers is lost: the desired state of the original
//! design, labels, conditions, fields of later releases.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube_kit::conditions::whole_seconds;
use serde_json::{Value, json};

use super::messages;
use crate::conditions::{self, Status};
use crate::engine::Versions;
use crate::objects;

/// Condition type of incomplete reports.
pub(crate) const PRUNED: &str = "Pruned";

/// The node of a report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owner<'a> {
    /// Node name.
    pub(crate) name: &'a str,
    /// Node UID.
    pub(crate) uid: &'a str,
}

/// A report, ready to be stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report<'a> {
    /// The filtered and pruned state.
    pub(crate) state: &'a Value,
    /// Parts that were left out for their size.
    pub(crate) left_out: &'a [&'static str],
    /// Versions of the programs that read it.
    pub(crate) versions: &'a Versions,
}

/// A new object without status.
pub(crate) fn new(owner: &Owner<'_>, labels: &BTreeMap<String, String>) -> Value {
    let resource = objects::report_resource();
    let mut object = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": { "name": owner.name },
    });
    claim(&mut object, owner, labels);
    object
}

/// Adds the owner reference and our labels to an object. Returns whether it changed.
pub(crate) fn claim(object: &mut Value, owner: &Owner<'_>, labels: &BTreeMap<String, String>) -> bool {
    let before = object["metadata"].clone();
    let metadata = &mut object["metadata"];
    for (label, value) in labels {
        metadata["labels"][label] = json!(value);
    }
    let reference = json!({ "apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid });
    let references = metadata["ownerReferences"].as_array();
    let mut references = references.cloned().unwrap_or_default();
    if !references.iter().any(|it| it["uid"] == owner.uid) {
        // An owner reference to a deleted node of the same name would delete the object.
        references.retain(|it| it["kind"] != "Node");
        references.push(reference);
        metadata["ownerReferences"] = Value::Array(references);
    }
    object["metadata"] != before
}

/// Writes a report into the status of an object. Returns whether it changed.
pub(crate) fn fill(object: &mut Value, report: &Report<'_>, now: Timestamp) -> bool {
    let before = object.get("status").cloned().unwrap_or_default();
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let status = &mut object["status"];
    if status["currentState"] != *report.state {
        status["currentState"] = report.state.clone();
        status["lastSuccessfulUpdateTime"] = json!(whole_seconds(now));
    }
    status["handlerNmstateVersion"] = json!(report.versions.engine);
    if let Some(version) = &report.versions.network_manager {
        status["hostNetworkManagerVersion"] = json!(version);
    }
    set_pruned_condition(status, report.left_out, now);
    *status != before
}

/// Sets the condition while something is left out, and removes it otherwise.
fn set_pruned_condition(status: &mut Value, left_out: &[&str], now: Timestamp) {
    let mut listed = status["conditions"].as_array().cloned().unwrap_or_default();
    let is_pruned = |condition: &Value| condition["type"] == PRUNED;
    if left_out.is_empty() {
        if !listed.iter().any(is_pruned) {
            return;
        }
        listed.retain(|condition| !is_pruned(condition));
    } else {
        let message = messages::left_out(left_out);
        if !conditions::put(
            &mut listed,
            PRUNED,
            Status::True,
            messages::TOO_LARGE,
            &message,
            now,
        ) {
            return;
        }
    }
    status["conditions"] = listed.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> Versions {
        Versions {
            engine: "nmstatectl 2.2.62".to_owned(),
            network_manager: Some("1.48.10".to_owned()),
        }
    }

    fn owner() -> Owner<'static> {
        Owner {
            name: "node01",
            uid: "1-2-3",
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn new_object_is_owned_by_its_node() {
        let labels = BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "hco".to_owned())]);
        assert_eq!(
            new(&owner(), &labels),
            json!({
                "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState",
                "metadata": {
                    "name": "node01",
                    "labels": { "app.kubernetes.io/part-of": "hco" },
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "node01", "uid": "1-2-3" }],
                },
            })
        );
    }

    #[test]
    fn foreign_object_is_claimed_without_loss() {
        let given = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState",
            "metadata": {
                "name": "node01", "labels": { "mine": "1" }, "resourceVersion": "7",
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "node01", "uid": "of-before" },
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "9" },
                ],
            },
            "spec": { "managed": false, "desiredState": { "interfaces": null }, "later": 1 },
        });
        let mut claimed = given.clone();
        assert!(claim(&mut claimed, &owner(), &BTreeMap::new()));
        assert_eq!(claimed["spec"], given["spec"]);
        assert_eq!(claimed["metadata"]["labels"], json!({ "mine": "1" }));
        let owners = claimed["metadata"]["ownerReferences"].as_array().expect("owners");
        let owners: Vec<&Value> = owners.iter().map(|owner| &owner["uid"]).collect();
        assert_eq!(owners, ["9", "1-2-3"]);
        assert!(!claim(&mut claimed, &owner(), &BTreeMap::new()), "once is enough");
    }

    #[test]
    fn update_time_changes_with_the_content_only() {
        let mut object = new(&owner(), &BTreeMap::new());
        object["status"] = json!({
            "conditions": [{ "type": "Available", "status": "True" }], "handlerNetworkManagerVersion": "1.20", "later": 1,
        });
        let state = json!({ "interfaces": [], "ovn": {} });
        let versions = versions();
        let mut report = Report {
            state: &state,
            left_out: &[],
            versions: &versions,
        };
        assert!(fill(&mut object, &report, at(60)));
        assert_eq!(
            object["status"],
            json!({
                "conditions": [{ "type": "Available", "status": "True" }], "handlerNetworkManagerVersion": "1.20",
                "later": 1,
                "currentState": { "interfaces": [], "ovn": {} },
                "lastSuccessfulUpdateTime": "1970-01-01T00:01:00Z",
                "handlerNmstateVersion": "nmstatectl 2.2.62",
                "hostNetworkManagerVersion": "1.48.10",
            })
        );
        assert!(!fill(&mut object, &report, at(120)), "nothing changed");

        let newer = Versions {
            network_manager: Some("1.52".to_owned()),
            ..versions.clone()
        };
        report.versions = &newer;
        assert!(fill(&mut object, &report, at(120)));
        assert_eq!(
            object["status"]["lastSuccessfulUpdateTime"],
            "1970-01-01T00:01:00Z"
        );
        let other = json!({ "interfaces": [] });
        report.state = &other;
        assert!(fill(&mut object, &report, at(180)));
        assert_eq!(
            object["status"]["lastSuccessfulUpdateTime"],
            "1970-01-01T00:03:00Z"
        );
    }

    #[test]
    fn pruned_condition_names_the_omitted_parts() {
        let mut object = new(&owner(), &BTreeMap::new());
        object["status"] = json!({ "conditions": [{ "type": "Available", "status": "True" }] });
        let state = json!({ "interfaces": [] });
        let versions = versions();
        let mut report = Report {
            state: &state,
            left_out: &["features of drivers"],
            versions: &versions,
        };
        assert!(fill(&mut object, &report, at(60)));
        assert_eq!(
            object["status"]["conditions"],
            json!([
                { "type": "Available", "status": "True" },
                {
                    "type": "Pruned", "status": "True", "reason": "ReportTooLarge",
                    "message": "the report is too large to be stored; left out: features of drivers",
                    "lastHeartbeatTime": "1970-01-01T00:01:00Z", "lastTransitionTime": "1970-01-01T00:01:00Z",
                },
            ])
        );
        assert!(!fill(&mut object, &report, at(120)), "nothing changed");
        report.left_out = &["features of drivers", "all routes and interfaces"];
        assert!(fill(&mut object, &report, at(180)));
        assert_eq!(
            object["status"]["conditions"][1]["message"],
            "the report is too large to be stored; left out: features of drivers, all routes and interfaces"
        );
        report.left_out = &[];
        assert!(fill(&mut object, &report, at(240)));
        assert_eq!(
            object["status"]["conditions"],
            json!([{ "type": "Available", "status": "True" }])
        );
    }
}
