//! Whether a change may alter the ways that a host reports: its default gateway and its name servers.
//!
//! ```text
//!   interfaces with addresses, next hops of routes ──> what these are made of ──> in use
//!   document: names one of those, gives an address, says more than is known here ──> it may
//! ```
//!
//! Gateways and name servers come from interfaces with addresses, and from sections of their own. A change of interfaces
//! that have no address before and after surely leaves them alone, such as that of a bridge for virtual machines.

use std::collections::BTreeSet;

use serde_json::Value;

/// The section that may be there.
const INTERFACES: &str = "interfaces";
/// Types of interfaces without hardware: functions of a card may go with a change of its settings.
const SOFTWARE: [&str; 4] = ["bond", "dummy", "linux-bridge", "vlan"];
/// All that such an interface may say.
const SAID: [&str; 10] = [
    "name",
    "type",
    "state",
    "description",
    "mtu",
    "ipv4",
    "ipv6",
    "bridge",
    "link-aggregation",
    "vlan",
];
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// Whether a document may alter the ways of a host that reports this. Where it is not certain, it may.
pub(super) fn may_change(desired: &Value, report: &Value) -> bool {
    let sections = desired.as_object().into_iter().flatten();
    let mut other = sections.filter(|(section, _)| *section != INTERFACES);
    let (Some(interfaces), None) = (desired[INTERFACES].as_array(), other.next()) else {
        return true;
    };
    let in_use = in_use(report);
    !interfaces.iter().all(|interface| is_aside(interface, &in_use))
}

/// Whether an entry is about an interface that no way leads through.
fn is_aside(interface: &Value, in_use: &BTreeSet<String>) -> bool {
    let mut said = interface.as_object().into_iter().flatten();
    let mut names = BTreeSet::new();
    texts(interface, &mut names);
    SOFTWARE.iter().any(|kind| interface["type"] == *kind)
        && said.all(|(key, _)| SAID.contains(&key.as_str()))
        && FAMILIES
            .iter()
            .all(|family| interface.get(*family).is_none_or(|ip| ip["enabled"] == false))
        // `sriov:eth1:2` is the name of an interface, too.
        && !names.iter().any(|name| in_use.contains(name) || name.contains(':'))
}

/// Names of the interfaces that ways may lead through: those with addresses, next hops of routes, and what these are
/// made of.
fn in_use(report: &Value) -> BTreeSet<String> {
    let interfaces: Vec<&Value> = list(report, "/interfaces").collect();
    let known: BTreeSet<&str> = interfaces.iter().filter_map(|one| one["name"].as_str()).collect();
    let with_addresses = interfaces.iter().filter(|interface| {
        FAMILIES
            .iter()
            .any(|family| interface[*family]["enabled"] == true)
    });
    let with_addresses = with_addresses.filter_map(|interface| interface["name"].as_str());
    let routes = list(report, "/routes/running").chain(list(report, "/routes/config"));
    let next_hops = routes.filter_map(|route| route["next-hop-interface"].as_str());
    let mut in_use: BTreeSet<String> = with_addresses.chain(next_hops).map(str::to_owned).collect();
    loop {
        let mut parts = BTreeSet::new();
        for interface in interfaces.iter().filter(|one| is_among(one, &in_use)) {
            texts(interface, &mut parts);
        }
        // An interface says the names of its ports, its controller, its peer, and the one that it stands on.
        parts.retain(|part| known.contains(part.as_str()) && !in_use.contains(part));
        if parts.is_empty() {
            break;
        }
        in_use.extend(parts);
    }
    let mut others = BTreeSet::new();
    for interface in interfaces.iter().filter(|one| is_among(one, &in_use)) {
        texts(&interface["alt-names"], &mut others);
        texts(&interface["profile-name"], &mut others);
    }
    in_use.extend(others);
    in_use
}

/// Whether an interface has one of these names.
fn is_among(interface: &Value, names: &BTreeSet<String>) -> bool {
    interface["name"]
        .as_str()
        .is_some_and(|name| names.contains(name))
}

/// All texts in a value, and numbers, which names may look like.
fn texts(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            found.insert(text.clone());
        }
        Value::Number(number) => {
            found.insert(number.to_string());
        }
        Value::Array(items) => {
            for item in items {
                texts(item, found);
            }
        }
        Value::Object(members) => {
            for member in members.values() {
                texts(member, found);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn list<'a>(document: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    document
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests;
