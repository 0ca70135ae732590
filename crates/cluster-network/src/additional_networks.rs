//! Additional networks: validation, their `NetworkAttachmentDefinition`s, and their helpers (§8).

mod macvlan;

use api::cluster_network::operator::{AdditionalNetwork, IpamConfig, NetworkSpec};
use serde_json::{Value, json};

use crate::names;

/// A valid additional network.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// Name of the network.
    pub name: String,
    /// `NetworkAttachmentDefinition` of the network.
    pub object: Value,
}

/// Renders a network.
///
/// # Errors
/// All rules that the network breaks.
pub fn render(network: &AdditionalNetwork) -> Result<Rendered, Vec<String>> {
    let mut errors = Vec::new();
    let config = match network.kind.as_str() {
        names::RAW => raw(network, &mut errors),
        names::SIMPLE_MACVLAN => macvlan(network, &mut errors),
        unknown => {
            errors.push(format!("unknown or unsupported NetworkType: {unknown}"));
            String::new()
        }
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(Rendered {
        name: network.name.clone(),
        object: json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": network.name, "namespace": namespace(network) },
            "spec": { "config": config },
        }),
    })
}

/// Namespace of the definition of a network.
pub fn namespace(network: &AdditionalNetwork) -> &str {
    if network.namespace.is_empty() {
        "default"
    } else {
        &network.namespace
    }
}

fn check_name(network: &AdditionalNetwork, errors: &mut Vec<String>) {
    if network.name.is_empty() {
        errors.push("Additional Network Name cannot be nil".to_owned());
    }
}

fn raw(network: &AdditionalNetwork, errors: &mut Vec<String>) -> String {
    check_name(network, errors);
    let text = &network.raw_cni_config;
    if !matches!(serde_json::from_str(text), Ok(Value::Object(_))) {
        errors.push(format!("failed to Unmarshal RawCNIConfig: {text}"));
    }
    text.trim_end_matches('\n').to_owned()
}

fn macvlan(network: &AdditionalNetwork, errors: &mut Vec<String>) -> String {
    check_name(network, errors);
    let config = network.simple_macvlan_config.clone().unwrap_or_default();
    macvlan::check(&config, errors);
    if errors.is_empty() {
        macvlan::render(&config)
    } else {
        String::new()
    }
}

/// Workloads that the IPAM of additional networks needs (§8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Helpers {
    /// The daemon of the IPAM plugin `dhcp`.
    pub dhcp: bool,
    /// The reconciler of whereabouts, which releases leaked addresses.
    pub whereabouts: bool,
}

impl Helpers {
    /// The helpers of the additional networks of a configuration.
    pub fn of(spec: &NetworkSpec) -> Self {
        let mut helpers = Self::default();
        if spec.disable_multi_network == Some(true) {
            return helpers;
        }
        for network in &spec.additional_networks {
            match network.kind.as_str() {
                names::RAW => match ipam_type(&network.raw_cni_config).as_deref() {
                    Some("dhcp") => helpers.dhcp = true,
                    Some("whereabouts") => helpers.whereabouts = true,
                    _ => {}
                },
                names::SIMPLE_MACVLAN => {
                    let config = network.simple_macvlan_config.as_ref();
                    helpers.dhcp |= asks_dhcp(config.and_then(|config| config.ipam_config.as_ref()));
                }
                _ => {}
            }
        }
        helpers
    }
}

/// True if DHCP assigns the addresses, which is the default.
fn asks_dhcp(ipam: Option<&IpamConfig>) -> bool {
    ipam.is_none_or(|ipam| ipam.kind != macvlan::STATIC)
}

/// Type of the IPAM of a CNI configuration. In a list, the first plugin with an IPAM decides.
fn ipam_type(config: &str) -> Option<String> {
    let config: Value = serde_json::from_str(config).ok()?;
    let ipam = match config.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter().find_map(|plugin| plugin.get("ipam")),
        None => config.get("ipam"),
    }?;
    let kind = ipam.get("type").and_then(Value::as_str);
    if kind.is_none() {
        tracing::warn!(%ipam, "the IPAM of an additional network has no type");
    }
    kind.map(str::to_owned)
}

#[cfg(test)]
mod tests;
