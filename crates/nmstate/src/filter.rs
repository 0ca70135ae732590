//! The published part of a host's state (nmstate §5.3).
//!
//! ```text
//! engine's report ──> sections ──> interfaces kept ──> routes through them ──> NodeNetworkState
//! ```

pub(crate) mod names;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The published part of the engine's report, without interfaces whose names are `hidden`.
pub fn report(state: Value, hidden: impl Fn(&str) -> bool) -> Value {
    let Value::Object(mut state) = state else {
        return state;
    };
    let mut published = Map::new();
    let mut keep = |key: &str, value: Value| {
        published.insert(key.to_owned(), value);
    };
    if let Some(resolver) = state.shift_remove("dns-resolver") {
        keep("dns-resolver", name_servers(resolver));
    }
    let interfaces = interfaces(state.shift_remove("interfaces"), hidden);
    let names: BTreeSet<String> = interfaces.iter().filter_map(name).map(str::to_owned).collect();
    keep("interfaces", Value::Array(interfaces));
    if let Some(mappings) = state.shift_remove("ovn") {
        keep("ovn", bridge_mappings(&mappings));
    }
    if let Some(routes) = state.shift_remove("routes") {
        keep("routes", routes_through(routes, &names));
    }
    Value::Object(published)
}

fn interfaces(listed: Option<Value>, hidden: impl Fn(&str) -> bool) -> Vec<Value> {
    let Some(Value::Array(mut listed)) = listed else {
        return Vec::new();
    };
    listed.retain(|interface| {
        let unmanaged_veth = interface["type"] == "veth" && interface["state"] == "ignore";
        !unmanaged_veth && !name(interface).is_some_and(&hidden)
    });
    for interface in &mut listed {
        without_what_always_changes(interface);
    }
    listed
}

fn name(interface: &Value) -> Option<&str> {
    interface["name"].as_str()
}

/// Removes timers and lifetimes, which count down all the time.
fn without_what_always_changes(interface: &mut Value) {
    if interface["type"] == "linux-bridge"
        && let Some(options) = interface.pointer_mut("/bridge/options")
    {
        remove(options, &["gc-timer", "hello-timer"]);
    }
    for addresses in ["/ipv4/address", "/ipv6/address"] {
        let addresses = interface.pointer_mut(addresses).and_then(Value::as_array_mut);
        for address in addresses.into_iter().flatten() {
            remove(address, &["preferred-life-time", "valid-life-time"]);
        }
    }
}

fn remove(object: &mut Value, keys: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

fn routes_through(mut routes: Value, names: &BTreeSet<String>) -> Value {
    let mut through = |list: &str| {
        let mut routes = match routes.get_mut(list).map(Value::take) {
            Some(Value::Array(routes)) => routes,
            _ => Vec::new(),
        };
        routes.retain(|route| {
            route["next-hop-interface"]
                .as_str()
                .is_some_and(|name| names.contains(name))
        });
        routes
    };
    json!({ "config": through("config"), "running": through("running") })
}

fn name_servers(mut resolver: Value) -> Value {
    for part in ["config", "running"] {
        if let Some(part) = resolver.get_mut(part).and_then(Value::as_object_mut) {
            part.retain(|key, _| key == "search" || key == "server");
        }
    }
    if let Some(resolver) = resolver.as_object_mut() {
        resolver.retain(|key, _| key == "config" || key == "running");
    }
    resolver
}

fn bridge_mappings(ovn: &Value) -> Value {
    let mappings = ovn["bridge-mappings"].as_array();
    let mappings: Vec<Value> = mappings
        .into_iter()
        .flatten()
        .map(|mapping| {
            let mut mapping = mapping.clone();
            if let Some(mapping) = mapping.as_object_mut() {
                mapping.retain(|key, _| ["localnet", "bridge", "state"].contains(&key.as_str()));
            }
            mapping
        })
        .collect();
    if mappings.is_empty() {
        json!({})
    } else {
        json!({ "bridge-mappings": mappings })
    }
}

#[cfg(test)]
mod tests;
