//! Enactments: the state of a policy on one node (nmstate §2.4).

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube_kit::conditions::whole_seconds;
use serde_json::{Map, Value, json};

use super::messages;
use crate::conditions::{self, Condition, Status};
use crate::names::{self, condition, reason};
use crate::objects;
use crate::render::Rendered;

/// Format version of stored captures.
const CAPTURE_VERSION: &str = "0";
/// Status field with the UID of the enactment's policy.
pub(crate) const POLICY_UID: &str = "policyUID";

/// The name of the enactment of a policy on a node.
pub(crate) fn name(node: &str, policy: &str) -> String {
    format!("{node}.{policy}")
}

/// A new enactment, owned by its node.
pub(crate) fn new(node: &str, uid: &str, policy: &str, labels: &BTreeMap<String, String>) -> DynamicObject {
    let mut enactment = DynamicObject::new(&name(node, policy), &objects::enactment_resource());
    let mut labels = labels.clone();
    labels.insert(names::POLICY_LABEL.to_owned(), policy.to_owned());
    labels.insert(names::NODE_LABEL.to_owned(), node.to_owned());
    enactment.metadata.labels = Some(labels);
    enactment.metadata.owner_references = Some(vec![
        k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: uid.to_owned(),
            ..Default::default()
        },
    ]);
    enactment.data = json!({});
    enactment
}

/// State of an enactment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// The enactment has no result yet.
    Created,
    /// The policy is being applied.
    Progressing,
    /// The policy was applied; the message states whether the change is persistent.
    Success(String),
    /// The result of a dry run; the message lists the changes that the policy would cause.
    Tried(String),
    /// The policy failed for good.
    Failed(String),
    /// The policy failed, and is retried.
    Retrying(String),
    /// The dry run or the rendering failed, and is retried. The node holds no slot, and no attempt is counted.
    NotYet(String),
    /// The node waits for a slot.
    Pending,
    /// The policy is not applied because it failed on other nodes.
    Aborted(String),
}

impl State {
    /// Sets all five conditions.
    pub(crate) fn set(&self, conditions: &mut Vec<Condition>, now: Timestamp) {
        use Status::{False, True, Unknown};
        // In the order of condition::OF_ENACTMENTS.
        let statuses = match self {
            Self::Created => [Unknown; 5],
            Self::Progressing => [Unknown, Unknown, True, False, False],
            Self::Success(_) | Self::Tried(_) => [True, False, False, False, False],
            Self::Failed(_) | Self::NotYet(_) => [False, True, False, False, False],
            Self::Retrying(_) => [False, True, True, False, False],
            Self::Pending => [False, False, False, True, False],
            Self::Aborted(_) => [False, False, False, False, True],
        };
        let (why, text) = match self {
            Self::Created => ("", ""),
            Self::Progressing => (reason::PROGRESSING, messages::APPLYING),
            Self::Success(text) => (reason::SUCCESS, text.as_str()),
            Self::Tried(text) => (reason::DRY_RUN, text.as_str()),
            Self::Failed(text) => (reason::FAILED, text.as_str()),
            Self::Retrying(text) | Self::NotYet(text) => (reason::RETRYING, text.as_str()),
            Self::Pending => (reason::LIMIT_REACHED, messages::WAITING),
            Self::Aborted(text) => (reason::ABORTED, text.as_str()),
        };
        for (kind, status) in condition::OF_ENACTMENTS.into_iter().zip(statuses) {
            let why = match self {
                // As upstream sets it.
                Self::Failed(_) | Self::Retrying(_) | Self::NotYet(_) if kind == condition::ABORTED => {
                    reason::SUCCESS
                }
                _ => why,
            };
            let waits = *self == Self::Pending && kind == condition::PROGRESSING;
            let text = if status == True || waits { text } else { "" };
            conditions::set(conditions, kind, status, why, text, now);
        }
    }
}

/// Sets the conditions of an enactment.
pub(crate) fn set_state(status: &mut Map<String, Value>, state: &State, now: Timestamp) {
    let mut conditions = conditions_of(status);
    state.set(&mut conditions, now);
    status.insert("conditions".to_owned(), objects::json(&conditions));
}

