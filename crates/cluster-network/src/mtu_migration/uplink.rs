//! Finds the interfaces that carry the default route of a node, in a report of nmstate.
//!
//! ```text
//! default route ──> uplink ──┬─ bond, linux-bridge, ovs-bridge ──> ports: the MTU of the uplink
//!                            └─ vlan, mac-vlan ──> base interface: at least that MTU
//! ```
//!
//! A report that lacks one of these interfaces is an error: a part of the uplink must not change alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    messages::mtu_migration as messages,
    names::nmstate,
    objects::{list, text},
};

/// Destinations of default routes.
const DEFAULT_ROUTES: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// The main routing table.
const MAIN_TABLE: u64 = 254;

/// Types of interfaces, in the words of nmstate.
mod kind {
    pub(super) const BOND: &str = "bond";
    pub(super) const ETHERNET: &str = "ethernet";
    pub(super) const LINUX_BRIDGE: &str = "linux-bridge";
    pub(super) const MAC_VLAN: &str = "mac-vlan";
    pub(super) const OVS_BRIDGE: &str = "ovs-bridge";
    pub(super) const OVS_INTERFACE: &str = "ovs-interface";
    pub(super) const VETH: &str = "veth";
    pub(super) const VLAN: &str = "vlan";
}

/// Types of interfaces whose MTU the operator may change. The admission policy has the same list.
pub const TYPES: [&str; 6] = [
    kind::BOND,
    kind::ETHERNET,
    kind::LINUX_BRIDGE,
    kind::MAC_VLAN,
    kind::OVS_INTERFACE,
    kind::VLAN,
];

/// Sections that name the base of an interface whose MTU the kernel keeps at most as large as that of the base.
const BASES: [&str; 5] = ["vlan", "mac-vlan", "mac-vtap", "ipvlan", "macsec"];

/// State of an interface that NetworkManager manages, and the state that a kernel backend reports.
const UP: &str = "up";

/// Ports of a bridge that lead to the network outside of the node. Other ports are those of pods and virtual machines.
const UPLINK_PORTS: [&str; 3] = [kind::ETHERNET, kind::BOND, kind::VLAN];

/// An interface that carries the default route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// Type of the interface, in the words of nmstate.
    pub kind: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Largest MTU that the driver supports, if reported.
    pub max_mtu: Option<u32>,
    /// True if the interface is only the base of a VLAN or mac-vlan. Its MTU is raised and never lowered, because other
    /// VLANs may need it.
    pub is_base: bool,
    /// State, in the words of nmstate.
    pub state: String,
    /// Interfaces that have this one as their base, with their MTU in bytes.
    pub above: BTreeMap<String, u32>,
}

/// Interfaces that carry the default route, by name.
pub type Links = BTreeMap<String, Link>;

/// An interface with its type and MTU, as in a policy.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Setting {
    /// Type of the interface, in the words of nmstate.
    #[serde(rename = "type")]
    pub kind: String,
    /// MTU in bytes.
    pub mtu: u32,
}

/// Settings of a policy, by the name of the interface.
pub type Settings = BTreeMap<String, Setting>;

/// The uplink in a `NodeNetworkState`, or the reason for which the report does not show it. `None` before the first
/// report.
pub fn read(object: &Value) -> Option<Result<Links, String>> {
    let report = object.pointer("/status/currentState")?;
    let pruned =
        list(object, "/status/conditions").find(|it| it["type"] == nmstate::PRUNED && it["status"] == "True");
    Some(match pruned {
        Some(condition) => Err(messages::pruned(text(condition, "/message"))),
        None => links(report),
    })
}

/// The interfaces that carry the default routes in a report. Empty without a default route.
///
/// # Errors
/// If the report lacks an interface of the uplink, or its MTU, base or ports.
pub fn links(report: &Value) -> Result<Links, String> {
    let interfaces = report["interfaces"].as_array();
    let interfaces: Vec<&Value> = interfaces.into_iter().flatten().collect();
    let mut links = Links::new();
    let mut seen = BTreeSet::new();
    let mut pending: Vec<(String, bool)> = default_interfaces(report)
        .into_iter()
        .map(|name| (name, false))
        .collect();
    while let Some((name, is_base)) = pending.pop() {
        if !seen.insert((name.clone(), is_base)) {
            continue;
        }
        let Some(interface) = find(&interfaces, &name) else {
            return Err(messages::not_reported(&name));
        };
        let Some(mtu) = number(interface, "mtu") else {
            return Err(messages::no_mtu(&name));
        };
        let word = |key: &str| interface[key].as_str().unwrap_or_default().to_owned();
        let link = Link {
            kind: word("type"),
            mtu,
            max_mtu: number(interface, "max-mtu").filter(|most| *most > 0),
            is_base,
            state: word("state"),
            above: above(&interfaces, &name),
        };
        pending.extend(below(&interfaces, &name, interface, is_base)?);
        // An interface that carries the route itself is more than a base.
        links
            .entry(name)
            .and_modify(|link| link.is_base &= is_base)
            .or_insert(link);
    }
    Ok(links)
}

fn number(interface: &Value, key: &str) -> Option<u32> {
    interface[key]
        .as_u64()
        .and_then(|number| u32::try_from(number).ok())
}

/// The interfaces that have this one as their base, with their MTU.
fn above(interfaces: &[&Value], base: &str) -> BTreeMap<String, u32> {
    let is_above = |it: &&&Value| BASES.iter().any(|section| it[*section]["base-iface"] == base);
    let above = interfaces.iter().filter(is_above);
    above
        .filter_map(|it| Some((it["name"].as_str()?.to_owned(), number(it, "mtu")?)))
        .collect()
}

