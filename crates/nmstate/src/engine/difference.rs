//! What a document asks for and the host does not have. The library compares documents as they are written: a route
//! without a table, or a port without its defaults, differs for it from the very same one on the host. Here what the
//! host has is taken out.

use serde_json::{Map, Value};

use crate::routes::MAIN_TABLE;

/// Members by which an interface is known: kept with whatever else differs.
const IDENTITY: [&str; 3] = ["name", "type", "state"];
/// Types of interfaces that the library tells apart by name and type, all others by name alone: a bridge of Open vSwitch
/// may have the name of one of its interfaces.
const USER_SPACE: [&str; 2] = ["ovs-bridge", "ipsec"];

/// What of a difference the host, which is `now`, really lacks. Empty sections are left out.
pub(super) fn left(difference: &Value, now: &Value) -> Value {
    let mut lacking = Map::new();
    for (section, wish) in difference.as_object().into_iter().flatten() {
        let there = &now[section];
        let lack = match section.as_str() {
            "interfaces" => interfaces(wish, there),
            "routes" | "route-rules" => entries(wish, there),
            // Nothing at all is a wish as well.
            "dns-resolver" if is_nothing(&wish["config"]) => {
                (!is_nothing(&there["config"])).then(|| wish.clone())
            }
            _ if has(there, wish) => None,
            _ => Some(wish.clone()),
        };
        if let Some(lack) = lack {
            lacking.insert(section.clone(), lack);
        }
    }
    Value::Object(lacking)
}

fn interfaces(wishes: &Value, there: &Value) -> Option<Value> {
    let lacking: Vec<Value> = list(wishes).filter_map(|wish| interface(wish, there)).collect();
    (!lacking.is_empty()).then_some(Value::Array(lacking))
}

fn interface(wish: &Value, there: &Value) -> Option<Value> {
    let now = list(there).find(|now| is_same(wish, now));
    if wish["state"] == "absent" {
        return now.map(|_| wish.clone());
    }
    let Some(now) = now else {
        return Some(wish.clone());
    };
    let members = wish.as_object()?;
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

/// Whether both are the same interface, as the library tells them apart.
fn is_same(wish: &Value, now: &Value) -> bool {
    let (wished, there) = (&wish["type"], &now["type"]);
    let is_in_user_space = |kind: &Value| USER_SPACE.iter().any(|known| *kind == *known);
    let may_be = wished.is_null()
        || *wished == "unknown"
        || wished == there
        || !(is_in_user_space(wished) || is_in_user_space(there));
    wish["name"] == now["name"] && may_be
}

/// One end of a pair may be called either.
fn is_type(wish: &Value, now: &Value) -> bool {
    let pair = |kind: &Value| *kind == "ethernet" || *kind == "veth";
    wish == now || (pair(wish) && pair(now))
}

/// Routes or rules: those that are not there, and those that are to go and are there.
fn entries(wishes: &Value, there: &Value) -> Option<Value> {
    let lacking: Vec<Value> = list(&wishes["config"])
        .filter(|wish| {
            let found = list(&there["config"]).any(|now| is_entry(wish, now));
            let is_absent = wish["state"] == "absent";
            found == is_absent
        })
        .cloned()
        .collect();
    (!lacking.is_empty())
        .then(|| Value::Object(Map::from_iter([("config".to_owned(), Value::Array(lacking))])))
}

/// Whether an entry is what is meant, by everything that is said of it.
fn is_entry(wish: &Value, now: &Value) -> bool {
    let members = wish.as_object().into_iter().flatten();
    members.filter(|(key, _)| *key != "state").all(|(key, value)| {
        if key == "table-id" && value.as_u64() == Some(0) {
            return now[key].as_u64().is_none_or(|table| table == MAIN_TABLE);
        }
        has(&now[key], value)
    })
}

/// Whether what is there is what is wished for. Lists are replaced as a whole, in any order; what is not there is
/// `false`, and empty.
fn has(now: &Value, wish: &Value) -> bool {
    match wish {
        Value::Null => true,
        Value::Object(members) => members.iter().all(|(key, value)| has(&now[key], value)),
        Value::Array(items) => {
            list(now).count() == items.len() && items.iter().all(|item| list(now).any(|now| has(now, item)))
        }
        Value::Bool(false) => now.is_null() || *now == Value::Bool(false),
        Value::String(wish) => now.as_str().is_some_and(|now| now.eq_ignore_ascii_case(wish)),
        Value::Bool(_) | Value::Number(_) => now == wish,
    }
}

/// Whether there is nothing in it but empty lists.
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
    fn what_the_host_has_is_no_difference(#[case] difference: Value) {
        assert_eq!(super::left(&difference, &now()), json!({}));
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
    fn what_the_host_lacks_is(#[case] difference: Value, #[case] expected: Value) {
        assert_eq!(super::left(&difference, &now()), expected);
    }
}
