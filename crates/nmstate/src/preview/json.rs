//! The output as JSON.

use serde_json::{Value, json};

use super::changes::Change;
use super::evaluate::Outcome;
use super::text;

/// A policy with its outcome on each node.
pub(super) fn policy(name: &str, outcomes: &[(String, Outcome)]) -> Value {
    let nodes: Vec<Value> = outcomes
        .iter()
        .map(|(name, outcome)| node(name, outcome))
        .collect();
    json!({ "name": name, "nodes": nodes, "notes": text::notes(outcomes) })
}

fn node(name: &str, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::NotSelected(lacking) => {
            json!({ "name": name, "outcome": "NotSelected", "missingLabels": lacking })
        }
        Outcome::Unknown(why) => json!({ "name": name, "outcome": "Unknown", "message": why }),
        Outcome::Fails(why) => json!({ "name": name, "outcome": "Fails", "message": why }),
        Outcome::Changes(changes, _) => {
            let changes: Vec<Value> = changes.iter().map(change).collect();
            json!({ "name": name, "outcome": "Changes", "changes": changes })
        }
    }
}

fn change(change: &Change) -> Value {
    let action = match change.sign {
        '+' => "create",
        '-' => "remove",
        _ => "change",
    };
    json!({ "action": action, "what": change.what, "details": change.details })
}
