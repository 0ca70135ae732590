//! Text of differences.

use kube_kit::{merge::Difference, object};
use serde_json::Value;

use super::{Change, ObjectDiff};
use crate::connection::named;

/// Replaces secrets, and values without a meaning for people.
const HIDDEN: &str = "(not shown)";
/// Replaces absent values.
const NOTHING: &str = "(none)";
/// Maximum length of a pair of values in one line.
const ONE_LINE: usize = 72;
/// Unchanged lines before and after changed ones.
const CONTEXT: usize = 1;

pub(super) fn print(diffs: &[ObjectDiff], unchanged: usize) -> String {
    let mut text = String::new();
    for diff in diffs {
        let name = named(&diff.id);
        match &diff.change {
            Change::Created => text.push_str(&format!("+ {name}\n")),
            Change::Deleted => text.push_str(&format!("- {name}\n")),
            Change::NotServed => {
                let kind = diff.id.api_version();
                text.push_str(&format!(
                    "! {name}: this cluster does not serve {} of {kind}\n",
                    diff.id.kind
                ));
            }
            Change::Changed(differences) => {
                text.push_str(&format!("~ {name}\n"));
                text.push_str(&fields(diff, differences));
            }
            Change::Recreated(differences) => {
                text.push_str(&format!("-/+ {name} (deleted and recreated)\n"));
                text.push_str(&fields(diff, differences));
            }
        }
    }
    if diffs.is_empty() {
        return match unchanged {
            1 => "No difference: 1 object is in its desired state.\n".to_owned(),
            count => format!("No difference: {count} objects are in their desired state.\n"),
        };
    }
    text.push_str(&format!("\n{}\n", summary(diffs, unchanged)));
    text
}

fn summary(diffs: &[ObjectDiff], unchanged: usize) -> String {
    let count = |is: fn(&Change) -> bool| diffs.iter().filter(|diff| is(&diff.change)).count();
    let parts = [
        (count(|change| *change == Change::Created), "to create"),
        (count(|change| matches!(change, Change::Changed(_))), "to change"),
        (
            count(|change| matches!(change, Change::Recreated(_))),
            "to recreate",
        ),
        (count(|change| *change == Change::Deleted), "to delete"),
        (
            count(|change| *change == Change::NotServed),
            "that cannot be applied",
        ),
        (unchanged, "unchanged"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts
        .map(|(count, what)| format!("{count} {what}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn fields(diff: &ObjectDiff, differences: &[Difference]) -> String {
    differences
        .iter()
        .map(|difference| field(diff, difference))
        .collect()
}

/// One field: its live and its desired value.
fn field(diff: &ObjectDiff, difference: &Difference) -> String {
    let path = readable(&difference.path, &diff.wanted, &diff.live);
    if is_secret(diff, &difference.path) {
        return format!("    {path}: {HIDDEN}\n");
    }
    let found = difference.found.clone().map(without_bundles);
    let wanted = difference.wanted.clone().map(without_bundles);
    let is_flat = |value: &Option<Value>| match value {
        None => true,
        Some(Value::String(text)) => !text.trim_end().contains('\n'),
        Some(value) => !(value.is_object() || value.is_array()) || is_empty(value),
    };
    let short = |value: &Option<Value>| {
        value
            .as_ref()
            .map_or_else(|| NOTHING.to_owned(), Value::to_string)
    };
    let (short_found, short_wanted) = (short(&found), short(&wanted));
    if is_flat(&found)
        && is_flat(&wanted)
        && short_found.chars().count() + short_wanted.chars().count() <= ONE_LINE
    {
        return format!("    {path}: {short_found} → {short_wanted}\n");
    }
    let (found, wanted) = (lines(found.as_ref()), lines(wanted.as_ref()));
    format!("    {path}:\n{}", changed_lines(&found, &wanted))
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether the value must not be printed.
fn is_secret(diff: &ObjectDiff, path: &str) -> bool {
    let in_secret = diff.id.kind == object::SECRET.kind && (path == "data" || path.starts_with("data."));
    in_secret || path.ends_with("caBundle")
}

/// The value without bundles of certificates.
fn without_bundles(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            for (key, member) in members {
                *member = if key == "caBundle" {
                    HIDDEN.into()
                } else {
                    without_bundles(member.take())
                };
            }
        }
        Value::Array(elements) => {
            for element in elements {
                *element = without_bundles(element.take());
            }
        }
        _ => {}
    }
    value
}

/// A value as lines: a text unchanged, everything else as YAML.
fn lines(value: Option<&Value>) -> Vec<String> {
    let text = match value {
        None => return Vec::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => {
            let mut sorted = value.clone();
            sorted.sort_all_objects();
            serde_saphyr::to_string(&sorted).unwrap_or_else(|_| sorted.to_string())
        }
    };
    text.lines().map(str::to_owned).collect()
}

/// The removed and the added lines, without the common lines before and after them.
fn changed_lines(found: &[String], wanted: &[String]) -> String {
    let same =
        |pairs: &mut dyn Iterator<Item = (&String, &String)>| pairs.take_while(|(a, b)| a == b).count();
    let head = same(&mut found.iter().zip(wanted));
    let tail = same(&mut found[head..].iter().rev().zip(wanted[head..].iter().rev()));
    let before = &found[head.saturating_sub(CONTEXT)..head];
    let after = &found[found.len() - tail..(found.len() - tail + CONTEXT.min(tail))];
    let marked = |mark: &'static str, lines: &[String]| -> String {
        lines
            .iter()
            .map(|line| format!("      {mark} {line}\n"))
            .collect()
    };
    [
        marked(" ", before),
        marked("-", &found[head..found.len() - tail]),
        marked("+", &wanted[head..wanted.len() - tail]),
        marked(" ", after),
    ]
    .concat()
}

/// A path for people: list items by their name, keys with dots in brackets.
fn readable(path: &str, wanted: &Value, live: &Value) -> String {
    let pieces: Vec<&str> = path.split('.').collect();
    let mut rest = pieces.as_slice();
    let mut sides = [Some(wanted), Some(live)];
    let mut text = String::new();
    while let Some(piece) = rest.first() {
        let is_list = sides.iter().flatten().any(|side| side.is_array());
        let (step, taken) = match piece.parse::<usize>() {
            Ok(index) if is_list => {
                sides = sides.map(|side| side.and_then(|side| side.get(index)));
                let name = sides.iter().flatten().find_map(|side| side.get("name")?.as_str());
                (name.map_or(format!("[{index}]"), |name| format!("[{name}]")), 1)
            }
            _ => {
                // A key may contain dots: the shortest existing key is chosen.
                let is_there = |length: &usize| {
                    let key = rest[..*length].join(".");
                    sides.iter().flatten().any(|side| side.get(&key).is_some())
                };
                let length = (1..=rest.len()).find(is_there).unwrap_or(rest.len());
                let key = rest[..length].join(".");
                sides = sides.map(|side| side.and_then(|side| side.get(&key)));
                let dot = if text.is_empty() { "" } else { "." };
                let plain = key
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
                let step = if plain {
                    format!("{dot}{key}")
                } else {
                    format!("[{key:?}]")
                };
                (step, length)
            }
        };
        text.push_str(&step);
        rest = &rest[taken..];
    }
    text
}
