use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

/// A policy that is being applied, and was told of at a time.
fn policy(told: &str, counts: &Value) -> Policy {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "ConfigurationProgressing",
            "message": if status == "True" { "Policy is progressing 1/2 nodes finished" } else { "" },
            "lastHeartbeatTime": told, "lastTransitionTime": told,
        })
    };
    let object = json!({
        "metadata": { "name": "p", "generation": 1, "resourceVersion": "7" },
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

fn owing(generation: i64) -> Wish {
    let mut wish = Wish::default();
    wish.owe([(generation, None)]);
    wish
}

// nmstate#26
#[test]
fn a_slot_is_not_given_back_twice_when_the_first_time_got_no_answer() {
    let mut wish = owing(1);
    wish.resolve("8");
    assert_eq!(
        wish.owed.len(),
        1,
        "nothing was written yet, so other versions are others'"
    );
    assert!(!wish.is_in_doubt());

    wish.doubt("8");
    assert!(wish.is_in_doubt());
    wish.resolve("8");
    assert_eq!(wish.owed.len(), 1, "nobody has written since, so it is not in");
    wish.doubt("9");
    wish.resolve("9");
    assert!(wish.owed.is_empty(), "it may be what was written since");
}

#[test]
fn a_doubt_outlives_the_attempts() {
    let mut wish = owing(1);
    wish.doubt("8");
    wish.owe([(1, None), (2, None)]);
    wish.resolve("9");
    assert_eq!(wish.owed, BTreeMap::from([(2, None)]));
}

#[test]
fn what_another_handler_looked_at_is_not_looked_at_again_for_a_minute() {
    let looked = |told: &str| was_looked_at(&policy(told, &json!({})), now());
    assert!(looked(NOW));
    assert!(looked("2026-01-01T11:59:01Z"));
    assert!(!looked("2026-01-01T11:59:00Z"));
    assert!(looked("2026-01-01T12:00:30Z"), "clocks differ");
    assert!(
        !looked("2026-01-01T13:00:00Z"),
        "a clock that is wrong stops nobody"
    );
}

#[test]
fn a_look_is_told_though_nothing_is_new() {
    let policy = policy(NOW, &json!({ "1": 1 }));
    let outcome = Outcome::Progressing {
        finished: 1,
        awaited: 2,
        pending: 0,
        not_ready: 0,
        stalled: false,
    };
    let due = |is_look| due(&policy, Some(outcome), &Wish::default(), is_look);
    assert_eq!(due(false), (None, None));
    let (conditions, counts) = due(true);
    assert_eq!(counts, None);
    assert!(
        status::same(&conditions.expect("conditions"), &policy.conditions()),
        "the times are all that is new"
    );
}
