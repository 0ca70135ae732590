//! Automatic bonds of interfaces on the same VLANs (nmstate §3.2-7).

use std::collections::{BTreeMap, BTreeSet};

use kube_kit::document::list;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::interfaces::{announced, interfaces, text};
use crate::routes::{MAIN_TABLE, is_default};

/// Interfaces cannot be bonded.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Error {
    /// Bonds are named after VLANs, and all names are taken.
    #[error("no name is left for a bond of {ports}: the names of all its VLANs are taken by other bonds", ports = .0.join(", "))]
    NoName(Vec<String>),
}

/// The type of bonds.
const BOND: &str = "bond";
/// Table number of the main table in documents without a table.
const NO_TABLE: u64 = 0;

/// The missing bonds of matched interfaces; null if none is missing. An interface with another controller keeps it.
pub(super) fn document(
    matched: &[&Map<String, Value>],
    requested: &BTreeSet<u16>,
    report: &Value,
) -> Result<Value, Error> {
    let uplinks = uplinks(report);
    let mut bonds = Vec::new();
    let mut routes = Vec::new();
    let mut names = BTreeSet::new();
    for (vlans, members) in groups(matched, requested) {
        let ports = |name: &str| -> Vec<&Map<String, Value>> {
            let free = members
                .iter()
                .filter(|member| ["", name].contains(&text(member, "controller")));
            one_uplink(free.copied(), &uplinks)
        };
        let mut candidates = vlans.iter().map(|vlan| format!("bond{vlan}"));
        let name = candidates.find(|name| !names.contains(name) && !is_taken(report, name, &members));
        let ports = ports(name.as_deref().unwrap_or_default());
        if ports.len() < 2 {
            continue;
        }
        let Some(name) = name else {
            return Err(Error::NoName(
                members
                    .iter()
                    .map(|member| text(member, "name").to_owned())
                    .collect(),
            ));
        };
        names.insert(name.clone());
        let port_names: Vec<&str> = ports.iter().map(|port| text(port, "name")).collect();
        if exists(report, &port_names) {
            continue;
        }
        let uplink = ports
            .iter()
            .find(|port| uplinks.contains(text(port, "name")) && text(port, "controller").is_empty());
        bonds.push(bond(&name, &port_names, uplink.copied()));
        if let Some(uplink) = uplink {
            routes.extend(moved_routes(report, text(uplink, "name"), &name));
        }
    }
    if bonds.is_empty() {
        return Ok(Value::Null);
    }
    let mut document = json!({ "interfaces": bonds });
    if !routes.is_empty() {
        document["routes"] = json!({ "config": routes });
    }
    Ok(document)
}

/// Ethernet interfaces by the requested VLANs that they receive, sorted by name; each group has at least two.
fn groups<'a>(
    matched: &[&'a Map<String, Value>],
    requested: &BTreeSet<u16>,
) -> BTreeMap<BTreeSet<u16>, Vec<&'a Map<String, Value>>> {
    let mut groups: BTreeMap<BTreeSet<u16>, Vec<&Map<String, Value>>> = BTreeMap::new();
    for interface in matched {
        let seen: BTreeSet<u16> = announced(interface).intersection(requested).copied().collect();
        if !seen.is_empty() {
            groups.entry(seen).or_default().push(interface);
        }
    }
    groups.retain(|_, members| members.len() > 1);
    for members in groups.values_mut() {
        members.sort_by_key(|member| text(member, "name"));
    }
    groups
}

/// Removes all uplinks except the first one: a bond can take over the addresses of one port only.
fn one_uplink<'a>(
    members: impl Iterator<Item = &'a Map<String, Value>>,
    uplinks: &BTreeSet<&str>,
) -> Vec<&'a Map<String, Value>> {
    let mut has_one = false;
    members
        .filter(|member| {
            let is_uplink = uplinks.contains(text(member, "name"));
            let stays_outside = is_uplink && has_one;
            has_one |= is_uplink;
            !stays_outside
        })
        .collect()
}

/// Interfaces of default routes of the main table.
fn uplinks(report: &Value) -> BTreeSet<&str> {
    let routes = list(report, "/routes/running").chain(list(report, "/routes/config"));
    routes
        .filter(|route| {
            let table = route.get("table-id").and_then(Value::as_u64);
            is_default(route) && table.is_none_or(|table| [MAIN_TABLE, NO_TABLE].contains(&table))
        })
        .filter_map(|route| route.get("next-hop-interface")?.as_str())
        .collect()
}

/// Whether a bond of exactly these ports exists, whatever its name.
fn exists(report: &Value, ports: &[&str]) -> bool {
    interfaces(report)
        .filter(|interface| text(interface, "type") == BOND)
        .any(|bond| {
            let mut there: Vec<&str> = ports_of(bond).collect();
            there.sort_unstable();
            there == ports
        })
}

/// Whether another interface has the name: no bond, or a bond with other ports.
fn is_taken(report: &Value, name: &str, members: &[&Map<String, Value>]) -> bool {
    let is_member = |port: &str| members.iter().any(|member| text(member, "name") == port);
    interfaces(report)
        .filter(|interface| text(interface, "name") == name)
        .any(|interface| text(interface, "type") != BOND || !ports_of(interface).all(is_member))
}

fn ports_of(bond: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let section = bond.get("link-aggregation");
    let ports = section.and_then(|section| section.get("port").or_else(|| section.get("ports")));
    let ports = ports.and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(Value::as_str)
}

fn bond(name: &str, ports: &[&str], uplink: Option<&Map<String, Value>>) -> Value {
    let mut bond = json!({ "name": name, "type": BOND, "state": "up" });
    if let Some(uplink) = uplink {
        bond["copy-mac-from"] = json!(text(uplink, "name"));
        for family in ["ipv4", "ipv6"] {
            if let Some(section) = uplink.get(family) {
                bond[family] = moved_addresses(section);
            }
        }
    }
    bond["link-aggregation"] = json!({
        "mode": "active-backup",
        "options": { "miimon": 100 },
        "port": ports,
    });
    bond
}

/// A section `ipv4` or `ipv6` without leased and link-local addresses.
fn moved_addresses(section: &Value) -> Value {
    let mut section = section.clone();
    let Value::Object(members) = &mut section else {
        return section;
    };
    let is_on = |key: &str| members.get(key).and_then(Value::as_bool).unwrap_or_default();
    let leased = is_on("dhcp") || is_on("autoconf");
    if let Some(Value::Array(addresses)) = members.get_mut("address") {
        addresses.retain(|address| {
            let ip = address.get("ip").and_then(Value::as_str).unwrap_or_default();
            // A leased address has a lifetime, a configured one has none.
            let lasts = address.get("valid-life-time").is_none();
            lasts && !leased && !ip.to_ascii_lowercase().starts_with("fe80:")
        });
        if addresses.is_empty() {
            members.shift_remove("address");
        }
    }
    section
}

/// Moves configured routes from a port to its bond.
fn moved_routes<'a>(report: &'a Value, port: &'a str, bond: &'a str) -> impl Iterator<Item = Value> + 'a {
    let of_port = list(report, "/routes/config")
        .filter(move |route| route.get("next-hop-interface").and_then(Value::as_str) == Some(port))
        .filter(|route| route.get("state").is_none());
    of_port.flat_map(move |route| {
        let (mut gone, mut moved) = (route.clone(), route.clone());
        gone["state"] = json!("absent");
        moved["next-hop-interface"] = json!(bond);
        [gone, moved]
    })
}

#[cfg(test)]
mod tests;
