//! Reads the interfaces of a node's report.

use std::collections::BTreeSet;

use kube_kit::document::list;
use serde_json::{Map, Value, json};

/// An interface of the node.
pub(super) type Interface = Map<String, Value>;

/// VLANs that the neighbours of an interface announce (TLV 127, 00:80:c2, subtype 3).
pub(super) fn announced(interface: &Interface) -> BTreeSet<u16> {
    let is = |tlv: &Value, key: &str, value: Value| tlv.get(key) == Some(&value);
    neighbours(interface)
        .filter_map(Value::as_array)
        .flatten()
        .filter(|tlv| {
            is(tlv, "type", json!(127)) && is(tlv, "oui", json!("00:80:c2")) && is(tlv, "subtype", json!(3))
        })
        .filter_map(|tlv| tlv.get("ieee-802-1-vlans")?.as_array())
        .flatten()
        .filter_map(|vlan| u16::try_from(vlan.get("vid")?.as_u64()?).ok())
        .collect()
}

pub(super) fn neighbours(interface: &Interface) -> impl Iterator<Item = &Value> {
    let lldp = interface.get("lldp").and_then(|lldp| lldp.get("neighbors"));
    lldp.and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn has_lldp(interface: &Interface) -> bool {
    let enabled = interface.get("lldp").and_then(|lldp| lldp.get("enabled"));
    enabled.and_then(Value::as_bool).unwrap_or_default()
}

/// The interfaces of a report.
pub(super) fn interfaces(report: &Value) -> impl Iterator<Item = &Interface> {
    list(report, "/interfaces").filter_map(Value::as_object)
}

/// A string member; empty if there is none.
pub(super) fn text<'a>(members: &'a Interface, key: &str) -> &'a str {
    members.get(key).and_then(Value::as_str).unwrap_or_default()
}