/// Whether an enactment is already in this state, whenever that was written.
pub(crate) fn is_in_state(status: &Map<String, Value>, state: &State) -> bool {
    let before = conditions_of(status);
    let mut after = before.clone();
    state.set(&mut after, Timestamp::UNIX_EPOCH);
    let is_same = |(one, other): (&Condition, &Condition)| {
        one.kind == other.kind
            && one.status == other.status
            && one.reason == other.reason
            && one.message == other.message
    };
    before.len() == after.len() && before.iter().zip(&after).all(is_same)
}

/// The conditions of an enactment.
fn conditions_of(status: &Map<String, Value>) -> Vec<Condition> {
    objects::readable_conditions(status.get("conditions").unwrap_or(&Value::Null))
}

/// Whether this node owns the enactment. An enactment of a deleted node of the same name is about to be deleted too.
pub(crate) fn is_of_node(enactment: &DynamicObject, uid: &str) -> bool {
    let owners = enactment.metadata.owner_references.as_deref().unwrap_or_default();
    owners.is_empty() || owners.iter().any(|owner| owner.uid == uid)
}

/// Records the policy's UID.
pub(crate) fn set_policy_uid(status: &mut Map<String, Value>, uid: &str) {
    status.insert(POLICY_UID.to_owned(), uid.into());
}

/// Moves an enactment to a generation of its policy: drops conditions and failed attempts of another one.
pub(crate) fn set_generation(status: &mut Map<String, Value>, generation: i64, now: Timestamp) {
    if status.get("policyGeneration").and_then(Value::as_i64) != Some(generation) {
        status.insert("policyGeneration".to_owned(), generation.into());
        status.shift_remove("conditions");
        status.shift_remove("retryCount");
        status.shift_remove("diff");
    }
    if conditions_of(status).is_empty() {
        set_state(status, &State::Created, now);
    }
}

/// Records the rendered policy.
pub(crate) fn set_rendered(status: &mut Map<String, Value>, rendered: &Rendered, now: Timestamp) {
    let mut set = |key: &str, value: Value, is_there: bool| {
        if is_there {
            status.insert(key.to_owned(), value);
        } else {
            status.shift_remove(key);
        }
    };
    set("desiredState", rendered.shown(), rendered.desired.is_object());
    set(
        "features",
        objects::json(&rendered.features),
        !rendered.features.is_empty(),
    );
    let before = match status.shift_remove("capturedStates") {
        Some(Value::Object(before)) => before,
        _ => Map::new(),
    };
    if rendered.captured.is_empty() {
        return;
    }
    let captured = rendered.captured.iter().map(|(name, state)| {
        let known = before.get(name).filter(|known| known["state"] == *state);
        let fresh = || captured_state(state, now);
        (name.clone(), known.cloned().unwrap_or_else(fresh))
    });
    let captured = Value::Object(captured.collect());
    status.insert("capturedStates".to_owned(), captured);
}

/// The result of a capture, in the form of the status.
pub(crate) fn captured_state(state: &Value, now: Timestamp) -> Value {
    let at = whole_seconds(now).0.to_string();
    json!({ "state": state, "metaInfo": { "version": CAPTURE_VERSION, "time": at } })
}

/// Results of the policy's captures when they were first evaluated, by name.
pub(crate) fn captured(enactment: &DynamicObject) -> Map<String, Value> {
    let captured = enactment.data["status"]["capturedStates"].as_object();
    let captured = captured.into_iter().flatten();
    captured
        .filter(|(_, found)| found["state"].is_object())
        .map(|(name, found)| (name.clone(), found["state"].clone()))
        .collect()
}

/// Records the failed attempts at a generation.
pub(crate) fn set_attempts(status: &mut Map<String, Value>, generation: i64, attempts: u32) {
    status.insert(
        "retryCount".to_owned(),
        json!({ generation.to_string(): attempts }),
    );
}

#[cfg(test)]
mod tests;
