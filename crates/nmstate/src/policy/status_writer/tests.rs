use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

/// A policy in progress with this heartbeat.
fn policy(heartbeat: &str, counts: &Value) -> Policy {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "ConfigurationProgressing",
            "message": if status == "True" { "Policy is progressing 1/2 nodes finished" } else { "" },
            "lastHeartbeatTime": heartbeat, "lastTransitionTime": heartbeat,
        })
    };
    let object = json!({
        "metadata": { "name": "p", "uid": "u-1", "generation": 1, "resourceVersion": "7" },
        "spec": {},
        "status": {
            "conditions": [
                condition("Available", "Unknown"),
                condition("Degraded", "Unknown"),
                condition("Progressing", "True"),
                condition("Ignored", "False"),
            ],
            "unavailableNodeCountMap": counts,
        },
    });
    Policy::new(serde_json::from_value(object).expect("an object"))
}

/// The policy in another version.
fn version(version: &str) -> Policy {
    let mut object = policy(NOW, &json!({})).with_status(None, None);
    object.metadata.resource_version = Some(version.to_owned());
    Policy::new(object)
}

/// A slot of the policy.
fn slot(generation: i64) -> Held {
    Held {
        uid: "u-1".to_owned(),
        generation,
    }
}

fn releasing(generation: i64) -> Update {
    let mut update = Update::default();
    update.add_releases([(slot(generation), None)]);
    update
}

// nmstate#26
#[test]
fn slot_whose_release_got_no_response_is_not_released_twice() {
    let mut update = releasing(1);
    update.resolve(&version("8"));
    assert_eq!(
        update.releases.len(),
        1,
        "no release was written yet, so others wrote this version"
    );
    assert!(!update.has_lost_response());

    update.response_lost("8");
    assert!(update.has_lost_response());
    update.resolve(&version("8"));
    assert_eq!(
        update.releases.len(),
        1,
        "the version is unchanged, so the release was not stored"
    );
    update.response_lost("9");
    update.resolve(&version("9"));
    assert!(
        update.releases.is_empty(),
        "the new version may contain the release"
    );
}

#[test]
fn lost_response_survives_a_requeue() {
    let mut update = releasing(1);
    update.response_lost("8");
    update.add_releases([(slot(1), None), (slot(2), None)]);
    update.resolve(&version("9"));
    assert_eq!(update.releases, BTreeMap::from([(slot(2), None)]));
}

#[test]
fn slot_of_a_deleted_policy_of_the_same_name_is_not_released() {
    let mut update = releasing(1);
    let former = Held {
        uid: "u-0".to_owned(),
        generation: 1,
    };
    update.add_releases([(former, None)]);
    update.resolve(&version("8"));
    assert_eq!(update.releases, BTreeMap::from([(slot(1), None)]));
}

#[test]
fn policy_checked_by_another_handler_is_not_checked_again_for_a_minute() {
    let checked = |heartbeat: &str| was_checked(&policy(heartbeat, &json!({})), now());
    assert!(checked(NOW));
    assert!(checked("2026-01-01T11:59:01Z"));
    assert!(!checked("2026-01-01T11:59:00Z"));
    assert!(checked("2026-01-01T12:00:30Z"), "clocks differ");
    assert!(
        !checked("2026-01-01T13:00:00Z"),
        "a clock that is ahead prevents no check"
    );
}

#[test]
fn check_writes_conditions_without_a_change() {
    let policy = policy(NOW, &json!({ "1": 1 }));
    let outcome = Outcome::Progressing {
        finished: 1,
        awaited: 2,
        pending: 0,
        not_ready: 0,
        stalled: false,
    };
    let due = |is_check| due(&policy, Some(outcome), &Update::default(), is_check);
    assert_eq!(due(false), (None, None));
    let (conditions, counts) = due(true);
    assert_eq!(counts, None);
    assert!(
        status::same(&conditions.expect("conditions"), &policy.conditions()),
        "only the times change"
    );
}
