//! Decides whether a change may alter the probes' targets: the default gateway and the name servers.
//!
//! ```text
//!   interfaces with addresses, next hops of routes ──> their parts ──> in use
//!   document: names one of those, sets an address, has unknown members ──> it may
//! ```
//!
//! Gateways and name servers come from interfaces with addresses, and from sections of their own. A change of
//! interfaces without addresses before and after it, such as a bridge for virtual machines, surely keeps the targets.

use std::collections::BTreeSet;

use kube_kit::document::list;
use serde_json::Value;

/// The only section that such a document may have.
const INTERFACES: &str = "interfaces";
/// Interface types without hardware: a change of a card's settings may remove its virtual functions.
const SOFTWARE: [&str; 4] = ["bond", "dummy", "linux-bridge", "vlan"];
/// All members that such an interface may have.
const UNRELATED_KEYS: [&str; 10] = [
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

/// Whether a document may alter the targets on a host with this report. It may unless the opposite is certain.
pub(super) fn may_change(desired: &Value, report: &Value) -> bool {
    let sections = desired.as_object().into_iter().flatten();
    let mut other = sections.filter(|(section, _)| *section != INTERFACES);
    let (Some(interfaces), None) = (desired[INTERFACES].as_array(), other.next()) else {
        return true;
    };
    let in_use = in_use(report);
    !interfaces
        .iter()
        .all(|interface| is_unrelated(interface, &in_use))
}

/// Whether an entry concerns an interface that no target depends on.
fn is_unrelated(interface: &Value, in_use: &BTreeSet<String>) -> bool {
    let mut keys = interface.as_object().into_iter().flatten();
    let mut names = BTreeSet::new();
    texts(interface, &mut names);
    SOFTWARE.iter().any(|kind| interface["type"] == *kind)
        && keys.all(|(key, _)| UNRELATED_KEYS.contains(&key.as_str()))
        && FAMILIES
            .iter()
            .all(|family| interface.get(*family).is_none_or(|ip| ip["enabled"] == false))
        // `sriov:eth1:2` is the name of an interface, too.
        && !names.iter().any(|name| in_use.contains(name) || name.contains(':'))
}

/// Names of the interfaces that targets may depend on: those with addresses, next hops of routes, and their parts.
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
        // An interface contains the names of its ports, its controller, its peer, and its base interface.
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

/// All strings in a value, and numbers, which may be names.
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

#[cfg(test)]
mod tests;
