//! Reports in the order of upstream's tool (nmstate §4.3): its order of sections and keys, with the sections that
//! readers rely on.

use serde_json::{Map, Value, json};

/// Sections in their order.
const SECTIONS: [&str; 7] = [
    "hostname",
    "dns-resolver",
    "route-rules",
    "routes",
    "interfaces",
    "ovs-db",
    "ovn",
];
/// First members of an interface.
const FIRST: [&str; 2] = ["name", "type"];

/// Orders a report.
pub(super) fn put(state: Value) -> Value {
    let Value::Object(mut state) = state else {
        return state;
    };
    let rules = state.entry("route-rules").or_insert_with(|| json!({}));
    ensure_lists(rules, &["config"]);
    let routes = state.entry("routes").or_insert_with(|| json!({}));
    ensure_lists(routes, &["running", "config"]);
    state.entry("ovn").or_insert_with(|| json!({}));
    if let Some(Value::Array(interfaces)) = state.get_mut("interfaces") {
        interfaces.sort_by(|one, other| name(one).cmp(name(other)));
        for interface in interfaces {
            if let Some(interface) = interface.as_object_mut() {
                *interface = first(&FIRST, std::mem::take(interface));
            }
        }
    }
    Value::Object(first(&SECTIONS, state))
}

fn name(interface: &Value) -> &str {
    interface["name"].as_str().unwrap_or_default()
}

fn ensure_lists(section: &mut Value, lists: &[&str]) {
    let Some(section) = section.as_object_mut() else {
        return;
    };
    for list in lists {
        section.entry(*list).or_insert_with(|| json!([]));
    }
}

/// Moves some keys to the front of an object.
fn first(keys: &[&str], mut object: Map<String, Value>) -> Map<String, Value> {
    let mut ordered = Map::with_capacity(object.len());
    for key in keys {
        if let Some((key, value)) = object.shift_remove_entry(*key) {
            ordered.insert(key, value);
        }
    }
    ordered.extend(object);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_interfaces_and_keys_are_ordered() {
        let state = json!({
            "later": 1,
            "interfaces": [
                { "mtu": 1500, "type": "ethernet", "state": "up", "name": "eth1" },
                { "type": "loopback", "name": "lo" },
                { "type": "ethernet", "name": "eth0" },
            ],
            "hostname": { "running": "node01" },
        });
        assert_eq!(
            put(state).to_string(),
            "{\"hostname\":{\"running\":\"node01\"},\"route-rules\":{\"config\":[]},\
             \"routes\":{\"running\":[],\"config\":[]},\"interfaces\":[\
             {\"name\":\"eth0\",\"type\":\"ethernet\"},\
             {\"name\":\"eth1\",\"type\":\"ethernet\",\"mtu\":1500,\"state\":\"up\"},\
             {\"name\":\"lo\",\"type\":\"loopback\"}],\"ovn\":{},\"later\":1}"
        );
    }
}
