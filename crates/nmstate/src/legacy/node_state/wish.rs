//! What a `NodeNetworkState` asks for, and what is told in it about that (nmstate §3.2-3 to 5).

use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::conditions::{self, Condition, Status};
use crate::legacy::{messages, normalise};
use crate::names::{condition, reason};

/// The generation that the conditions are about.
const OBSERVED: &str = "observedGeneration";

/// What an object asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wish {
    /// Nothing: the object is a report.
    #[default]
    Nothing,
    /// Something that cannot be meant so.
    Refused(String),
    /// That the host is this, normalised.
    Enforced(Value),
}

impl Wish {
    /// The wish of an object of this name, of whatever form its specification is.
    pub fn of(name: &str, spec: &Value) -> Self {
        let member = |key: &str| spec.get(key).filter(|value| !value.is_null());
        let mut desired = member("desiredState").cloned().unwrap_or_default();
        if !normalise::has_content(&desired) || member("managed") == Some(&Value::Bool(false)) {
            return Self::Nothing;
        }
        if member("managed").is_some_and(|managed| !managed.is_boolean()) {
            // Whether it was meant to be enforced cannot be known.
            return Self::Refused(messages::malformed("spec.managed", "true or false"));
        }
        if !desired.is_object() {
            return Self::Refused(messages::malformed("spec.desiredState", "an object"));
        }
        match member("nodeName") {
            None => {}
            Some(Value::String(said)) if said.is_empty() || said == name => {}
            Some(Value::String(said)) => return Self::Refused(messages::other_node(name, said)),
            Some(_) => return Self::Refused(messages::malformed("spec.nodeName", "a text")),
        }
        normalise::document(&mut desired);
        if normalise::has_content(&desired) {
            Self::Enforced(desired)
        } else {
            Self::Nothing
        }
    }
}

/// How it went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// Nothing was asked for.
    None,
    /// The host is as asked for, and what is said of that.
    Done(String),
    /// Why it is not.
    Failed(String),
}

/// Whether a condition tells of an outcome.
pub(crate) fn is_ours(condition: &Value) -> bool {
    let kind = condition.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| [condition::AVAILABLE, condition::FAILING].contains(&kind))
}

/// Puts an outcome into an object's status, with the generation that it is about, and leaves everything else there as
/// it is. `false` when it says so already.
pub(crate) fn tell(object: &mut DynamicObject, outcome: &Outcome, now: Timestamp) -> bool {
    let Some(object_data) = object.data.as_object_mut() else {
        return false;
    };
    let told: Vec<Value> = object_data
        .get("status")
        .and_then(|status| status.get("conditions")?.as_array().cloned())
        .unwrap_or_default();
    let observed = match outcome {
        Outcome::None => None,
        Outcome::Done(_) | Outcome::Failed(_) => object.metadata.generation.map(Value::from),
    };
    let wanted = match outcome {
        Outcome::None => {
            let others = told.iter().filter(|condition| !is_ours(condition));
            let rest: Vec<Value> = others.cloned().collect();
            if rest.len() == told.len() {
                return false;
            }
            rest
        }
        Outcome::Done(text) | Outcome::Failed(text) => {
            let (available, failing, reason) = match outcome {
                Outcome::Failed(_) => (Status::False, Status::True, reason::FAILED),
                _ => (Status::True, Status::False, reason::SUCCESS),
            };
            let mut wanted = told.clone();
            let before = object_data.get("status").and_then(|status| status.get(OBSERVED));
            let mut differs = before != observed.as_ref();
            for (kind, status) in [(condition::AVAILABLE, available), (condition::FAILING, failing)] {
                let message = if status == Status::True { text.as_str() } else { "" };
                differs |= put(&mut wanted, kind, status, reason, message, now);
            }
            if !differs {
                return false;
            }
            wanted
        }
    };
    let status = object_data.entry("status").or_insert(Value::Null);
    if !status.is_object() {
        *status = Value::Object(Map::new());
    }
    if let Some(status) = status.as_object_mut() {
        status.insert("conditions".to_owned(), wanted.into());
        match observed {
            Some(generation) => status.insert(OBSERVED.to_owned(), generation),
            None => status.remove(OBSERVED),
        };
    }
    true
}

/// Sets one condition among others of whatever form. `false` when nothing but the time would be different.
fn put(
    conditions: &mut Vec<Value>,
    kind: &str,
    status: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let position = conditions
        .iter()
        .position(|condition| condition.get("type").and_then(Value::as_str) == Some(kind));
    let there = position.and_then(|position| conditions.get(position)).cloned();
    let before: Option<Condition> = there.clone().and_then(|there| serde_json::from_value(there).ok());
    let mut after: Vec<Condition> = before.clone().into_iter().collect();
    conditions::set(&mut after, kind, status, reason, message, now);
    let Some(after) = after.pop() else {
        return false;
    };
    if before.is_some_and(|before| {
        (before.status, &before.reason, &before.message) == (after.status, &after.reason, &after.message)
    }) {
        return false;
    }
    let mut written = there.filter(Value::is_object).unwrap_or_else(|| json!({}));
    for key in ["reason", "message"] {
        written[key] = Value::Null;
    }
    if let (Some(written), Ok(Value::Object(after))) = (written.as_object_mut(), serde_json::to_value(&after))
    {
        written.extend(after);
        written.retain(|_, value| !value.is_null());
    }
    match position.and_then(|position| conditions.get_mut(position)) {
        Some(condition) => *condition = written,
        None => conditions.push(written),
    }
    true
}

#[cfg(test)]
mod tests;