/// Names of the interfaces of the default routes.
fn default_interfaces(report: &Value) -> BTreeSet<String> {
    let routes = list(report, "/routes/running").filter(|route| {
        let is_default = route["destination"]
            .as_str()
            .is_some_and(|destination| DEFAULT_ROUTES.contains(&destination));
        is_default && route["table-id"].as_u64().is_none_or(|table| table == MAIN_TABLE)
    });
    routes
        .filter_map(|route| Some(route["next-hop-interface"].as_str()?.to_owned()))
        .collect()
}

/// The interface with this name. A bridge of Open vSwitch has no MTU, and may share its name with an interface.
fn find<'a>(interfaces: &[&'a Value], name: &str) -> Option<&'a Value> {
    let is_it = |it: &&&Value| it["name"] == name && it["type"] != kind::OVS_BRIDGE;
    interfaces.iter().find(is_it).copied()
}

/// The interfaces below an interface, and whether each of them is only a base.
fn below(
    interfaces: &[&Value],
    name: &str,
    interface: &Value,
    is_base: bool,
) -> Result<Vec<(String, bool)>, String> {
    let uplinks = |ports: Vec<String>| -> Vec<String> {
        let is_uplink = |port: &String| {
            let found = find(interfaces, port).and_then(|port| port["type"].as_str());
            found.is_some_and(|kind| UPLINK_PORTS.contains(&kind))
        };
        ports.into_iter().filter(is_uplink).collect()
    };
    let base = |section: &str| match interface[section]["base-iface"].as_str() {
        Some(base) => Ok(vec![(base.to_owned(), true)]),
        None => Err(messages::no_base(name)),
    };
    let ports = match interface["type"].as_str().unwrap_or_default() {
        kind::BOND => named(&interface["link-aggregation"]["port"]),
        kind::LINUX_BRIDGE => uplinks(named(&interface["bridge"]["port"])),
        kind::OVS_INTERFACE => {
            let bridges = interfaces.iter().filter(|it| it["type"] == kind::OVS_BRIDGE);
            let ports = bridges.map(|bridge| &bridge["bridge"]["port"]);
            let ports = ports.filter(|ports| named(ports).iter().any(|port| port == name));
            ports
                .flat_map(|ports| {
                    // A bond of Open vSwitch is a port, and no interface.
                    let bonds = ports.as_array().into_iter().flatten();
                    let of_bonds = bonds.flat_map(|port| named(&port["link-aggregation"]["port"]));
                    let of_bonds: Vec<String> = of_bonds.collect();
                    uplinks(named(ports)).into_iter().chain(of_bonds)
                })
                .collect()
        }
        kind::VLAN => return base("vlan"),
        kind::MAC_VLAN => return base("mac-vlan"),
        _ => return Ok(Vec::new()),
    };
    if ports.is_empty() {
        return Err(messages::no_port(name));
    }
    Ok(ports.into_iter().map(|port| (port, is_base)).collect())
}

/// The names in a list of ports.
fn named(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    let name_of = |item: &Value| item.as_str().or(item["name"].as_str()).map(str::to_owned);
    items.filter_map(name_of).collect()
}

/// The settings that give the uplink this MTU.
///
/// # Errors
/// If `NetworkManager` does not manage an interface, if its type or driver does not support the MTU, or if the kernel
/// would lower the MTU of another interface with it.
pub fn settings(links: &Links, mtu: u32) -> Result<Settings, String> {
    let mut settings = Settings::new();
    for (name, link) in links {
        if link.is_base && link.mtu >= mtu {
            continue;
        }
        if link.state != UP {
            return Err(messages::not_managed(name, &link.state));
        }
        let setting = setting(link, mtu);
        if !TYPES.contains(&setting.kind.as_str()) {
            return Err(messages::unsupported_type(name, &setting.kind));
        }
        if let Some(most) = link.max_mtu.filter(|most| *most < mtu) {
            return Err(messages::max_mtu(name, most, mtu));
        }
        settings.insert(name.clone(), setting);
    }
    let changed = links.iter().filter(|(name, _)| settings.contains_key(*name));
    for (base, link) in changed {
        let mut above = link
            .above
            .iter()
            .filter(|(name, _)| !settings.contains_key(*name));
        if let Some((name, larger)) = above.find(|(_, larger)| **larger > mtu) {
            return Err(messages::larger_above(name, base, *larger, mtu));
        }
    }
    Ok(settings)
}

/// The first interface whose reported MTU is not the one in the settings, with its MTU.
pub fn differing<'a>(links: &'a Links, settings: &Settings) -> Option<(&'a str, u32)> {
    let differs = |(name, link): &(&'a String, &'a Link)| {
        settings.get(*name).is_some_and(|setting| setting.mtu != link.mtu)
    };
    links
        .iter()
        .find(differs)
        .map(|(name, link)| (name.as_str(), link.mtu))
}

/// The settings of these interfaces before the change.
pub fn former(links: &Links, settings: &Settings) -> Settings {
    let changed = links.iter().filter(|(name, _)| settings.contains_key(*name));
    changed
        .map(|(name, link)| (name.clone(), setting(link, link.mtu)))
        .collect()
}

fn setting(link: &Link, mtu: u32) -> Setting {
    // nmstate configures a veth whose peer it does not have as an Ethernet interface.
    let kind = if link.kind == kind::VETH {
        kind::ETHERNET
    } else {
        &link.kind
    };
    Setting {
        kind: kind.to_owned(),
        mtu,
    }
}

/// The document of a policy with these settings.
pub fn document(settings: &Settings) -> Value {
    let interfaces = settings.iter().map(
        |(name, setting)| json!({ "name": name, "type": setting.kind, "state": "up", "mtu": setting.mtu }),
    );
    json!({ "interfaces": interfaces.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests;
