//! Mutation of admitted policies (nmstate §7.1). Patches change single fields, so that all others survive.

use ::webhook::admission::{Change, Request, Verdict};
use k8s_openapi::jiff::Timestamp;
use kube_kit::patch;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::messages;
use super::object::Object;
use crate::conditions::{self, Status as ConditionStatus};
use crate::names;

#[derive(Deserialize)]
struct WithStatus {
    status: Option<Object<Status>>,
}

#[derive(Deserialize)]
struct Status {
    conditions: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct WithMetadata {
    metadata: Option<Object<Metadata>>,
}

#[derive(Deserialize)]
struct Metadata {
    annotations: Option<Object<Annotations>>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "nmstate.io/webhook-mutating-timestamp")]
    mutated: Option<String>,
}

/// Removes the conditions, which concern the earlier spec.
pub(crate) fn conditions(request: &Request) -> Verdict {
    let policy: WithStatus = match read(request) {
        Ok(policy) => policy,
        Err(verdict) => return verdict,
    };
    let conditions = policy.status.and_then(|status| status.0.conditions);
    match conditions {
        Some(conditions) if !conditions.is_empty() => Verdict::patched(vec![Change::Replace {
            path: "/status/conditions".to_owned(),
            value: json!([]),
        }]),
        _ => Verdict::allowed(),
    }
}

/// Sets missing conditions to Unknown.
pub(crate) fn status(request: &Request, now: Timestamp) -> Verdict {
    let policy: WithStatus = match read(request) {
        Ok(policy) => policy,
        Err(verdict) => return verdict,
    };
    let unknown = || {
        let mut unknown = Vec::new();
        for kind in names::condition::OF_POLICIES {
            conditions::set(&mut unknown, kind, ConditionStatus::Unknown, "", "", now);
        }
        json!(unknown)
    };
    let (path, value) = match policy.status.map(|status| status.0) {
        None => ("/status", json!({ "conditions": unknown() })),
        Some(Status { conditions: None }) => ("/status/conditions", unknown()),
        Some(Status {
            conditions: Some(conditions),
        }) if conditions.is_empty() => ("/status/conditions", unknown()),
        Some(_) => {
            return Verdict {
                message: Some(messages::NOT_NEEDED.to_owned()),
                ..Verdict::default()
            };
        }
    };
    Verdict::patched(vec![Change::Add {
        path: path.to_owned(),
        value,
    }])
}

/// Records the time of admission in nanoseconds since 1970, always later than the last one: the clock may have been set
/// back, or belong to another replica.
pub(crate) fn timestamp(request: &Request, now: Timestamp) -> Verdict {
    let policy: WithMetadata = match read(request) {
        Ok(policy) => policy,
        Err(verdict) => return verdict,
    };
    let stored = request.old_object.as_deref();
    let last = stored
        .and_then(|old| serde_json::from_str::<Object<WithMetadata>>(old.get()).ok())
        .and_then(|old| old.0.metadata?.0.annotations?.0.mutated)
        .and_then(|text| text.parse::<i64>().ok());
    let now = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
    let later = last.and_then(|last| last.checked_add(1));
    let time = later.map_or(now, |later| later.max(now)).to_string();
    let (path, value) = match policy.metadata.map(|metadata| metadata.0) {
        None => (
            "/metadata".to_owned(),
            json!({ "annotations": { names::MUTATED: time } }),
        ),
        Some(Metadata { annotations: None }) => (
            "/metadata/annotations".to_owned(),
            json!({ names::MUTATED: time }),
        ),
        Some(Metadata { annotations: Some(_) }) => (
            format!("/metadata/annotations/{}", patch::escape(names::MUTATED)),
            Value::String(time),
        ),
    };
    Verdict::patched(vec![Change::Add { path, value }])
}

/// Reads parts of the reviewed policy, or returns the denial.
pub(super) fn read<T: DeserializeOwned>(request: &Request) -> Result<T, Verdict> {
    let object = request.object.as_deref();
    let object = object.ok_or_else(|| Verdict::denied(500, messages::NO_POLICY))?;
    let policy = serde_json::from_str(object.get()).map(|Object(policy)| policy);
    policy.map_err(|error| Verdict::denied(500, messages::undecodable(&error)))
}

#[cfg(test)]
mod tests;
