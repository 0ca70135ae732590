//! The part of a desired state that the host lacks. The library compares documents as they are written: to it, a route
//! without a table, or a port without its defaults, differs from the same one on the host. This module removes such
//! differences.

use serde_json::{Map, Value};

use crate::routes::MAIN_TABLE;

/// Members that identify an interface; they are kept with each difference.
const IDENTITY: [&str; 3] = ["name", "type", "state"];
/// Interface types that the library identifies by name and type, and all others by name alone: an Open vSwitch bridge
/// may share its name with one of its interfaces.
const USER_SPACE: [&str; 2] = ["ovs-bridge", "ipsec"];

/// The part of a difference that the host with the state `now` lacks. Empty sections are left out.
pub(super) fn remaining(difference: &Value, now: &Value) -> Value {
    let mut lacking = Map::new();
    for (section, desired) in difference.as_object().into_iter().flatten() {
        let current = &now[section];
        let missing = match section.as_str() {
            "interfaces" => interfaces(desired, current),
            "routes" | "route-rules" => entries(desired, current),
            // An empty section is a desired state as well.
            "dns-resolver" if is_nothing(&desired["config"]) => {
                (!is_nothing(&current["config"])).then(|| desired.clone())
            }
            _ if has(current, desired) => None,
            _ => Some(desired.clone()),
        };
        if let Some(missing) = missing {
            lacking.insert(section.clone(), missing);
        }
    }
    Value::Object(lacking)
}

fn interfaces(desired: &Value, current: &Value) -> Option<Value> {
    let lacking: Vec<Value> = list(desired)
        .filter_map(|entry| interface(entry, current))
        .collect();
    (!lacking.is_empty()).then_some(Value::Array(lacking))
}

