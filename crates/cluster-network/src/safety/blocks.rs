//! Decides which changes of blocks are safe.

use api::cluster_network::{ClusterNetworkEntry, operator::NetworkSpec};

use crate::{
    cidr::{self, is_v6},
    facts::Platform,
    names,
};

/// The first error in a change of the blocks.
pub(super) fn error(previous: &NetworkSpec, next: &NetworkSpec, platform: &Platform) -> Option<String> {
    let same_service = previous.service_network == next.service_network;
    if previous.migration.is_some() {
        return (!same_service).then(|| "cannot change ServiceNetwork during migration".to_owned());
    }
    if same_service && previous.cluster_network == next.cluster_network {
        return None;
    }
    match (previous.service_network.len(), next.service_network.len()) {
        (before, after) if before == after => within_family(previous, next, same_service),
        (before, after) if before < after => to_dual(previous, next, platform),
        _ => shape_error(next, previous),
    }
}

fn within_family(previous: &NetworkSpec, next: &NetworkSpec, same_service: bool) -> Option<String> {
    if !same_service {
        return Some("unsupported change to ServiceNetwork".to_owned());
    }
    if previous.cluster_network.len() != next.cluster_network.len() {
        return Some("adding/removing clusterNetwork entries of the same type is not supported".to_owned());
    }
    let kind = &next.default_network.kind;
    if kind != names::OVN_KUBERNETES {
        return Some(format!(
            "network type is {kind}. changing clusterNetwork entries is only supported for OVNKubernetes"
        ));
    }
    let (before, after) = (sorted(previous), sorted(next));
    before
        .into_iter()
        .zip(after)
        .find_map(|(before, after)| entry_error(before, after))
}

/// Entries, sorted by the text of their blocks.
fn sorted(spec: &NetworkSpec) -> Vec<&ClusterNetworkEntry> {
    let mut entries: Vec<_> = spec.cluster_network.iter().collect();
    entries.sort_by(|one, other| one.cidr.cmp(&other.cidr));
    entries
}

fn entry_error(before: &ClusterNetworkEntry, after: &ClusterNetworkEntry) -> Option<String> {
    let read = |entry: &ClusterNetworkEntry| {
        let unreadable = |error| {
            format!(
                "error parsing CIDR from ClusterNetwork entry {}: {error}",
                entry.cidr
            )
        };
        cidr::parse_masked(&entry.cidr).map_err(unreadable)
    };
    let (old, new) = match (read(before), read(after)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(error), _) | (_, Err(error)) => return Some(error),
    };
    if before.host_prefix != after.host_prefix {
        return Some("modifying a clusterNetwork's hostPrefix value is unsupported".to_owned());
    }
    if old.addr() != new.addr() {
        return Some("modifying IP network value for clusterNetwork CIDR is unsupported".to_owned());
    }
    (new.prefix_len() > old.prefix_len()).then(|| {
        "reducing IP range with a larger CIDR mask for clusterNetwork CIDR is unsupported".to_owned()
    })
}

fn to_dual(previous: &NetworkSpec, next: &NetworkSpec, platform: &Platform) -> Option<String> {
    if !matches!(platform, Platform::BareMetal | Platform::None | Platform::VSphere) {
        return Some(format!(
            "{platform} does not allow conversion to dual-stack cluster"
        ));
    }
    shape_error(previous, next)
}

/// Error if the blocks of the single family differ in a change to or from dual-stack.
fn shape_error(single: &NetworkSpec, dual: &NetworkSpec) -> Option<String> {
    if single.service_network.first() != dual.service_network.first() {
        return Some("cannot change primary ServiceNetwork when migrating to/from dual-stack".to_owned());
    }
    let Some(added) = dual
        .cluster_network
        .strip_prefix(single.cluster_network.as_slice())
    else {
        return Some("cannot change primary ClusterNetwork when migrating to/from dual-stack".to_owned());
    };
    let family = |entry: &ClusterNetworkEntry| cidr::parse(&entry.cidr).ok().map(|net| is_v6(&net));
    let original = single.cluster_network.first().and_then(family);
    added.iter().any(|entry| family(entry) == original).then(|| {
        "cannot add additional ClusterNetwork values of original IP family when migrating to dual stack"
            .to_owned()
    })
}
