//! Definitions of kinds that several installations share: the widest one stays.

use serde_json::Value;
use std::collections::BTreeSet;

/// Whether the live definition has versions or properties that the rendered one lacks. Without them, the API server
/// would drop these fields from other clients' objects.
pub(super) fn is_wider(live: &Value, rendered: &Value) -> bool {
    !properties(live).is_subset(&properties(rendered))
}

/// The versions, and the paths of all properties in all of them.
fn properties(definition: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    for version in versions.into_iter().flatten() {
        let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        found.insert(name.to_owned());
        if let Some(schema) = version.pointer("/schema/openAPIV3Schema") {
            walk(schema, name, &mut found);
        }
    }
    found
}

fn walk(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        walk(property, &path, found);
        found.insert(path);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = schema.get(key) {
            walk(inner, &format!("{path}{mark}"), found);
        }
    }
}
