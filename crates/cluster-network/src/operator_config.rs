//! Validation of the operator configuration (§4).

mod ovn;

use api::cluster_network::operator::NetworkSpec;

use crate::{
    kube_proxy, names,
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
    errors.extend(migration_errors(spec));
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
