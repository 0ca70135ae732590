//! Conditions of this API: a plain list, in the order in which they were first set (nmstate §2.1).

use k8s_openapi::jiff::Timestamp;
use kube_kit::conditions::whole_seconds;
use serde_json::{Value, json};

pub(crate) use api::node_state::{Condition, Status};

/// Sets a condition; a new one is appended.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let now = whole_seconds(now);
    if let Some(condition) = conditions.iter_mut().find(|condition| condition.kind == kind) {
        if condition.status != status {
            condition.status = status;
            condition.last_transition_time = Some(now.clone());
        }
        reason.clone_into(&mut condition.reason);
        message.clone_into(&mut condition.message);
        condition.last_heartbeat_time = Some(now);
        return;
    }
    conditions.push(Condition {
        kind: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
        observed_generation: None,
    });
}

/// Sets a condition in a list of any JSON values. `false` if only the times would change.
pub(crate) fn put(
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
    set(&mut after, kind, status, reason, message, now);
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

/// The status of a condition, if it was ever set.
pub(crate) fn status(conditions: &[Condition], kind: &str) -> Option<Status> {
    conditions
        .iter()
        .find(|condition| condition.kind == kind)
        .map(|condition| condition.status)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut conditions = Vec::new();
        set(&mut conditions, "Available", Status::Unknown, "", "", at(1));
        set(&mut conditions, "Degraded", Status::False, "Reason", "", at(2));
        set(
            &mut conditions,
            "Available",
            Status::True,
            "Reason",
            "text",
            at(3),
        );
        set(&mut conditions, "Available", Status::True, "Other", "", at(4));
        let kinds: Vec<&str> = conditions
            .iter()
            .map(|condition| condition.kind.as_str())
            .collect();
        assert_eq!(kinds, ["Available", "Degraded"]);
        let available = &conditions[0];
        assert_eq!(
            (available.reason.as_str(), available.message.as_str()),
            ("Other", "")
        );
        assert_eq!(available.last_heartbeat_time, Some(Time(at(4))));
        assert_eq!(available.last_transition_time, Some(Time(at(3))));
        assert_eq!(status(&conditions, "Degraded"), Some(Status::False));
        assert_eq!(status(&conditions, "Progressing"), None);
    }
}
