//! Rules of OVN-Kubernetes: families and number of blocks, MTU, ports, internal subnets (§4, 2).

use api::cluster_network::{
    ClusterNetworkEntry,
    operator::{GatewayFamilyConfig, NetworkSpec, OvnFamilyConfig, OvnKubernetesConfig},
};
use ipnet::IpNet;

use crate::{
    cidr::{self, Families, Pool},
    pools,
};

/// The maximum MTU.
pub const MAX_MTU: u32 = 65536;
const MIN_MTU_V4: u32 = 576;
const MIN_MTU_V6: u32 = 1280;
const MAX_PORT: u32 = 65535;

/// The minimum MTU of pods with addresses from these blocks.
pub fn min_mtu(blocks: &[ClusterNetworkEntry]) -> u32 {
    if families(blocks).v6 {
        MIN_MTU_V6
    } else {
        MIN_MTU_V4
    }
}

fn families(blocks: &[ClusterNetworkEntry]) -> Families {
    Families::of(blocks.iter().map(|entry| entry.cidr.as_str()))
}

/// All errors in the configuration of OVN-Kubernetes.
pub(super) fn errors(spec: &NetworkSpec) -> Vec<String> {
    let mut errors = Vec::new();
    let cluster = families(&spec.cluster_network);
    let service = Families::of(spec.service_network.iter().map(String::as_str));
    if spec.cluster_network.is_empty() {
        errors.push("ClusterNetwork cannot be empty".to_owned());
    }
    if spec.service_network.is_empty() {
        errors.push("ServiceNetwork cannot be empty".to_owned());
    } else {
        if cluster != service {
            errors.push("ClusterNetwork and ServiceNetwork must have matching IP families".to_owned());
        }
        if spec.service_network.len() > 2 || (spec.service_network.len() == 2 && !service.is_dual()) {
            errors.push(
                "ServiceNetwork must have either a single CIDR or a dual-stack pair of CIDRs".to_owned(),
            );
        }
    }
    if let Some(ovn) = &spec.default_network.ovn_kubernetes_config {
        let range = min_mtu(&spec.cluster_network)..=MAX_MTU;
        if let Some(mtu) = ovn.mtu.filter(|mtu| !range.contains(mtu)) {
            errors.push(format!("invalid MTU {mtu}"));
        }
        if let Some(port) = ovn.geneve_port.filter(|port| !(1..=MAX_PORT).contains(port)) {
            errors.push(format!("invalid GenevePort {port}"));
        }
        Subnets::of(spec).check(ovn, &mut errors);
    }
    errors
}

/// Internal subnets of OVN-Kubernetes, which must not overlap the blocks of pods and services.
struct Subnets<'a> {
    spec: &'a NetworkSpec,
    families: Families,
    pool: Pool,
}

/// Purpose of a subnet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Join,
    Transit,
    Masquerade,
}

impl<'a> Subnets<'a> {
    fn of(spec: &'a NetworkSpec) -> Self {
        let mut pool = Pool::default();
        let cluster = spec.cluster_network.iter().map(|entry| &entry.cidr);
        for net in cluster.chain(&spec.service_network) {
            // The validation of the pools reports overlaps of these blocks.
            if let Ok(net) = cidr::parse(net) {
                let _ = pool.add(net);
            }
        }
        Self {
            spec,
            families: families(&spec.cluster_network),
            pool,
        }
    }

