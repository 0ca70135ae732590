//! Validation of the operator configuration (§4).

mod ovn;

use api::cluster_network::operator::{NetworkSpec, ROUTES_NEED_FRR};

use crate::{
    kube_proxy, messages, names,
    ovn::flags,
    pools::{self, Blocks, Overlaps},
};

pub use ovn::{MAX_MTU, min_mtu};

/// All errors in the operator configuration.
pub fn errors(spec: &NetworkSpec) -> Vec<String> {
    let blocks = Blocks {
        cluster: &spec.cluster_network,
        service: &spec.service_network,
        network_type: &spec.default_network.kind,
    };
    let mut errors = pools::errors(blocks, Overlaps::WithField);
    if spec.default_network.kind == names::OVN_KUBERNETES {
        errors.extend(ovn::errors(spec));
    }
    if spec.disable_multi_network == Some(true) && !spec.additional_networks.is_empty() {
        errors.push("additional networks cannot be specified without deploying Multus".to_owned());
    }
    errors.extend(kube_proxy::errors(spec));
    errors.extend(routing_errors(spec));
    errors.extend(migration_errors(spec));
    errors
}

/// Errors in the additional routing capabilities. The definition has the same rules (§18.2).
fn routing_errors(spec: &NetworkSpec) -> Vec<String> {
    let capabilities = spec.additional_routing_capabilities.as_ref();
    let providers = || capabilities.into_iter().flat_map(|it| &it.providers);
    let unknown = providers().filter(|provider| *provider != names::FRR);
    let mut errors: Vec<String> = unknown
        .map(|provider| messages::unknown_routing_provider(provider))
        .collect();
    let ovn = spec.default_network.ovn_kubernetes_config.as_ref();
    if ovn.is_some_and(flags::advertises_routes) && !providers().any(|provider| provider == names::FRR) {
        errors.push(ROUTES_NEED_FRR.to_owned());
    }
    errors
}

fn migration_errors(spec: &NetworkSpec) -> Vec<String> {
    let mut errors = Vec::new();
    let Some(migration) = &spec.migration else {
        return errors;
    };
    if !migration.network_type.is_empty() {
        errors.push("network type migration is not supported".to_owned());
    }
    if migration.features.is_some() {
        errors.push("network feature migration is not supported".to_owned());
    }
    errors
}

#[cfg(test)]
mod tests;
