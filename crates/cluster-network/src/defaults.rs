//! Defaults of the operator configuration (§4.2). The operator writes them back, so that all defaults are explicit.

use api::cluster_network::operator::{
    GatewayConfig, NetworkSpec, OvnKubernetesConfig, PolicyAuditConfig, ProxyConfig,
};

use crate::{cidr, facts::Facts, names};

const GENEVE_PORT: u32 = 6081;
/// Overhead of a tunnel, in bytes of each packet.
const TUNNEL: u32 = 100;
/// Overhead of a tunnel with encryption, in bytes of each packet.
const ENCRYPTED_TUNNEL: u32 = 146;

/// Transport without tunnels.
pub const NO_OVERLAY: &str = "NoOverlay";

/// The configuration sets no MTU, and the MTU of the nodes has not been probed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the MTU of the nodes is not known")]
pub struct UnknownMtu;

/// The MTU of pods in a configuration, in bytes. An MTU of 0 counts as not set.
pub fn mtu(spec: &NetworkSpec) -> Option<u32> {
    let ovn = spec.default_network.ovn_kubernetes_config.as_ref()?;
    ovn.mtu.filter(|mtu| *mtu != 0)
}

/// Difference between the MTU of nodes and the MTU of pods, in bytes.
pub fn overhead(ovn: &OvnKubernetesConfig) -> u32 {
    if ovn.transport == NO_OVERLAY {
        0
    } else if encrypts(ovn) {
        ENCRYPTED_TUNNEL
    } else {
        TUNNEL
    }
}

/// True if traffic between nodes is encrypted. An empty mode counts as `Full` (§3).
pub fn encrypts(ovn: &OvnKubernetesConfig) -> bool {
    let mode = ovn.ipsec_config.as_ref().map(|ipsec| ipsec.mode.as_str());
    matches!(mode, Some("" | "Full"))
}

/// Fills in the defaults. The previous configuration supplies only a missing MTU.
///
/// # Errors
/// If neither configuration has an MTU, and the MTU of the nodes has not been probed.
pub fn fill(spec: &mut NetworkSpec, previous: Option<&NetworkSpec>, facts: &Facts) -> Result<(), UnknownMtu> {
    spec.disable_multi_network.get_or_insert(false);
    spec.use_multi_network_policy.get_or_insert(false);
    or_text(&mut spec.log_level, "Normal");
    let is_ovn = spec.default_network.kind == names::OVN_KUBERNETES;
    if is_ovn {
        fill_ovn(spec, previous, facts)?;
    }
    if *spec.deploy_kube_proxy.get_or_insert(!is_ovn) {
        fill_kube_proxy(spec);
    }
    Ok(())
}

fn fill_ovn(spec: &mut NetworkSpec, previous: Option<&NetworkSpec>, facts: &Facts) -> Result<(), UnknownMtu> {
    let ovn = spec.default_network.ovn_kubernetes_config.get_or_insert_default();
    if ovn.mtu.unwrap_or_default() == 0 {
        let mtu = match previous.and_then(mtu) {
            Some(mtu) => mtu,
            None => facts.host_mtu.ok_or(UnknownMtu)?.saturating_sub(overhead(ovn)),
        };
        ovn.mtu = Some(mtu);
    }
    ovn.geneve_port.get_or_insert(GENEVE_PORT);
    let PolicyAuditConfig {
        rate_limit,
        max_file_size,
        max_log_files: _,
        destination,
        syslog_facility,
    } = ovn.policy_audit_config.get_or_insert_default();
    rate_limit.get_or_insert(20);
    max_file_size.get_or_insert(50);
    or_text(destination, "null");
    or_text(syslog_facility, "local0");
    ovn.gateway_config.get_or_insert_with(|| GatewayConfig {
        routing_via_host: facts.routing_via_host,
        ..GatewayConfig::default()
    });
    Ok(())
}

/// Fills in the defaults of kube-proxy.
pub(crate) fn fill_kube_proxy(spec: &mut NetworkSpec) {
    let first = spec.cluster_network.first();
    let is_v6 = first.is_some_and(|entry| cidr::parse(&entry.cidr).is_ok_and(|net| cidr::is_v6(&net)));
    let ProxyConfig { bind_address, .. } = spec.kube_proxy_config.get_or_insert_default();
    or_text(bind_address, if is_v6 { "::" } else { "0.0.0.0" });
}

fn or_text(text: &mut String, default: &str) {
    if text.is_empty() {
        default.clone_into(text);
    }
}

/// Error if the MTU of pods exceeds the MTU of the nodes, in a network without tunnels (§4, 7).
pub fn no_overlay_error(spec: &NetworkSpec, facts: &Facts) -> Option<String> {
    let ovn = spec.default_network.ovn_kubernetes_config.as_ref()?;
    let (mtu, host) = (ovn.mtu?, facts.host_mtu?);
    (ovn.transport == NO_OVERLAY && mtu > host).then(|| {
        format!(
            "Invalid MTU configuration for no-overlay mode: invalid MTU {mtu} for no-overlay mode: cannot exceed host \
             MTU {host}"
        )
    })
}

#[cfg(test)]
mod tests;