    fn check(mut self, ovn: &OvnKubernetesConfig, errors: &mut Vec<String>) {
        let v4 = ovn.ipv4.clone().unwrap_or_default();
        let v6 = ovn.ipv6.clone().unwrap_or_default();
        let joins = [
            (
                "v4InternalSubnet",
                &ovn.v4_internal_subnet,
                &v4,
                "v4InternalJoinSubnet",
                false,
            ),
            (
                "v6InternalSubnet",
                &ovn.v6_internal_subnet,
                &v6,
                "v6InternalJoinSubnet",
                true,
            ),
        ];
        for (former, former_subnet, family, name, is_v6) in joins {
            let subnet = join(former_subnet, family);
            if !former_subnet.is_empty() && former_subnet != subnet {
                errors.push(format!(
                    "{former} will be deprecated soon, until then it must be same as {name} {subnet} "
                ));
            }
            self.subnet(name, subnet, is_v6, Use::Join, errors);
        }
        let transit = [
            ("v4InternalTransitSwitchSubnet", &v4, false),
            ("v6InternalTransitSwitchSubnet", &v6, true),
        ];
        for (name, family, is_v6) in transit {
            self.subnet(
                name,
                &family.internal_transit_switch_subnet,
                is_v6,
                Use::Transit,
                errors,
            );
        }
        let gateway = ovn.gateway_config.clone().unwrap_or_default();
        let masquerade = [
            ("v4InternalMasqueradeSubnet", gateway.ipv4, false),
            ("v6InternalMasqueradeSubnet", gateway.ipv6, true),
        ];
        for (name, family, is_v6) in masquerade {
            let GatewayFamilyConfig {
                internal_masquerade_subnet: subnet,
            } = family.unwrap_or_default();
            self.subnet(name, &subnet, is_v6, Use::Masquerade, errors);
        }
        let hybrid = ovn.hybrid_overlay_config.iter();
        for entry in hybrid.flat_map(|hybrid| &hybrid.hybrid_cluster_network) {
            self.hybrid(&entry.cidr, errors);
        }
    }

    fn subnet(&mut self, name: &str, subnet: &str, is_v6: bool, purpose: Use, errors: &mut Vec<String>) {
        if subnet.is_empty() {
            return;
        }
        let has_family = if is_v6 { self.families.v6 } else { self.families.v4 };
        if !has_family {
            let what = if purpose == Use::Join { "JoinSubnet" } else { name };
            errors.push(format!(
                "{what} {subnet} and ClusterNetwork must have matching IP families"
            ));
            return;
        }
        let net = match cidr::parse(subnet) {
            Ok(net) => net,
            Err(error) => {
                errors.push(format!("{name} is invalid: {error}"));
                return;
            }
        };
        if purpose != Use::Masquerade && !self.is_large_enough(&net, is_v6) {
            errors.push(format!(
                "{name} {subnet} is not large enough for the maximum number of nodes which can be supported by \
                 ClusterNetwork"
            ));
        }
        if let Err(error) = self.pool.add(net) {
            errors.push(pools::in_use(name, subnet, &error));
        }
    }

    fn hybrid(&mut self, subnet: &str, errors: &mut Vec<String>) {
        match cidr::parse(subnet) {
            Ok(net) => {
                if let Err(error) = self.pool.add(net) {
                    errors.push(pools::in_use("hybridClusterNetwork", subnet, &error));
                }
            }
            Err(error) => errors.push(format!("hybridClusterNetwork is invalid: {error}")),
        }
    }

    /// True if the subnet has an address for each of the nodes that the blocks of pods allow.
    fn is_large_enough(&self, net: &IpNet, is_v6: bool) -> bool {
        let nodes = self.spec.cluster_network.iter().filter_map(|entry| {
            let block = cidr::parse(&entry.cidr).ok()?;
            (cidr::is_v6(&block) == is_v6)
                .then(|| power(entry.host_prefix.saturating_sub(u32::from(block.prefix_len()))))
        });
        let nodes = nodes.fold(0, u128::saturating_add);
        let bits = u32::from(net.max_prefix_len().saturating_sub(net.prefix_len()));
        if is_v6 {
            nodes.saturating_add(3) <= power(bits)
        } else {
            nodes < power(bits).saturating_sub(3)
        }
    }
}

/// The join subnet between nodes and gateways, from the current field or the deprecated one.
fn join<'a>(former: &'a str, family: &'a OvnFamilyConfig) -> &'a str {
    if family.internal_join_subnet.is_empty() {
        former
    } else {
        &family.internal_join_subnet
    }
}

fn power(exponent: u32) -> u128 {
    1_u128.checked_shl(exponent).unwrap_or(u128::MAX)
}
