//! Formats a difference of the engine for people.

use kube_kit::document::list;
use serde_json::Value;

/// One change.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Change {
    /// `+` new, `~` different, `-` gone.
    pub(super) sign: char,
    /// Type and name of an interface, a route, or a section.
    pub(super) what: String,
    /// Changed members, as `path: before → after`.
    pub(super) details: Vec<String>,
}

/// Shown for a missing value.
const NONE: &str = "(none)";
/// Members that identify an interface, and are no changes of their own.
const IDENTITY: [&str; 3] = ["name", "type", "state"];

/// The changes of a difference, compared with the report.
pub(super) fn of(diff: &Value, report: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    for (section, wanted) in diff.as_object().into_iter().flatten() {
        match section.as_str() {
            "interfaces" => {
                let interfaces = wanted.as_array().into_iter().flatten();
                changes.extend(interfaces.map(|wanted| interface(wanted, report)));
            }
            "routes" => {
                changes.extend(list(wanted, "/config").map(route));
            }
            _ => {
                let mut details = Vec::new();
                leaves("", wanted, report.get(section), &mut details);
                if !details.is_empty() {
                    changes.push(Change {
                        sign: '~',
                        what: section.clone(),
                        details,
                    });
                }
            }
        }
    }
    changes
}

fn interface(wanted: &Value, report: &Value) -> Change {
    let is_same = |there: &&Value| {
        there["name"] == wanted["name"] && (wanted["type"].is_null() || there["type"] == wanted["type"])
    };
    let there = report["interfaces"]
        .as_array()
        .and_then(|there| there.iter().find(is_same));
    let kind = [Some(wanted), there]
        .into_iter()
        .flatten()
        .find_map(|interface| interface["type"].as_str());
    let name = wanted["name"].as_str().unwrap_or_default();
    let what = format!("{} {name}", kind.unwrap_or("interface"));
    let state = wanted["state"].as_str().unwrap_or_default();
    let mut details = Vec::new();
    let sign = match there {
        _ if state == "absent" => '-',
        None => '+',
        Some(_) => '~',
    };
    if sign != '-' {
        let before = there.and_then(|there| there["state"].as_str());
        if before.is_some_and(|before| !state.is_empty() && before != state) {
            details.push(format!("state: {} → {state}", before.unwrap_or(NONE)));
        }
        for (key, value) in wanted.as_object().into_iter().flatten() {
            if !IDENTITY.contains(&key.as_str()) {
                leaves(key, value, there.and_then(|there| there.get(key)), &mut details);
            }
        }
    }
    Change { sign, what, details }
}

fn route(route: &Value) -> Change {
    let text = |key: &str| route.get(key).map(short);
    let mut what = format!(
        "route {}",
        text("destination").unwrap_or_else(|| "to anywhere".to_owned())
    );
    for (key, word) in [
        ("next-hop-address", "via"),
        ("next-hop-interface", "dev"),
        ("table-id", "table"),
        ("metric", "metric"),
    ] {
        if let Some(value) = text(key) {
            what.push_str(&format!(" {word} {value}"));
        }
    }
    let gone = route["state"] == "absent";
    Change {
        sign: if gone { '-' } else { '+' },
        what,
        details: Vec::new(),
    }
}

/// Adds every changed member with its path.
fn leaves(path: &str, wanted: &Value, there: Option<&Value>, details: &mut Vec<String>) {
    if let Value::Object(members) = wanted
        && !members.is_empty()
    {
        for (key, value) in members {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            leaves(&path, value, there.and_then(|there| there.get(key)), details);
        }
        return;
    }
    if there == Some(wanted) {
        return;
    }
    let after = short(wanted);
    details.push(match there {
        None => format!("{path}: {after}"),
        Some(there) => format!("{path}: {} → {after}", short(there)),
    });
}

/// A value in one line, without JSON syntax.
fn short(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) if items.is_empty() => NONE.to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(short).collect();
            items.join(", ")
        }
        Value::Object(members) => {
            if let (Some(ip), Some(length)) = (members.get("ip"), members.get("prefix-length")) {
                return format!("{}/{}", short(ip), short(length));
            }
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{key}: {}", short(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}
