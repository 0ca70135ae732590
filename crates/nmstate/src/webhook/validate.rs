//! Validation of policies, for clusters without validating admission policies: the same conditions and messages
//! (nmstate §7.2).

use ::webhook::admission::{Request, Verdict};
use kube_kit::object::is_label_value;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::messages;
use super::mutate::read;
use super::object::Object;
use crate::names::{self, condition, reason};
use crate::policy::slots;

#[derive(Deserialize)]
struct Policy {
    metadata: Option<Object<Metadata>>,
    spec: Option<Map<String, Value>>,
    status: Option<Object<Status>>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<String>,
    annotations: Option<Value>,
}

#[derive(Deserialize)]
struct Status {
    conditions: Option<Vec<Object<Condition>>>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
}

impl Policy {
    /// The name; empty if it is yet to be generated.
    fn name(&self) -> &str {
        let metadata = self.metadata.as_ref();
        metadata
            .and_then(|metadata| metadata.0.name.as_deref())
            .unwrap_or_default()
    }

    /// Whether the author permits changes while nodes are applying the policy.
    fn may_be_in_progress(&self) -> bool {
        let metadata = self.metadata.as_ref();
        let annotations = metadata.and_then(|metadata| metadata.0.annotations.as_ref());
        annotations.is_some_and(|annotations| annotations[names::EDIT_IN_PROGRESS] == "true")
    }

    /// A member of the spec; null counts as missing.
    fn get(&self, member: &str) -> Option<&Value> {
        let found = self.spec.as_ref()?.get(member)?;
        (!found.is_null()).then_some(found)
    }

    /// Whether the policy has a final result, or is stalled.
    fn is_finished(&self) -> bool {
        let conditions = self
            .status
            .as_ref()
            .and_then(|status| status.0.conditions.as_deref());
        conditions.unwrap_or_default().iter().any(|Object(condition)| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            condition.kind.as_deref() == Some(condition::AVAILABLE)
                && !reason.is_empty()
                && reason != reason::PROGRESSING
        })
    }
}

/// Validates a new policy.
pub(crate) fn create(request: &Request) -> Verdict {
    let policy: Policy = match read(request) {
        Ok(policy) => policy,
        Err(verdict) => return verdict,
    };
    if !is_label_value(policy.name()) {
        return Verdict::denied(422, messages::name(policy.name()));
    }
    let verdict = selector(&policy);
    if verdict.denied.is_none() && !is_limit(&policy) {
        return Verdict::denied(422, messages::MAX_UNAVAILABLE);
    }
    verdict
}

/// Validates a change of a policy.
pub(crate) fn update(request: &Request) -> Verdict {
    let policy: Policy = match read(request) {
        Ok(policy) => policy,
        Err(verdict) => return verdict,
    };
    let Some(old) = request.old_object.as_deref() else {
        return Verdict::denied(500, messages::NO_POLICY);
    };
    let old: Policy = match serde_json::from_str(old.get()) {
        Ok(Object(old)) => old,
        Err(error) => return Verdict::denied(500, messages::undecodable(&error)),
    };
    if policy.spec != old.spec {
        if !old.is_finished() && !policy.may_be_in_progress() {
            return Verdict::denied(403, messages::in_progress(policy.name()));
        }
        if policy.get("capture") != old.get("capture") {
            return Verdict::denied(422, messages::CAPTURE);
        }
    }
    let verdict = selector(&policy);
    if verdict.denied.is_none() && policy.spec != old.spec && !is_limit(&policy) {
        return Verdict::denied(422, messages::MAX_UNAVAILABLE);
    }
    verdict
}

/// Whether maxUnavailable is valid.
fn is_limit(policy: &Policy) -> bool {
    slots::mistake(policy.get("maxUnavailable")).is_none()
}

fn selector(policy: &Policy) -> Verdict {
    let selector = policy.get("nodeSelector").and_then(Value::as_object);
    // The schema rejects values that are no strings.
    let mut values = selector
        .into_iter()
        .flat_map(Map::values)
        .filter_map(Value::as_str);
    if values.all(is_label_value) {
        Verdict::allowed()
    } else {
        Verdict::denied(422, messages::SELECTOR)
    }
}

#[cfg(test)]
mod tests;