fn interface(desired: &Value, current: &Value) -> Option<Value> {
    let now = list(current).find(|now| is_same(desired, now));
    if desired["state"] == "absent" {
        return now.map(|_| desired.clone());
    }
    let Some(now) = now else {
        return Some(desired.clone());
    };
    let members = desired.as_object()?;
    let lacks = |key: &String, value: &Value| match key.as_str() {
        "name" => false,
        "type" => !is_type(value, &now["type"]),
        _ => !has(&now[key], value),
    };
    let lacking: Vec<&String> = members
        .iter()
        .filter(|(key, value)| lacks(key, value))
        .map(|(key, _)| key)
        .collect();
    if lacking.is_empty() {
        return None;
    }
    let kept = members
        .iter()
        .filter(|(key, _)| lacking.contains(key) || IDENTITY.contains(&key.as_str()));
    Some(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Whether both are the same interface to the library.
fn is_same(desired: &Value, now: &Value) -> bool {
    let (desired_type, current_type) = (&desired["type"], &now["type"]);
    let is_in_user_space = |kind: &Value| USER_SPACE.iter().any(|known| *kind == *known);
    let may_be = desired_type.is_null()
        || *desired_type == "unknown"
        || desired_type == current_type
        || !(is_in_user_space(desired_type) || is_in_user_space(current_type));
    desired["name"] == now["name"] && may_be
}

/// Whether two types are equal. An end of a veth pair may have either type.
fn is_type(desired: &Value, now: &Value) -> bool {
    let pair = |kind: &Value| *kind == "ethernet" || *kind == "veth";
    desired == now || (pair(desired) && pair(now))
}

/// Routes or rules that are missing, and absent ones that exist.
fn entries(desired: &Value, current: &Value) -> Option<Value> {
    let lacking: Vec<Value> = list(&desired["config"])
        .filter(|entry| {
            let found = list(&current["config"]).any(|now| is_entry(entry, now));
            let is_absent = entry["state"] == "absent";
            found == is_absent
        })
        .cloned()
        .collect();
    (!lacking.is_empty())
        .then(|| Value::Object(Map::from_iter([("config".to_owned(), Value::Array(lacking))])))
}

/// Whether an entry has all members of the desired one.
fn is_entry(desired: &Value, now: &Value) -> bool {
    let members = desired.as_object().into_iter().flatten();
    members.filter(|(key, _)| *key != "state").all(|(key, value)| {
        if key == "table-id" && value.as_u64() == Some(0) {
            return now[key].as_u64().is_none_or(|table| table == MAIN_TABLE);
        }
        has(&now[key], value)
    })
}

/// Whether the host has a desired value. Lists are compared as a whole, in any order; a missing value equals `false`
/// and an empty list.
fn has(now: &Value, desired: &Value) -> bool {
    match desired {
        Value::Null => true,
        Value::Object(members) => members.iter().all(|(key, value)| has(&now[key], value)),
        Value::Array(items) => {
            list(now).count() == items.len() && items.iter().all(|item| list(now).any(|now| has(now, item)))
        }
        Value::Bool(false) => now.is_null() || *now == Value::Bool(false),
        Value::String(desired) => now.as_str().is_some_and(|now| now.eq_ignore_ascii_case(desired)),
        Value::Bool(_) | Value::Number(_) => now == desired,
    }
}

/// Whether all members are empty lists.
fn is_nothing(names: &Value) -> bool {
    let members = names.as_object().into_iter().flatten();
    members
        .into_iter()
        .all(|(_, value)| value.as_array().is_none_or(Vec::is_empty))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    fn now() -> Value {
        json!({
            "interfaces": [
                {"name": "br1", "type": "linux-bridge", "state": "up", "mac-address": "0A:00:00:00:00:01", "mtu": 1500,
                 "ipv4": {"enabled": true, "address": [
                    {"ip": "192.0.2.2", "prefix-length": 24}, {"ip": "192.0.2.3", "prefix-length": 24}]},
                 "bridge": {"options": {"stp": {"enabled": false}}, "port": [{"name": "eth1", "stp-priority": 32}]}},
                {"name": "eth1", "type": "veth", "state": "up"},
                {"name": "br-ex", "type": "ovs-bridge", "state": "up", "bridge": {"port": [{"name": "br-ex"}]}},
                {"name": "br-ex", "type": "ovs-interface", "state": "up", "ipv4": {"enabled": true, "dhcp": true}}],
            "routes": {"running": [], "config": [
                {"destination": "0.0.0.0/0", "next-hop-address": "192.0.2.1", "next-hop-interface": "br1",
                 "table-id": 254, "metric": 100}]},
            "dns-resolver": {"running": {"server": ["192.0.2.1"]}, "config": {"server": ["192.0.2.1"]}},
        })
    }

    #[rstest]
    #[case::interface(json!({"interfaces": [
        {"name": "br1", "type": "linux-bridge", "state": "up", "mac-address": "0a:00:00:00:00:01",
         "ipv4": {"enabled": true, "dhcp": false, "address": [
            {"ip": "192.0.2.3", "prefix-length": 24}, {"ip": "192.0.2.2", "prefix-length": 24}]},
         "ipv6": {"enabled": false},
         "bridge": {"port": [{"name": "eth1"}]}},
        {"name": "eth1", "type": "ethernet", "state": "up"},
        {"name": "br9", "state": "absent"}]}))]
    // nmstate#118
    #[case::one_name_for_two(json!({"interfaces": [
        {"name": "br-ex", "type": "ovs-interface", "state": "up", "ipv4": {"enabled": true, "dhcp": true}},
        {"name": "br-ex", "type": "ovs-bridge", "state": "up", "bridge": {"port": [{"name": "br-ex"}]}},
        {"name": "br1", "type": "ovs-bridge", "state": "absent"}]}))]
    #[case::routes(json!({"routes": {"config": [
        {"destination": "0.0.0.0/0", "next-hop-interface": "br1"},
        {"destination": "0.0.0.0/0", "next-hop-interface": "br1", "next-hop-address": "192.0.2.1", "table-id": 0},
        {"destination": "0.0.0.0/0", "next-hop-interface": "eth1", "state": "absent"}]}}))]
    #[case::names(json!({"dns-resolver": {"config": {"server": ["192.0.2.1"], "search": []}}}))]
    #[case::nothing(json!({"interfaces": []}))]
    fn equal_state_is_no_difference(#[case] difference: Value) {
        assert_eq!(super::remaining(&difference, &now()), json!({}));
    }

    #[rstest]
    #[case::address(
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "mtu": 1500,
            "ipv4": {"address": [{"ip": "192.0.2.2", "prefix-length": 24}]}}]}),
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge",
            "ipv4": {"address": [{"ip": "192.0.2.2", "prefix-length": 24}]}}]}))]
    #[case::another_type(
        json!({"interfaces": [{"name": "br1", "type": "bond"}]}),
        json!({"interfaces": [{"name": "br1", "type": "bond"}]}))]
    #[case::one_name_for_two(
        json!({"interfaces": [{"name": "br-ex", "type": "ovs-interface", "ipv4": {"dhcp": false}},
            {"name": "br-ex", "type": "ovs-bridge", "state": "absent"}]}),
        json!({"interfaces": [{"name": "br-ex", "type": "ovs-interface", "ipv4": {"dhcp": false}},
            {"name": "br-ex", "type": "ovs-bridge", "state": "absent"}]}))]
    #[case::port(
        json!({"interfaces": [{"name": "br1", "bridge": {"port": []}}]}),
        json!({"interfaces": [{"name": "br1", "bridge": {"port": []}}]}))]
    #[case::missing_and_absent(
        json!({"interfaces": [{"name": "br2", "state": "up"}, {"name": "br1", "state": "absent"}]}),
        json!({"interfaces": [{"name": "br2", "state": "up"}, {"name": "br1", "state": "absent"}]}))]
    #[case::routes(
        json!({"routes": {"config": [
            {"destination": "0.0.0.0/0", "next-hop-interface": "br1", "state": "absent"},
            {"destination": "0.0.0.0/0", "next-hop-interface": "br1", "table-id": 200},
            {"destination": "0.0.0.0/0", "next-hop-interface": "br1"}]}}),
        json!({"routes": {"config": [
            {"destination": "0.0.0.0/0", "next-hop-interface": "br1", "state": "absent"},
            {"destination": "0.0.0.0/0", "next-hop-interface": "br1", "table-id": 200}]}}))]
    #[case::no_names(
        json!({"dns-resolver": {"config": {"server": []}}}),
        json!({"dns-resolver": {"config": {"server": []}}}))]
    #[case::no_names_at_all(
        json!({"dns-resolver": {"config": {}}}),
        json!({"dns-resolver": {"config": {}}}))]
    fn missing_state_is_a_difference(#[case] difference: Value, #[case] expected: Value) {
        assert_eq!(super::remaining(&difference, &now()), expected);
    }
}
