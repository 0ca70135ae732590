//! Conditions in a status: what is true of an object, why, and since when.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One condition in the form that the add-ons operator's status uses (operator.md §1.2).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about, such as `Available`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for programs; empty when there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people; empty when there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was last looked at; never set by us.
    #[serde(default)]
    pub last_heartbeat_time: Option<Time>,
    /// Since when the status is what it is.
    #[serde(default)]
    pub last_transition_time: Option<Time>,
}

impl Condition {
    /// A condition without reason or message.
    pub fn new(kind: &str, status: bool) -> Self {
        let status = if status { "True" } else { "False" };
        Self {
            kind: kind.to_owned(),
            status: status.to_owned(),
            ..Self::default()
        }
    }

    /// With a reason and a message.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.reason = reason.into();
        self.message = message.into();
        self
    }

    /// Whether the status is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// What [`set`] needs to know of a condition; implement it for the condition type of an API.
pub trait Conditional: Sized {
    /// What the condition is about.
    fn kind(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
    /// Since when.
    fn transition(&self) -> Option<&Time>;
    /// Sets since when.
    fn set_transition(&mut self, at: Option<Time>);
    /// When it was last looked at, for those who keep it; taken over from the old condition.
    fn inherit(&mut self, _old: &Self) {}
}

impl Conditional for Condition {
    fn kind(&self) -> &str {
        &self.kind
    }
    fn status(&self) -> &str {
        &self.status
    }
    fn transition(&self) -> Option<&Time> {
        self.last_transition_time.as_ref()
    }
    fn set_transition(&mut self, at: Option<Time>) {
        self.last_transition_time = at;
    }
    fn inherit(&mut self, old: &Self) {
        self.last_heartbeat_time.clone_from(&old.last_heartbeat_time);
    }
}

/// Puts a condition in the place of the one of its kind, or at the end. The transition time is `now` when the status
/// flips or the condition is new, and stays otherwise, whatever the given condition says. Returns the old one.
pub fn set<C: Conditional>(conditions: &mut Vec<C>, mut condition: C, now: Timestamp) -> Option<C> {
    let Some(old) = conditions.iter_mut().find(|old| old.kind() == condition.kind()) else {
        condition.set_transition(Some(whole_seconds(now)));
        conditions.push(condition);
        return None;
    };
    let since = match old.transition() {
        Some(since) if old.status() == condition.status() => since.clone(),
        _ => whole_seconds(now),
    };
    condition.set_transition(Some(since));
    condition.inherit(old);
    Some(std::mem::replace(old, condition))
}

/// The condition of this kind.
pub fn find<'a, C: Conditional>(conditions: &'a [C], kind: &str) -> Option<&'a C> {
    conditions.iter().find(|condition| condition.kind() == kind)
}

/// Whether the condition of this kind is `True`; a missing one is not.
pub fn is_true<C: Conditional>(conditions: &[C], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status() == "True")
}

/// Whether the condition of this kind is there and `False`.
pub fn is_false<C: Conditional>(conditions: &[C], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status() == "False")
}

/// Removes the condition of this kind. Whether there was one.
pub fn remove<C: Conditional>(conditions: &mut Vec<C>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.kind() != kind);
    conditions.len() != before
}

/// The API keeps seconds only; comparing anything finer would see a change where there is none.
fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 500_000_000).expect("a time")
    }

    fn since(conditions: &[Condition], kind: &str) -> i64 {
        find(conditions, kind)
            .and_then(Conditional::transition)
            .expect("a transition time")
            .0
            .as_second()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        assert_eq!(
            set(&mut conditions, Condition::new("Degraded", false), at(10)),
            None
        );
        assert_eq!(since(&conditions, "Degraded"), 10);
        set(
            &mut conditions,
            Condition::new("Degraded", false).because("Other", "text"),
            at(20),
        );
        assert_eq!(since(&conditions, "Degraded"), 10);
        assert_eq!(conditions[0].message, "text");
        let old = set(&mut conditions, Condition::new("Degraded", true), at(30)).expect("the old one");
        assert!(!old.is_true());
        assert_eq!(since(&conditions, "Degraded"), 30);
        assert_eq!(conditions.len(), 1);
        assert!(is_true(&conditions, "Degraded"));
        assert!(
            !is_false(&conditions, "Available"),
            "a missing condition is neither"
        );
        assert!(remove(&mut conditions, "Degraded"));
        assert!(!remove(&mut conditions, "Degraded"));
    }

    #[test]
    fn conditions_look_as_the_schema_wants_them() {
        let mut conditions = Vec::new();
        set(&mut conditions, Condition::new("Available", true), at(0));
        assert_eq!(
            serde_json::to_value(&conditions).expect("JSON"),
            serde_json::json!([{"type": "Available", "status": "True", "lastHeartbeatTime": null,
                "lastTransitionTime": "1970-01-01T00:00:00Z"}])
        );
    }
}
