//! Flags of the programs of OVN-Kubernetes, and environment variables of their containers (§7.4, 7.5).

use api::cluster_network::operator::{NetworkSpec, OvnKubernetesConfig, PolicyAuditConfig};

use super::{
    knobs::{self, Collectors, Flows, Hardware, Offload},
    observed::Observed,
};
use crate::facts::Facts;

#[cfg(test)]
mod tests;

/// Value of `ipForwarding` with which nodes forward all packets.
const GLOBAL: &str = "Global";
/// Bytes of a megabyte in `maxFileSize`.
const MEGABYTE: u64 = 1_000_000;
/// Default port of the tunnels of the hybrid overlay.
const HYBRID_PORT: u32 = 4789;

/// The configuration of OVN-Kubernetes.
pub fn config(spec: &NetworkSpec) -> OvnKubernetesConfig {
    spec.default_network
        .ovn_kubernetes_config
        .clone()
        .unwrap_or_default()
}

#[derive(Debug, Default)]
struct Flags(Vec<String>);

impl Flags {
    fn switch(&mut self, flag: &str) {
        self.0.push(flag.to_owned());
    }

    /// Adds `flag value`, unless the value is empty.
    fn value(&mut self, flag: &str, value: &str) {
        if !value.is_empty() {
            self.0.extend([flag.to_owned(), value.to_owned()]);
        }
    }
}

/// Common flags of both workloads.
fn shared(spec: &NetworkSpec, facts: &Facts) -> Flags {
    let ovn = config(spec);
    let mut flags = Flags::default();
    let gateway = ovn.gateway_config.clone().unwrap_or_default();
    flags.value(
        "--gateway-mode",
        if gateway.routing_via_host {
            "local"
        } else {
            "shared"
        },
    );
    let (v4, v6) = (
        ovn.ipv4.clone().unwrap_or_default(),
        ovn.ipv6.clone().unwrap_or_default(),
    );
    flags.value(
        "--gateway-v4-join-subnet",
        &or(&v4.internal_join_subnet, &ovn.v4_internal_subnet),
    );
    flags.value(
        "--gateway-v6-join-subnet",
        &or(&v6.internal_join_subnet, &ovn.v6_internal_subnet),
    );
    let default = |is_v6: bool| {
        let mut subnets = facts.ovn.masquerade.iter();
        subnets
            .find(|subnet| subnet.contains(':') == is_v6)
            .cloned()
            .unwrap_or_default()
    };
    let given = |family: Option<api::cluster_network::operator::GatewayFamilyConfig>| {
        family.unwrap_or_default().internal_masquerade_subnet
    };
    flags.value(
        "--gateway-v4-masquerade-subnet",
        &or(&given(gateway.ipv4), &default(false)),
    );
    flags.value(
        "--gateway-v6-masquerade-subnet",
        &or(&given(gateway.ipv6), &default(true)),
    );
    flags.value(
        "--cluster-manager-v4-transit-subnet",
        &v4.internal_transit_switch_subnet,
    );
    flags.value(
        "--cluster-manager-v6-transit-subnet",
        &v6.internal_transit_switch_subnet,
    );
    if let Some(seconds) = ovn.egress_ip_config.reachability_total_timeout_seconds {
        flags.value("--egressip-reachability-total-timeout", &seconds.to_string());
    }
    if advertises_routes(&ovn) {
        flags.switch("--enable-route-advertisements");
    }
    if facts.gate("EVPN") {
        flags.switch("--enable-evpn");
    }
    flags
}

fn or(first: &str, second: &str) -> String {
    if first.is_empty() { second } else { first }.to_owned()
}

/// True if BGP advertises routes to pods.
pub fn advertises_routes(ovn: &OvnKubernetesConfig) -> bool {
    ovn.route_advertisements == "Enabled"
}

/// Flags of `ovnkube-control-plane` from the configuration.
pub fn control_plane(spec: &NetworkSpec, facts: &Facts) -> Vec<String> {
    let mut flags = shared(spec, facts);
    if spec.use_multi_network_policy == Some(true) {
        flags.switch("--enable-multi-networkpolicy");
    }
    flags.0
}

