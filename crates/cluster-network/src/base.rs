//! Base configurations of many tests.

use api::cluster_network::{
    ClusterNetworkEntry,
    operator::{NetworkSpec, OvnKubernetesConfig},
};
use serde_json::Value;

/// Parses a specification from YAML.
pub(crate) fn spec<T: serde::de::DeserializeOwned>(yaml: &str) -> T {
    let value: Value = serde_saphyr::from_str(yaml).expect("YAML");
    serde_json::from_value(value).expect("a specification")
}

/// Base B of the conformance cases.
pub(crate) fn b() -> NetworkSpec {
    spec(
        "clusterNetwork: [{cidr: 10.128.0.0/15, hostPrefix: 23}, {cidr: 10.0.0.0/14, hostPrefix: 24}]
serviceNetwork: [172.30.0.0/16]
defaultNetwork: {type: OVNKubernetes, ovnKubernetesConfig: {genevePort: 8061}}",
    )
}

pub(crate) fn ovn(spec: &mut NetworkSpec) -> &mut OvnKubernetesConfig {
    spec.default_network.ovn_kubernetes_config.get_or_insert_default()
}

pub(crate) fn entry(cidr: &str, host_prefix: u32) -> ClusterNetworkEntry {
    ClusterNetworkEntry {
        cidr: cidr.to_owned(),
        host_prefix,
    }
}

pub(crate) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
