//! The cluster configuration: validation, and its merge into the operator configuration (§2).

use api::cluster_network::{config, operator};

use crate::{
    canonical,
    cidr::Families,
    facts::{Facts, Platform},
    pools::{self, Blocks, Overlaps},
};

/// Validates the cluster configuration (§2.1).
///
/// # Errors
/// The message of the condition, for the first broken rule.
pub fn validate(spec: &config::NetworkSpec, facts: &Facts) -> Result<(), String> {
    let blocks = Blocks {
        cluster: &spec.cluster_network,
        service: &spec.service_network,
        network_type: &spec.network_type,
    };
    if let Some(first) = pools::errors(blocks, Overlaps::Plain).into_iter().next() {
        return Err(first);
    }
    if spec.network_type.is_empty() {
        return Err("spec.networkType is required".to_owned());
    }
    let families = Families::of(spec.service_network.iter().map(String::as_str));
    if families.is_dual() && !allows_dual_stack(facts) {
        return Err(format!(
            "{} is not one of the supported platforms for dual stack",
            facts.platform
        ));
    }
    Ok(())
}

fn allows_dual_stack(facts: &Facts) -> bool {
    match facts.platform {
        Platform::BareMetal
        | Platform::None
        | Platform::VSphere
        | Platform::OpenStack
        | Platform::KubeVirt => true,
        Platform::Aws => facts.gate("AWSDualStackInstall"),
        Platform::Azure => facts.gate("AzureDualStackInstall"),
        Platform::Gcp => facts.gate("GCPDualStackInstall"),
        Platform::Other(_) => false,
    }
}

/// Copies the fields that the cluster configuration decides into an operator configuration (§2.3).
pub fn merge(spec: &config::NetworkSpec, into: &mut operator::NetworkSpec) {
    into.service_network.clone_from(&spec.service_network);
    into.cluster_network.clone_from(&spec.cluster_network);
    into.default_network.kind.clone_from(&spec.network_type);
    // The operator stores the corrected spelling. Another one here would replace it in each reconciliation.
    canonical::network_type(&mut into.default_network.kind);
    if into.management_state.is_empty() {
        "Managed".clone_into(&mut into.management_state);
    }
}

#[cfg(test)]
mod tests;
