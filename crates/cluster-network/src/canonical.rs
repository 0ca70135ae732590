//! Canonical spelling of values: objects with another spelling stay valid (§3.1).

use api::cluster_network::operator::{AdditionalNetwork, NetworkSpec};

use crate::names;

const MODES: [&str; 4] = ["Bridge", "Private", "VEPA", "Passthru"];
const IPAM: [&str; 2] = ["DHCP", "Static"];
const TYPES: [&str; 2] = [names::RAW, names::SIMPLE_MACVLAN];

/// Corrects the spelling of values. Returns true if a value changed.
pub fn canonicalise(spec: &mut NetworkSpec) -> bool {
    let mut changed = network_type(&mut spec.default_network.kind);
    for network in &mut spec.additional_networks {
        changed |= additional(network);
    }
    changed
}

/// Corrects the spelling of the type of the default network. Returns true if it changed.
pub(crate) fn network_type(kind: &mut String) -> bool {
    correct(kind, &[names::OVN_KUBERNETES, names::WEFT])
}

fn additional(network: &mut AdditionalNetwork) -> bool {
    // The spelling of the values below is corrected only if the type had the exact spelling.
    let was_exact = network.kind == names::SIMPLE_MACVLAN;
    let mut changed = correct(&mut network.kind, &TYPES);
    if let Some(macvlan) = network.simple_macvlan_config.as_mut().filter(|_| was_exact) {
        changed |= correct(&mut macvlan.mode, &MODES);
        if let Some(ipam) = &mut macvlan.ipam_config {
            changed |= correct(&mut ipam.kind, &IPAM);
        }
    }
    changed
}

fn correct(value: &mut String, spellings: &[&str]) -> bool {
    let known = spellings.iter().find(|known| known.eq_ignore_ascii_case(value));
    match known {
        Some(known) if *known != value => {
            (*known).clone_into(value);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
