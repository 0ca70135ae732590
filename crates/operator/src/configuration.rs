//! Validation of a user's specification, and completion with defaults (operator §5).

use api::network_addons::NetworkAddonsConfigSpec;
use serde_json::Value;

use crate::{
    cluster_facts::{Cluster, Platform},
    cni_directories,
    components::{kube_mac_pool, kube_secondary_dns, macvtap, multus, multus_dynamic_networks},
    general,
};

/// A specification that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct Unreadable {
    /// The path of the field, or `spec`.
    place: String,
    cause: serde_json::Error,
}

/// Parses a specification. Go's JSON has null for absent fields; unknown keys are ignored.
pub fn read(mut spec: Value) -> Result<NetworkAddonsConfigSpec, Unreadable> {
    drop_nulls(&mut spec);
    match spec {
        Value::Null => Ok(NetworkAddonsConfigSpec::default()),
        Value::Object(_) => serde_path_to_error::deserialize(spec).map_err(|error| Unreadable {
            place: error.path().to_string(),
            cause: error.into_inner(),
        }),
        _ => Err(Unreadable {
            place: "spec".to_owned(),
            cause: serde::de::Error::custom("it is not an object"),
        }),
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// All errors of a specification, in the order of the table in operator §5.1.
pub fn validate(spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
    [
        multus::validate(spec, cluster),
        kube_mac_pool::validate(spec),
        general::validate_pull_policy(spec),
        general::validate_self_sign(spec),
        multus_dynamic_networks::validate(spec, cluster),
        macvtap::validate(spec, cluster),
        kube_secondary_dns::validate(spec),
        general::validate_tls(spec),
        cni_directories::validate(spec),
    ]
    .concat()
}

/// Fills in all defaults.
pub fn complete(
    spec: &NetworkAddonsConfigSpec,
    previous: Option<&NetworkAddonsConfigSpec>,
    platform: Platform,
    random: [u8; 2],
) -> NetworkAddonsConfigSpec {
    let mut spec = spec.clone();
    general::defaults(&mut spec, previous);
    kube_mac_pool::defaults(&mut spec, previous, random);
    macvtap::defaults(&mut spec, previous);
    multus_dynamic_networks::defaults(&mut spec, previous, platform);
    spec
}

#[cfg(test)]
mod tests;
