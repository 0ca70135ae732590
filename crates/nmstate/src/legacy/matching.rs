//! Matches interfaces: a nameless interface of a policy stands for every matching one (nmstate §3.2-7).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::auto_bond;
use super::interfaces::{Interface, announced, has_lldp, interfaces, neighbours, text};
use super::policy::{OriginalPolicy, Rule};

/// How long to wait for LLDP announcements after LLDP was enabled. Neighbours send them every 30 s.
pub(crate) const LLDP_TIMEOUT: Duration = Duration::from_secs(60);

/// The type of physical interfaces.
const ETHERNET: &str = "ethernet";

/// Interfaces of a report that a rule of the policy matches.
fn matched<'a>(policy: &'a OriginalPolicy, report: &'a Value) -> impl Iterator<Item = &'a Interface> {
    interfaces(report).filter(move |interface| policy.rules.iter().any(|rule| rule.holds(policy, interface)))
}

/// Whether a rule of the policy matches any interface of the report.
pub(crate) fn is_matched(policy: &OriginalPolicy, report: &Value) -> bool {
    matched(policy, report).next().is_some()
}

/// Whether an interface matches `type: ethernet`. A veth does too, because the engine configures it alike, except with
/// the kernel backend: there the veths of pods look the same.
pub(super) fn is_ethernet(policy: &OriginalPolicy, interface: &Interface) -> bool {
    match text(interface, "type") {
        ETHERNET => true,
        "veth" => !policy.excludes_veths,
        _ => false,
    }
}

/// The desired state of a policy for a node with this report. Null if nothing matches, or nothing is left to do.
pub(crate) fn document(policy: &OriginalPolicy, report: &Value) -> Result<Value, auto_bond::Error> {
    let matched: Vec<&Interface> = matched(policy, report).collect();
    if matched.is_empty() {
        return Ok(Value::Null);
    }
    if policy.auto_bonding {
        let vlans = policy.rules.iter().filter_map(|rule| rule.vlans.as_ref());
        let vlans: BTreeSet<u16> = vlans.flatten().copied().collect();
        let cards = matched
            .into_iter()
            .filter(|interface| is_ethernet(policy, interface));
        return auto_bond::document(&cards.collect::<Vec<_>>(), &vlans, report);
    }
    Ok(instantiated(&policy.desired, &matched))
}

/// The document that has to be applied before the policy can match: LLDP on all interfaces that a rule with VLANs may
/// match and that do not have it yet. Null if there are none.
pub(crate) fn lldp_document(policy: &OriginalPolicy, report: &Value) -> Value {
    let without_lldp = lldp_interfaces(policy, report).filter(|interface| !has_lldp(interface));
    let interfaces: Vec<Value> = without_lldp
        .map(|interface| {
            json!({
                "name": interface["name"],
                "type": interface.get("type").cloned().unwrap_or(json!(ETHERNET)),
                "state": "up",
                "lldp": { "enabled": true },
            })
        })
        .collect();
    if interfaces.is_empty() {
        Value::Null
    } else {
        json!({ "interfaces": interfaces })
    }
}

/// Whether every interface that a rule with VLANs may match has a neighbour, so that there is nothing to wait for.
pub(crate) fn has_neighbours(policy: &OriginalPolicy, report: &Value) -> bool {
    lldp_interfaces(policy, report).all(|interface| neighbours(interface).next().is_some())
}

/// Interfaces that are up and match a rule with VLANs, apart from the VLANs.
fn lldp_interfaces<'a>(policy: &'a OriginalPolicy, report: &'a Value) -> impl Iterator<Item = &'a Interface> {
    interfaces(report).filter(move |interface| {
        let mut rules = policy.rules.iter().filter(|rule| rule.vlans.is_some());
        text(interface, "state") == "up"
            && !text(interface, "name").is_empty()
            && rules.any(|rule| rule.holds_apart_from_vlans(policy, interface))
    })
}

impl Rule {
    fn holds(&self, policy: &OriginalPolicy, interface: &Interface) -> bool {
        let mut requested = self.vlans.iter();
        self.holds_apart_from_vlans(policy, interface)
            && requested.all(|requested| !requested.is_disjoint(&announced(interface)))
    }

    fn holds_apart_from_vlans(&self, policy: &OriginalPolicy, interface: &Interface) -> bool {
        let name = self.name.as_deref();
        let is_named = name.is_none_or(|name| text(interface, "name") == name);
        let is_of_type = match self.kind.as_deref() {
            None => true,
            Some(ETHERNET) => is_ethernet(policy, interface),
            Some(kind) => text(interface, "type") == kind,
        };
        is_named && is_of_type && text(interface, "state") != "ignore"
    }
}

/// Writes a nameless interface once for every matched one. Entries of the same interface are merged; the last value
/// counts.
fn instantiated(desired: &Value, matched: &[&Interface]) -> Value {
    let mut document = desired.clone();
    let Some(Value::Array(templates)) = document.get_mut("interfaces") else {
        return document;
    };
    let mut written: Vec<Value> = Vec::new();
    let mut write = |interface: Value| match written.iter_mut().find(|other| is_same(other, &interface)) {
        Some(other) => merge(other, interface),
        None => written.push(interface),
    };
    for template in templates.drain(..) {
        match &template {
            Value::Object(members) if text(members, "name").is_empty() => {
                for interface in matched {
                    write(instance(members, interface));
                }
            }
            _ => write(template),
        }
    }
    *templates = written;
    document
}

fn instance(template: &Interface, interface: &Interface) -> Value {
    let mut instance = Map::new();
    for (key, default) in [
        ("name", interface.get("name")),
        ("type", interface.get("type")),
        ("state", Some(&json!("up"))),
    ] {
        let given = template.get(key).filter(|_| key != "name");
        if let Some(value) = given.or(default) {
            instance.insert(key.to_owned(), value.clone());
        }
    }
    for (key, value) in template {
        if key != "name" {
            instance.insert(key.clone(), value.clone());
        }
    }
    instance.into()
}

fn is_same(one: &Value, other: &Value) -> bool {
    let agree = |key: &str| match (one.get(key), other.get(key)) {
        (Some(one), Some(other)) => one == other,
        // Without a type, the interface keeps its type.
        _ => key == "type",
    };
    agree("name") && agree("type")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests;
