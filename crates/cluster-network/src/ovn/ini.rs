//! The configuration file of OVN-Kubernetes (§7.4).

use std::fmt::Display;

use api::cluster_network::operator::NetworkSpec;

use crate::{defaults::NO_OVERLAY, facts::Facts, names};

#[cfg(test)]
mod tests;

/// Default port of the health check of nodes with egress addresses.
pub const EGRESS_HEALTH_PORT: u16 = 9107;
/// Default number of the autonomous system.
const AS_NUMBER: u32 = 64512;

/// Input of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The operator configuration, with its defaults.
    pub spec: &'a NetworkSpec,
    /// The cluster.
    pub facts: &'a Facts,
    /// True if UDP datagrams are aggregated.
    pub udp_aggregation: bool,
    /// Port of the health check of nodes with egress addresses.
    pub egress_health_port: u16,
    /// URL of the hosted cluster's API server, in the file for pods of the management cluster. These pods trust
    /// [`HOSTED_AUTHORITIES`].
    pub local_api_server: Option<&'a str>,
}

/// File with the certificate authorities of the hosted cluster's API server, in pods of the management cluster.
pub const HOSTED_AUTHORITIES: &str = "/hosted-ca/ca.crt";

/// Writer of the file: sections with keys, separated by empty lines.
#[derive(Debug, Default)]
struct Ini(String);

impl Ini {
    fn section(&mut self, name: &str) -> &mut Self {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0 += &format!("[{name}]\n");
        self
    }

    fn key(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.0 += &format!("{key}={value}\n");
        self
    }

    fn text(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.0 += &format!("{key}=\"{value}\"\n");
        self
    }
}

/// Renders the file.
pub fn ini(input: &Input<'_>) -> String {
    let Input { spec, facts, .. } = input;
    let ovn = spec.default_network.ovn_kubernetes_config.clone();
    let ovn = ovn.unwrap_or_default();
    let mut ini = Ini::default();
    default(&mut ini, input);
    kubernetes(&mut ini, input);
    features(&mut ini, input);
    let via_host = ovn
        .gateway_config
        .as_ref()
        .is_some_and(|gateway| gateway.routing_via_host);
    ini.section("gateway")
        .key("mode", if via_host { "local" } else { "shared" })
        .key("nodeport", true);
    if let Some(no_overlay) = &ovn.no_overlay_config
        && ovn.transport == NO_OVERLAY
    {
        ini.section("no-overlay")
            .key("outbound-snat", no_overlay.outbound_snat.to_lowercase())
            .key("routing", no_overlay.routing.to_lowercase());
    }
    if let Some(bgp) = &ovn.bgp_managed_config {
        ini.section("bgp-managed")
            .key("frr-namespace", names::FRR_NAMESPACE)
            .key("as-number", bgp.as_number.unwrap_or(AS_NUMBER))
            .key("topology", "full-mesh");
    }
    if input.local_api_server.is_none() {
        ini.section("logging")
            .key("libovsdblogfile", "/var/log/ovnkube/libovsdb.log")
            .key("logfile-maxsize", 100)
            .key("logfile-maxbackups", 5)
            .key("logfile-maxage", 0);
    }
    if let Some(hybrid) = &ovn.hybrid_overlay_config {
        ini.section("hybridoverlay").key("enabled", true);
        if let Some(network) = hybrid.hybrid_cluster_network.first() {
            ini.text("cluster-subnets", &network.cidr);
        }
        if let Some(port) = hybrid.hybrid_overlay_vxlan_port {
            ini.text("hybrid-overlay-vxlan-port", port);
        }
    }
    if facts.has_single_control_plane() {
        // A single instance has no standby, so that long timeouts are harmless.
        ini.section("clustermgrha")
            .key("election-lease-duration", 137)
            .key("election-renew-deadline", 107)
            .key("election-retry-period", 26);
    }
    ini.0
}

fn default(ini: &mut Ini, input: &Input<'_>) {
    let spec = input.spec;
    let ovn = spec.default_network.ovn_kubernetes_config.clone();
    let ovn = ovn.unwrap_or_default();
    let network = spec
        .migration
        .as_ref()
        .and_then(|migration| migration.mtu.as_ref());
    let network = network.and_then(|mtu| mtu.network.as_ref());
    let mtus = network.and_then(|change| Some((change.from?, change.to?)));
    ini.section("default");
    match mtus {
        Some((from, to)) => {
            ini.text("mtu", from.max(to)).text("routable-mtu", from.min(to));
        }
        None => {
            ini.text("mtu", ovn.mtu.unwrap_or_default());
        }
    }
    let subnets: Vec<_> = spec
        .cluster_network
        .iter()
        .map(|network| format!("{}/{}", network.cidr, network.host_prefix))
        .collect();
    ini.text("cluster-subnets", subnets.join(","));
    if ovn.transport == NO_OVERLAY {
        ini.text("transport", "no-overlay");
    }
    ini.text("encap-port", ovn.geneve_port.unwrap_or_default())
        .key("enable-lflow-cache", true)
        .key("lflow-cache-limit-kb", 1_048_576);
    if input.local_api_server.is_none() {
        ini.key("enable-udp-aggregation", input.udp_aggregation);
    }
    ini.text(
        "udn-allowed-default-services",
        "default/kubernetes,openshift-dns/dns-default",
    );
}

fn kubernetes(ini: &mut Ini, input: &Input<'_>) {
    let Input { spec, facts, .. } = input;
    let url = input
        .local_api_server
        .map_or_else(|| facts.api_server.url(), str::to_owned);
    let ovn = spec.default_network.ovn_kubernetes_config.as_ref();
    ini.section("kubernetes")
        .text("service-cidrs", spec.service_network.join(","))
        .text("ovn-config-namespace", names::OVN_NAMESPACE);
    if input.local_api_server.is_some() {
        ini.text("cacert", HOSTED_AUTHORITIES);
    }
    ini.text("apiserver", url)
        .text("host-network-namespace", "openshift-host-network");
    if ovn.is_some_and(|ovn| ovn.hybrid_overlay_config.is_some()) {
        ini.text("no-hostsubnet-nodes", "kubernetes.io/os=windows");
    }
    ini.text("platform-type", &facts.platform);
    if input.local_api_server.is_none() {
        ini.text("healthz-bind-address", "0.0.0.0:10256");
    }
    ini.text("dns-service-namespace", "openshift-dns")
        .text("dns-service-name", "dns-default");
}

fn features(ini: &mut Ini, input: &Input<'_>) {
    const FIRST: [&str; 4] = [
        "enable-egress-ip",
        "enable-egress-firewall",
        "enable-egress-qos",
        "enable-egress-service",
    ];
    const SECOND: [&str; 5] = [
        "enable-multi-network",
        "enable-network-segmentation",
        "enable-preconfigured-udn-addresses",
        "enable-admin-network-policy",
        "enable-multi-external-gateway",
    ];
    /// Feature gates, and the key that each gate enables.
    const GATES: [(&str, &str); 2] = [
        ("DNSNameResolver", "enable-dns-name-resolver"),
        ("NetworkConnect", "enable-network-connect"),
    ];
    ini.section("ovnkubernetesfeature");
    for key in FIRST {
        ini.key(key, true);
    }
    ini.key("egressip-node-healthcheck-port", input.egress_health_port);
    for key in SECOND {
        ini.key(key, true);
    }
    for (gate, key) in GATES {
        if input.facts.gate(gate) {
            ini.key(key, true);
        }
    }
}
