//! Finds the cause of a failed change in this host's kernel: the library compares the host with the document
//! afterwards, and its error only reports a missing interface.
//!
//! The kernel is probed: this module creates such interfaces in a network namespace of its own.

use std::thread;

use kube_kit::document::list;
use linux::link::BridgeSpec;
use linux::route::Socket;
use linux::{Feature, netns};
use serde_json::Value;

use super::{Error, INVALID, MALFORMED, NOT_IMPLEMENTED, NOT_SUPPORTED, POLICY_ERROR};

/// Interface types that need a driver: the type, the kernel's name of it, and the driver's configuration symbol.
const DRIVERS: [(&str, &str, &str); 11] = [
    ("bond", "bond", "CONFIG_BONDING"),
    ("dummy", "dummy", "CONFIG_DUMMY"),
    ("hsr", "hsr", "CONFIG_HSR"),
    ("ipvlan", "ipvlan", "CONFIG_IPVLAN"),
    ("linux-bridge", "bridge", "CONFIG_BRIDGE"),
    ("mac-vlan", "macvlan", "CONFIG_MACVLAN"),
    ("mac-vtap", "macvtap", "CONFIG_MACVTAP"),
    ("macsec", "macsec", "CONFIG_MACSEC"),
    ("vlan", "vlan", "CONFIG_VLAN_8021Q"),
    ("vrf", "vrf", "CONFIG_NET_VRF"),
    ("vxlan", "vxlan", "CONFIG_VXLAN"),
];
/// Kinds of errors whose cause is the document.
const CLEAR: [&str; 5] = [MALFORMED, INVALID, POLICY_ERROR, NOT_IMPLEMENTED, NOT_SUPPORTED];

/// A kernel feature that an interface needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Need {
    /// The driver of its type.
    Driver {
        kind: &'static str,
        symbol: &'static str,
    },
    /// VLAN filtering of bridges.
    VlanFiltering,
}

/// The missing kernel feature that caused an error, if that is the cause.
pub(super) fn of(error: &Error, desired: &Value) -> Option<String> {
    if CLEAR.contains(&error.kind.as_str()) {
        return None;
    }
    let needs = needs(desired);
    let unchecked: Vec<Need> = needs.iter().map(|(_, need)| *need).collect();
    if unchecked.is_empty() {
        return None;
    }
    let answered = thread::Builder::new()
        .name("kernel-probe".to_owned())
        .spawn(move || missing(&unchecked));
    // Without an answer of the kernel, the error stays as it is.
    let missing = answered.ok()?.join().ok()?.ok()?;
    let found = needs.iter().zip(missing);
    let mut found = found.filter_map(|((interface, _), missing)| Some((*interface, missing?)));
    found.next().map(|(interface, missing)| text(interface, missing))
}

/// Kernel features that a document needs, each once, with the first interface that needs it.
fn needs(desired: &Value) -> Vec<(&str, Need)> {
    let mut found: Vec<(&str, Need)> = Vec::new();
    let interfaces = desired["interfaces"].as_array().into_iter().flatten();
    for interface in interfaces.filter(|interface| is_up(interface)) {
        let name = interface["name"].as_str().unwrap_or_default();
        let driver = DRIVERS.iter().find(|(called, _, _)| interface["type"] == *called);
        let driver = driver.map(|&(_, kind, symbol)| Need::Driver { kind, symbol });
        let filtering = filters_vlans(interface).then_some(Need::VlanFiltering);
        for need in driver.into_iter().chain(filtering) {
            if !found.iter().any(|(_, known)| *known == need) {
                found.push((name, need));
            }
        }
    }
    found
}

/// Whether an interface shall exist; without `state` it shall.
fn is_up(interface: &Value) -> bool {
    let state = &interface["state"];
    state.is_null() || state == "up"
}

/// Whether an interface is a bridge with VLANs on its ports.
fn filters_vlans(interface: &Value) -> bool {
    let mut ports = list(interface, "/bridge/port");
    let has_vlans = |port: &Value| port["vlan"].as_object().is_some_and(|vlan| !vlan.is_empty());
    interface["type"] == "linux-bridge" && ports.any(has_vlans)
}

/// The features that the kernel lacks, for each need. Run it on a thread of its own: it moves the thread into a new
/// network namespace.
fn missing(needs: &[Need]) -> linux::Result<Vec<Option<Feature>>> {
    netns::unshare_network()?;
    let mut socket = Socket::open()?;
    let ask = |(number, need): (usize, &Need)| {
        let name = format!("probe{number}");
        let made = match *need {
            Need::Driver { kind, symbol } => socket.create_bare(&name, kind, symbol),
            Need::VlanFiltering => socket.create_bridge(&BridgeSpec {
                name: &name,
                mtu: None,
                mac: None,
                vlan_filtering: true,
            }),
        };
        made.err().and_then(|error| error.missing_feature())
    };
    Ok(needs.iter().enumerate().map(ask).collect())
}

fn text(interface: &str, missing: Feature) -> String {
    let way_out = if missing == Feature::BridgeVlanFiltering {
        "; with `vlan: {}` on each of its ports it needs no VLAN filtering"
    } else {
        ""
    };
    format!("interface {interface} cannot be made: {missing}{way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // nmstate#110
    #[test]
    fn needs_of_a_document_are_drivers_and_vlan_filtering_each_once() {
        let driver = |kind, symbol| Need::Driver { kind, symbol };
        let port = |vlan: Value| json!({ "port": [{ "name": "eth1", "vlan": vlan }] });
        let desired = json!({ "interfaces": [
            { "name": "eth0", "type": "ethernet", "state": "up" },
            { "name": "eth0.5", "type": "vlan", "state": "up" },
            { "name": "eth0.6", "type": "vlan" },
            { "name": "bond0", "type": "bond", "state": "absent" },
            { "name": "br0", "type": "linux-bridge", "state": "up", "bridge": port(json!({})) },
            { "name": "br1", "type": "linux-bridge", "state": "up", "bridge": port(json!({ "mode": "access", "tag": 5 })) },
            { "name": "br2", "type": "ovs-bridge", "state": "up", "bridge": port(json!({ "mode": "access", "tag": 5 })) },
        ] });
        assert_eq!(
            needs(&desired),
            [
                ("eth0.5", driver("vlan", "CONFIG_VLAN_8021Q")),
                ("br0", driver("bridge", "CONFIG_BRIDGE")),
                ("br1", Need::VlanFiltering),
            ]
        );
        assert!(needs(&json!({})).is_empty());
    }

    // nmstate#110
    #[test]
    fn cause_of_an_invalid_document_is_not_the_kernel() {
        let desired = json!({ "interfaces": [{ "name": "none0", "type": "bond", "state": "up" }] });
        assert_eq!(of(&Error::new(INVALID, "no such mode"), &desired), None);
    }

    // nmstate#110
    #[test]
    fn cause_names_interface_feature_and_remedy() {
        assert_eq!(
            text("bond1", Feature::Driver("CONFIG_BONDING")),
            "interface bond1 cannot be made: the kernel lacks CONFIG_BONDING"
        );
        assert_eq!(
            text("br1", Feature::BridgeVlanFiltering),
            "interface br1 cannot be made: the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING; with `vlan: {}` on each of its \
             ports it needs no VLAN filtering"
        );
    }
}
