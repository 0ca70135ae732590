//! Finds the interfaces that carry the default route of a node, in a report of nmstate.
//!
//! ```text
//! default route ──> uplink ──┬─ bond, linux-bridge, ovs-bridge ──> ports: the MTU of the uplink
//!                            └─ vlan, mac-vlan ──> base interface: at least that MTU
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::messages::mtu_migration as messages;

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
    /// True for the base interface of a VLAN: other interfaces may need its larger MTU.
    pub is_base: bool,
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

/// The interfaces that carry the default routes in a report. Empty without a default route.
pub fn links(report: &Value) -> Links {
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
            continue;
        };
        let number = |key: &str| interface[key].as_u64().and_then(|mtu| u32::try_from(mtu).ok());
        let Some(mtu) = number("mtu") else {
            continue;
        };
        let link = Link {
            kind: interface["type"].as_str().unwrap_or_default().to_owned(),
            mtu,
            max_mtu: number("max-mtu").filter(|most| *most > 0),
            is_base,
        };
        pending.extend(below(&interfaces, &name, interface, is_base));
        // An interface that carries the route itself is more than a base.
        links
            .entry(name)
            .and_modify(|link| link.is_base &= is_base)
            .or_insert(link);
    }
    links
}

/// Names of the interfaces of the default routes.
fn default_interfaces(report: &Value) -> BTreeSet<String> {
    let routes = report.pointer("/routes/running").and_then(Value::as_array);
    let routes = routes.into_iter().flatten().filter(|route| {
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
fn below(interfaces: &[&Value], name: &str, interface: &Value, is_base: bool) -> Vec<(String, bool)> {
    let named = |list: &Value| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        let name_of = |item: &Value| item.as_str().or(item["name"].as_str()).map(str::to_owned);
        items.filter_map(name_of).collect()
    };
    let uplinks = |ports: Vec<String>| -> Vec<(String, bool)> {
        let is_uplink = |port: &String| {
            let found = find(interfaces, port).and_then(|port| port["type"].as_str());
            found.is_some_and(|kind| UPLINK_PORTS.contains(&kind))
        };
        let ports = ports.into_iter().filter(is_uplink);
        ports.map(|port| (port, is_base)).collect()
    };
    let base = |section: &str| -> Vec<(String, bool)> {
        let base = interface[section]["base-iface"].as_str();
        base.map(|base| (base.to_owned(), true)).into_iter().collect()
    };
    match interface["type"].as_str().unwrap_or_default() {
        kind::BOND => {
            let ports = named(&interface["link-aggregation"]["port"]);
            ports.into_iter().map(|port| (port, is_base)).collect()
        }
        kind::LINUX_BRIDGE => uplinks(named(&interface["bridge"]["port"])),
        kind::VLAN => base("vlan"),
        kind::MAC_VLAN => base("mac-vlan"),
        kind::OVS_INTERFACE => {
            let bridges = interfaces.iter().filter(|it| it["type"] == kind::OVS_BRIDGE);
            let ports = bridges.map(|bridge| named(&bridge["bridge"]["port"]));
            ports
                .filter(|ports| ports.iter().any(|port| port == name))
                .flat_map(uplinks)
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The settings that give the uplink this MTU.
///
/// # Errors
/// If the driver of an interface does not support the MTU.
pub fn settings(links: &Links, mtu: u32) -> Result<Settings, String> {
    let mut settings = Settings::new();
    for (name, link) in links {
        if link.is_base && link.mtu >= mtu {
            continue;
        }
        if let Some(most) = link.max_mtu.filter(|most| *most < mtu) {
            return Err(messages::max_mtu(name, most, mtu));
        }
        settings.insert(name.clone(), setting(link, mtu));
    }
    Ok(settings)
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
