//! Whether a live object contains all rendered fields, and which are missing.
//!
//! Other fields do not count. Lists whose items have a key are compared item by item, as server-side apply merges them;
//! all others have to be equal.

use super::compare::quantity;
use crate::patch::escape;
use serde_json::{Map, Value};

/// Lists whose items are merged, with their key fields (of several, those that an item has).
const KEYED: [(&str, &[&str]); 11] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("volumes", &["name"]),
    ("env", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("imagePullSecrets", &["name"]),
    ("ownerReferences", &["uid"]),
    ("conditions", &["type"]),
    ("webhooks", &["name"]),
    ("additionalNetworks", &["name"]),
    ("ports", &["containerPort", "port", "protocol"]),
];

/// JSON pointers of the rendered fields that differ in the live object.
pub fn uncovered(rendered: &Value, live: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    compare(rendered, Some(live), "", &mut paths);
    paths
}

fn compare(rendered: &Value, live: Option<&Value>, path: &str, paths: &mut Vec<String>) {
    match (rendered, live) {
        (Value::Object(rendered), Some(Value::Object(live))) => members(rendered, live, path, paths),
        (Value::Array(rendered), Some(Value::Array(live))) => items(rendered, live, path, paths),
        (rendered, live) if is_same(rendered, live, path) => {}
        _ => paths.push(path.to_owned()),
    }
}

fn members(rendered: &Map<String, Value>, live: &Map<String, Value>, path: &str, paths: &mut Vec<String>) {
    for (key, value) in rendered {
        // The API server does not store the first one, and the second one is a condition of a write.
        if path == "/metadata" && ["managedFields", "resourceVersion"].contains(&key.as_str()) {
            continue;
        }
        compare(value, live.get(key), &format!("{path}/{}", escape(key)), paths);
    }
}

fn items(rendered: &[Value], live: &[Value], path: &str, paths: &mut Vec<String>) {
    let field = path.rsplit('/').next().unwrap_or_default();
    let keys = KEYED
        .iter()
        .find(|(name, _)| *name == field)
        .map(|(_, keys)| *keys);
    match keys {
        Some(keys) if rendered.iter().all(Value::is_object) => {
            for (index, item) in rendered.iter().enumerate() {
                let is_it = |other: &&Value| keys.iter().all(|key| same_key(item, other, key));
                compare(item, live.iter().find(is_it), &format!("{path}/{index}"), paths);
            }
        }
        _ if rendered.len() == live.len() => {
            for (index, (item, other)) in rendered.iter().zip(live).enumerate() {
                compare(item, Some(other), &format!("{path}/{index}"), paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

/// Whether two items have the same value of a key; a key that was not rendered matches any default.
fn same_key(rendered: &Value, live: &Value, key: &str) -> bool {
    rendered.get(key).is_none_or(|value| live.get(key) == Some(value))
}

fn is_same(rendered: &Value, live: Option<&Value>, path: &str) -> bool {
    match (rendered, live) {
        (rendered, Some(live)) if rendered == live => true,
        // Not every kind stores empty values.
        (Value::Null, None | Some(Value::Null)) => true,
        (Value::Object(members), None | Some(Value::Null)) => members.is_empty(),
        (Value::Array(items), None | Some(Value::Null)) => items.is_empty(),
        (Value::String(text), None) => text.is_empty(),
        (Value::Bool(flag), None) => !flag,
        (Value::Number(rendered), Some(Value::Number(live))) => rendered.as_f64() == live.as_f64(),
        (Value::String(_), Some(live @ Value::String(_))) => {
            let is_quantity = path.contains("/requests/") || path.contains("/limits/");
            is_quantity && quantity(rendered).is_some() && quantity(rendered) == quantity(live)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn uncovered_ignores_additional_fields() {
        let rendered = json!({
            "metadata": { "name": "a", "resourceVersion": "1", "labels": { "x/y": "1" } },
            "spec": { "containers": [{ "name": "c", "env": [{ "name": "A", "value": "" }], "ports": [{ "containerPort": 1 }],
                "resources": { "requests": { "cpu": "1000m" } } }], "tolerations": [], "clusterIP": null },
        });
        let live = json!({
            "metadata": { "name": "a", "uid": "1", "labels": { "x/y": "1", "z": "2" } },
            "spec": { "containers": [{ "name": "other" }, { "name": "c", "image": "i", "env": [{ "name": "B" },
                { "name": "A" }], "ports": [{ "containerPort": 1, "protocol": "TCP" }],
                "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }] },
            "status": {},
        });
        assert_eq!(uncovered(&rendered, &live), Vec::<String>::new());
    }

    #[test]
    fn uncovered_names_differing_fields() {
        let rendered = json!({
            "metadata": { "labels": { "x/y": "1" } },
            "spec": { "containers": [{ "name": "c" }], "args": ["a", "b"], "port": 1, "tolerations": [{ "key": "a" }] },
        });
        let live = json!({
            "metadata": {},
            "spec": { "containers": [{ "name": "d" }], "args": ["a", "c"], "port": 2,
                "tolerations": [{ "key": "a" }, { "key": "b" }] },
        });
        let expected = [
            "/metadata/labels",
            "/spec/containers/0",
            "/spec/args/1",
            "/spec/port",
            "/spec/tolerations",
        ];
        assert_eq!(uncovered(&rendered, &live), expected);
    }
}
