//! The documented recipes in `examples/nmstate`, as they stand, by what their kernel needs.

use serde_json::Value;
use weft_nmstate::render::PolicySpec;

macro_rules! recipes {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../examples/nmstate/", $name, ".yaml")))),*]
    };
}

/// Name and text of those that every kernel with namespaces carries.
pub(crate) const ANYWHERE: &[(&str, &str)] = recipes![
    "dns" "dns-absent" "dry-run" "ethernet-dhcp" "ipv4-forwarding" "linux-bridge-absent" "linux-bridge-without-port"
    "lldp" "node-variables" "ovs-bridge" "ovs-bridge-interface" "route" "static-ip"
];

/// Name and text of those that need bonds, VLANs, VLANs of bridges' ports, or VRF: documents like them are applied in the
/// virtual machine.
pub(crate) const IN_A_MACHINE: &[(&str, &str)] = recipes![
    "bond" "bond-vlan" "linux-bridge" "linux-bridge-vlans" "vlan" "vrf" "workers"
];

/// Those that no test applies: this one takes a node whose uplink may go under a bridge with VLANs.
pub(crate) const NOT_APPLIED: &[&str] = &["uplink-bridge"];

/// What the policy of a recipe is.
pub(crate) fn spec(recipes: &[(&str, &str)], name: &str) -> PolicySpec {
    let (_, text) = recipes.iter().find(|(it, _)| *it == name).unwrap();
    let policy: Value = serde_yaml::from_str(text).unwrap();
    serde_json::from_value(policy["spec"].clone()).unwrap()
}
