//! What a `NodeNetworkState` asks for, and what is told in it about that (nmstate §3.2-3 to 5).

use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;

use crate::conditions::{self, Status};
use crate::legacy::{messages, normalise};
use crate::names::{condition, reason};
use crate::policy::objects;

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
    let generation = object.metadata.generation;
    objects::edit_status(object, |status| {
        let told = status.get("conditions").and_then(Value::as_array);
        let mut conditions = told.cloned().unwrap_or_default();
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
