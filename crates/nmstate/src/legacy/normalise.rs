//! Rewrites old spellings of documents to the engine's (nmstate §3.2-8).

use serde_json::{Map, Value, json};

/// Members of an interface that old reports had, and that cannot be configured.
const REPORTED_ONLY: [&str; 6] = [
    "ifIndex",
    "if-index",
    "capabilities",
    "adminStatus",
    "linkStatus",
    "statistics",
];

/// Whether a document has any content: null and empty members do not count.
pub(crate) fn has_content(document: &Value) -> bool {
    match document {
        Value::Null => false,
        Value::Object(members) => members.values().any(has_content),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Rewrites a document to the engine's spellings. If it has both the old and the new key, the old one stays, and the
/// engine refuses it: the author's intent is unknown.
pub(crate) fn document(document: &mut Value) {
    let Value::Object(sections) = document else {
        return;
    };
    sections.retain(|name, section| !section.is_null() && name != "capabilities");
    let Some(Value::Array(interfaces)) = sections.get_mut("interfaces") else {
        return;
    };
    for interface in interfaces.iter_mut().filter_map(Value::as_object_mut) {
        self::interface(interface);
    }
}

fn interface(interface: &mut Map<String, Value>) {
    interface.retain(|name, _| !REPORTED_ONLY.contains(&name.as_str()));
    rename(interface, "macAddress", "mac-address");
    rename(interface, "linkaggregation", "link-aggregation");
    rename(interface, "linkAggregation", "link-aggregation");
    vlan(interface);
    if let Some(Value::Object(ipv6)) = interface.get_mut("ipv6") {
        rename(ipv6, "autoConf", "autoconf");
    }
    if let Some(Value::Object(bond)) = interface.get_mut("link-aggregation") {
        rename(bond, "slaves", "port");
        items(bond, "port");
    }
    if let Some(Value::Object(bridge)) = interface.get_mut("bridge") {
        rename(bridge, "ports", "port");
        rename(bridge, "slaves", "port");
        items(bridge, "port");
        for port in list(bridge, "port") {
            if port.is_string() {
                *port = json!({ "name": port.take() });
            }
        }
    }
}

/// Moves `vlanID` and `vlanbase` into the section `vlan`.
fn vlan(interface: &mut Map<String, Value>) {
    if interface.contains_key("vlan") {
        return;
    }
    let mut section = Map::new();
    for (old, new) in [
        ("vlanID", "id"),
        ("vlanId", "id"),
        ("vlanbase", "base-iface"),
        ("vlanBase", "base-iface"),
    ] {
        if !section.contains_key(new)
            && let Some(value) = interface.shift_remove(old)
        {
            section.insert(new.to_owned(), value);
        }
    }
    if !section.is_empty() {
        interface.insert("vlan".to_owned(), section.into());
    }
}

/// Unwraps a list that was written as `{items: [...]}`.
fn items(members: &mut Map<String, Value>, key: &str) {
    if let Some(Value::Object(wrapped)) = members.get_mut(key)
        && wrapped.len() == 1
        && let Some(inner @ (Value::Array(_) | Value::Null)) = wrapped.get_mut("items")
    {
        let list = match inner.take() {
            Value::Null => json!([]),
            list => list,
        };
        members.insert(key.to_owned(), list);
    }
}

fn list<'a>(members: &'a mut Map<String, Value>, key: &str) -> impl Iterator<Item = &'a mut Value> {
    members
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Renames a member and keeps its position, unless the new name exists.
fn rename(members: &mut Map<String, Value>, old: &str, new: &str) {
    if !members.contains_key(old) || members.contains_key(new) {
        return;
    }
    let renamed = std::mem::take(members).into_iter().map(|(name, value)| {
        let name = if name == old { new.to_owned() } else { name };
        (name, value)
    });
    *members = renamed.collect();
}

#[cfg(test)]
mod tests;
