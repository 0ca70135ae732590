//! The documented recipes in `examples/nmstate`, unchanged, by the place of their application.

use serde_json::Value;
use weft_nmstate::render::PolicySpec;

/// Where a recipe is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In namespaces: every kernel has the needed features.
    Namespaces,
    /// In the virtual machine: the recipe needs bonds, VLANs, VLANs of bridges' ports, or VRF.
    Machine,
}

macro_rules! recipes {
    ($($place:ident: $($name:literal)*;)*) => {
        &[$($(
            (Place::$place, $name, include_str!(concat!("../../../../examples/nmstate/", $name, ".yaml"))),
        )*)*]
    };
}

/// Place, name and text of each.
pub(crate) const RECIPES: &[(Place, &str, &str)] = recipes![
    Namespaces:
        "dns" "dns-absent" "dry-run" "ethernet-dhcp" "ipv4-forwarding" "linux-bridge-absent" "linux-bridge-without-port"
        "lldp" "node-variables" "ovs-bridge" "ovs-bridge-interface" "route" "static-ip";
    Machine:
        "bond" "bond-vlan" "linux-bridge" "linux-bridge-vlans" "uplink-bridge" "vlan" "vrf" "workers";
];

/// The policy of a recipe.
pub(crate) fn spec(place: Place, name: &str) -> PolicySpec {
    let mut recipes = RECIPES.iter();
    let found = recipes.find(|(at, it, _)| (*at, *it) == (place, name));
    let (_, _, text) = found.unwrap();
    let policy: Value = serde_yaml::from_str(text).unwrap();
    serde_json::from_value(policy["spec"].clone()).unwrap()
}