/// Flags of `ovnkube-node`, in each of its modes.
pub fn node(spec: &NetworkSpec, facts: &Facts, mode: Option<Offload>, hardware: &Hardware) -> Vec<String> {
    let ovn = config(spec);
    let audit = ovn.policy_audit_config.clone().unwrap_or_default();
    let is_dpu_host = mode == Some(Offload::DpuHost);
    let mut flags = Flags::default();
    flags.switch("--config-file=/run/ovnkube-config/ovnkube.conf");
    flags.switch("--ovn-empty-lb-events");
    let bridge = if is_dpu_host {
        "derive-from-mgmt-port"
    } else {
        "br-ex"
    };
    flags.value("--gateway-interface", bridge);
    flags.value("--metrics-bind-address", "127.0.0.1:29103");
    flags.value("--ovn-metrics-bind-address", "127.0.0.1:29105");
    for flag in [
        "--metrics-enable-pprof",
        "--metrics-enable-config-duration",
        "--export-ovs-metrics",
        "--disable-snat-multiple-gws",
        "--enable-multicast",
    ] {
        flags.switch(flag);
    }
    flags.value(
        "--acl-logging-rate-limit",
        &audit.rate_limit.unwrap_or(20).to_string(),
    );
    flags.0.extend(shared(spec, facts).0);
    if !forwards_all(&ovn) {
        flags.switch("--disable-forwarding");
    }
    for (variable, _) in flow_variables(spec, &facts.ovn) {
        let flag = match variable {
            "NETFLOW_COLLECTORS" => "--netflow-targets",
            "SFLOW_COLLECTORS" => "--sflow-targets",
            "IPFIX_COLLECTORS" => "--ipfix-targets",
            "IPFIX_CACHE_MAX_FLOWS" => "--ipfix-cache-max-flows",
            "IPFIX_CACHE_ACTIVE_TIMEOUT" => "--ipfix-cache-active-timeout",
            _ => "--ipfix-sampling",
        };
        flags.value(flag, &format!("$({variable})"));
    }
    if facts.gate("OVNObservability") {
        flags.switch("--enable-observability");
    }
    flags.0.extend(knobs::overrides(&facts.ovn.config_maps.overrides));
    if is_dpu_host {
        flags.value("--ovnkube-node-mode", "dpu-host");
        flags.value(
            "--dpu-node-lease-renew-interval",
            &hardware.lease_renew.to_string(),
        );
        flags.value("--dpu-node-lease-duration", &hardware.lease_duration.to_string());
    }
    if facts.ovn.config_maps.has_node_identity() {
        flags.switch(&format!("--bootstrap-kubeconfig={}", bootstrap_kubeconfig(facts)));
        flags.switch("--cert-dir=/etc/ovn/ovnkube-node-certs");
        flags.switch("--cert-duration=24h");
    }
    flags.0
}

/// Path of the kubelet's kubeconfig on the nodes. kubeadm and OpenShift have different paths.
pub fn bootstrap_kubeconfig(facts: &Facts) -> &'static str {
    if facts.openshift {
        "/var/lib/kubelet/kubeconfig"
    } else {
        "/etc/kubernetes/kubelet.conf"
    }
}

/// True if nodes forward all packets.
pub fn forwards_all(ovn: &OvnKubernetesConfig) -> bool {
    ovn.gateway_config
        .as_ref()
        .is_some_and(|gateway| gateway.ip_forwarding == GLOBAL)
}

/// Environment variables for the export of flows, in the order of their flags.
pub fn flow_variables(spec: &NetworkSpec, observed: &Observed) -> Vec<(&'static str, String)> {
    let flows = knobs::flows(&observed.config_maps.flows);
    let Collectors {
        net_flow,
        s_flow,
        ipfix,
    } = knobs::collectors(spec.export_network_flows.as_ref(), flows.as_ref());
    let mut variables = vec![
        ("NETFLOW_COLLECTORS", net_flow),
        ("SFLOW_COLLECTORS", s_flow),
        ("IPFIX_COLLECTORS", ipfix),
    ];
    let Flows {
        target: _,
        cache_active_timeout,
        cache_max_flows,
        sampling,
    } = flows.unwrap_or_default();
    let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    variables.extend([
        ("IPFIX_CACHE_MAX_FLOWS", text(cache_max_flows.map(u64::from))),
        ("IPFIX_CACHE_ACTIVE_TIMEOUT", text(cache_active_timeout)),
        ("IPFIX_SAMPLING", text(sampling.map(u64::from))),
    ]);
    variables.retain(|(_, value)| !value.is_empty());
    variables
}

/// Flags of `ovn-controller` for the audit log of network policies.
pub fn audit(ovn: &OvnKubernetesConfig) -> Vec<String> {
    let PolicyAuditConfig {
        destination,
        syslog_facility,
        ..
    } = ovn.policy_audit_config.clone().unwrap_or_default();
    vec![
        format!("--syslog-method={destination}"),
        format!("-vFACILITY:{syslog_facility}"),
    ]
}

/// Size in bytes after which the audit log is rotated, and number of rotated files. An empty number keeps all files.
pub fn audit_files(ovn: &OvnKubernetesConfig) -> (String, String) {
    let audit = ovn.policy_audit_config.clone().unwrap_or_default();
    let size = u64::from(audit.max_file_size.unwrap_or(50)) * MEGABYTE;
    let files = audit.max_log_files.map(|files| files.to_string());
    (size.to_string(), files.unwrap_or_default())
}

/// UDP ports of tunnels, which bypass connection tracking.
pub fn tunnel_ports(ovn: &OvnKubernetesConfig) -> String {
    let hybrid = ovn.hybrid_overlay_config.as_ref();
    let hybrid = hybrid.map(|hybrid| hybrid.hybrid_overlay_vxlan_port.unwrap_or(HYBRID_PORT));
    let ports: Vec<String> = ovn
        .geneve_port
        .into_iter()
        .chain(hybrid)
        .map(|port| port.to_string())
        .collect();
    ports.join(" ")
}
