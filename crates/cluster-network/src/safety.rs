//! Decides if a change from the applied configuration is safe (§6).

mod blocks;

use api::cluster_network::operator::{NetworkMigration, NetworkSpec, OvnKubernetesConfig};

use crate::{
    defaults::overhead,
    facts::Platform,
    names,
    operator_config::{MAX_MTU, min_mtu},
};

/// All errors in the change from one configuration to another. The comparison changes neither of them.
pub fn errors(previous: &NetworkSpec, next: &NetworkSpec, platform: &Platform) -> Vec<String> {
    if previous == next {
        return Vec::new();
    }
    let mut errors: Vec<String> = blocks::error(previous, next, platform).into_iter().collect();
    if previous.default_network.kind != next.default_network.kind {
        errors.push("cannot change default network type".to_owned());
    } else if next.default_network.kind == names::OVN_KUBERNETES {
        errors.extend(ovn(previous, next));
    }
    if previous.disable_multi_network != next.disable_multi_network {
        errors.push("cannot change DisableMultiNetwork".to_owned());
    }
    errors
}

fn ovn(previous: &NetworkSpec, next: &NetworkSpec) -> Vec<String> {
    let nothing = OvnKubernetesConfig::default();
    let config = |spec: &NetworkSpec| {
        let config = spec.default_network.ovn_kubernetes_config.as_ref();
        config.unwrap_or(&nothing).clone()
    };
    let (before, after) = (config(previous), config(next));
    let mut errors = Vec::new();
    let migration = next
        .migration
        .as_ref()
        .filter(|migration| migration.mtu.is_some());
    if let Some(migration) = migration {
        errors.extend(mtu_migration(previous, next, migration, &before, &after));
    } else if before.mtu != after.mtu {
        errors.push("cannot change ovn-kubernetes MTU without migration".to_owned());
    }
    if before.geneve_port != after.geneve_port {
        errors.push("cannot change ovn-kubernetes genevePort".to_owned());
    }
    let hybrid = (&before.hybrid_overlay_config, &after.hybrid_overlay_config);
    if matches!(hybrid, (Some(before), Some(after)) if before != after) {
        errors.push("cannot edit a running hybrid overlay network".to_owned());
    }
    errors
}

/// MTU of pods at the start of a migration.
fn from(migration: Option<&NetworkMigration>) -> Option<u32> {
    migration?.mtu.as_ref()?.network.as_ref()?.from
}

/// Errors in a migration of the MTU, which is a change in steps (§6.1).
fn mtu_migration(
    previous: &NetworkSpec,
    next: &NetworkSpec,
    migration: &NetworkMigration,
    before: &OvnKubernetesConfig,
    after: &OvnKubernetesConfig,
) -> Vec<String> {
    let mtu = migration.mtu.clone().unwrap_or_default();
    let (network, machine) = (mtu.network.unwrap_or_default(), mtu.machine.unwrap_or_default());
    let (Some(begin), Some(end), Some(nodes)) = (network.from, network.to, machine.to) else {
        return vec!["invalid Migration.MTU, at least one of the required fields is missing".to_owned()];
    };
    let mut errors = Vec::new();
    let applied = before.mtu.unwrap_or_default();
    // During the migration, the applied MTU is already the new one.
    if from(previous.migration.as_ref()) != Some(begin) && begin != applied {
        errors.push(format!(
            "invalid Migration.MTU.Network.From({begin}) not equal to the currently applied MTU({applied})"
        ));
    }
    let least = min_mtu(&next.cluster_network);
    for (name, value) in [("Network", end), ("Machine", nodes)] {
        if !(least..=MAX_MTU).contains(&value) {
            errors.push(format!(
                "invalid Migration.MTU.{name}.To({value}), has to be in range: {least}-{MAX_MTU}"
            ));
        }
    }
    let needed = end.saturating_add(overhead(after));
    if needed > nodes {
        errors.push(format!(
            "invalid Migration.MTU.Machine.To({nodes}), has to be at least {needed}"
        ));
    }
    errors
}

#[cfg(test)]
mod tests;
