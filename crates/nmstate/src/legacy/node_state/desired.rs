//! The desired state in a `NodeNetworkState`, and its conditions (nmstate §3.2-3 to 5).

use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;

use crate::conditions::{self, Status};
use crate::legacy::{messages, normalise};
use crate::names::{condition, reason};
use crate::objects;

/// Status field: generation of the conditions.
const OBSERVED: &str = "observedGeneration";

/// The desired state of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DesiredState {
    /// None: the object is only a report.
    #[default]
    None,
    /// Invalid, with the message.
    Invalid(String),
    /// Normalised, and to be enforced.
    Enforced(Value),
}

impl DesiredState {
    /// Reads the desired state of an object of this name, whose spec may be malformed.
    pub fn of(name: &str, spec: &Value) -> Self {
        let member = |key: &str| spec.get(key).filter(|value| !value.is_null());
        let mut desired = member("desiredState").cloned().unwrap_or_default();
        if !normalise::has_content(&desired) || member("managed") == Some(&Value::Bool(false)) {
            return Self::None;
        }
        if member("managed").is_some_and(|managed| !managed.is_boolean()) {
            // The author's intent is unknown: to enforce the state, or not.
            return Self::Invalid(messages::malformed("spec.managed", "true or false"));
        }
        if !desired.is_object() {
            return Self::Invalid(messages::malformed("spec.desiredState", "an object"));
        }
        match member("nodeName") {
            None => {}
            Some(Value::String(node_name)) if node_name.is_empty() || node_name == name => {}
            Some(Value::String(node_name)) => return Self::Invalid(messages::other_node(name, node_name)),
            Some(_) => return Self::Invalid(messages::malformed("spec.nodeName", "a text")),
        }
        normalise::document(&mut desired);
        if normalise::has_content(&desired) {
            Self::Enforced(desired)
        } else {
            Self::None
        }
    }
}

/// Outcome of a reconcile.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// There is no desired state.
    None,
    /// The host has the desired state, with the message.
    Done(String),
    /// The desired state failed, with the message.
    Failed(String),
}

/// Whether this controller writes the condition.
pub(crate) fn is_ours(condition: &Value) -> bool {
    let kind = condition.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| [condition::AVAILABLE, condition::FAILING].contains(&kind))
}

/// Writes an outcome and its generation into an object's status, and leaves the rest unchanged. `false` if nothing
/// would change.
pub(crate) fn report(object: &mut DynamicObject, outcome: &Outcome, now: Timestamp) -> bool {
    let generation = object.metadata.generation;
    objects::edit_status(object, |status| {
        let listed = status.get("conditions").and_then(Value::as_array);
        let mut conditions = listed.cloned().unwrap_or_default();
        let (observed, differs) = match outcome {
            Outcome::None => {
                let before = conditions.len();
                conditions.retain(|condition| !is_ours(condition));
                (None, conditions.len() != before)
            }
            Outcome::Done(text) | Outcome::Failed(text) => {
                let (available, failing, reason) = match outcome {
                    Outcome::Failed(_) => (Status::False, Status::True, reason::FAILED),
                    _ => (Status::True, Status::False, reason::SUCCESS),
                };
                let observed = generation.map(Value::from);
                let mut differs = status.get(OBSERVED) != observed.as_ref();
                for (kind, status) in [(condition::AVAILABLE, available), (condition::FAILING, failing)] {
                    let message = if status == Status::True { text.as_str() } else { "" };
                    differs |= conditions::put(&mut conditions, kind, status, reason, message, now);
                }
                (observed, differs)
            }
        };
        if !differs {
            return false;
        }
        status.insert("conditions".to_owned(), conditions.into());
        match observed {
            Some(generation) => status.insert(OBSERVED.to_owned(), generation),
            None => status.shift_remove(OBSERVED),
        };
        true
    })
}

#[cfg(test)]
mod tests;
