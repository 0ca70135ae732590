//! Validation of the blocks of pods and services in both configurations (§2.1, §4). OVN-Kubernetes
//! has further rules for them: `operator_config/ovn.rs`.

use api::cluster_network::ClusterNetworkEntry;

use crate::{
    cidr::{self, Families, Pool},
    names,
};

/// Blocks of pods and services.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Blocks of pods.
    pub cluster: &'a [ClusterNetworkEntry],
    /// Blocks of services.
    pub service: &'a [String],
    /// Type of the default network.
    pub network_type: &'a str,
}

/// Format of the message about an overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlaps {
    /// The two blocks.
    Plain,
    /// The field and the two blocks.
    WithField,
}

/// All errors in the blocks, in the order of the rules.
pub fn errors(blocks: Blocks<'_>, overlaps: Overlaps) -> Vec<String> {
    let mut errors = Vec::new();
    let mut pool = Pool::default();
    let service = service(blocks.service, &mut pool, overlaps, &mut errors);
    let cluster = cluster(blocks, &mut pool, overlaps, &mut errors);
    if errors.is_empty() && service != cluster {
        errors.push(
            "spec.clusterNetwork and spec.serviceNetwork must either both be IPv4-only, both be IPv6-only, or both be \
             dual-stack"
                .to_owned(),
        );
    }
    errors
}

fn service(blocks: &[String], pool: &mut Pool, overlaps: Overlaps, errors: &mut Vec<String>) -> Families {
    let mut families = Families::default();
    for block in blocks {
        match cidr::parse_masked(block) {
            Err(error) => errors.push(format!("could not parse spec.serviceNetwork {block}: {error}")),
            Ok(net) => {
                families.add(&net);
                add(pool, net, overlaps, "ServiceNetwork", block, errors);
            }
        }
    }
    if blocks.is_empty() {
        errors.push("spec.serviceNetwork must have at least 1 entry".to_owned());
    } else if blocks.len() > 2 || (blocks.len() == 2 && !families.is_dual()) {
        errors.push("spec.serviceNetwork must contain at most one IPv4 and one IPv6 network".to_owned());
    }
    families
}

fn cluster(blocks: Blocks<'_>, pool: &mut Pool, overlaps: Overlaps, errors: &mut Vec<String>) -> Families {
    let mut families = Families::default();
    for entry in blocks.cluster {
        let block = &entry.cidr;
        let net = match cidr::parse_masked(block) {
            Ok(net) => net,
            Err(error) => {
                errors.push(format!("could not parse spec.clusterNetwork {block}: {error}"));
                continue;
            }
        };
        families.add(&net);
        // A network that does not divide its blocks needs no host prefix.
        if blocks.network_type == names::OVN_KUBERNETES || entry.host_prefix != 0 {
            errors.extend(host_prefix_errors(entry.host_prefix, block, &net));
        }
        add(pool, net, overlaps, "ClusterNetwork", block, errors);
    }
    if blocks.cluster.is_empty() {
        errors.push("spec.clusterNetwork must have at least 1 entry".to_owned());
    }
    families
}

fn host_prefix_errors(prefix: u32, block: &str, net: &ipnet::IpNet) -> Vec<String> {
    let longest = u32::from(net.max_prefix_len()) - 2;
    let mut errors = Vec::new();
    if prefix < u32::from(net.prefix_len()) {
        errors.push(format!("hostPrefix {prefix} is larger than its cidr {block}"));
    }
    if prefix > longest {
        errors.push(format!(
            "hostPrefix {prefix} is too small, must be a /{longest} or larger"
        ));
    }
    errors
}

fn add(
    pool: &mut Pool,
    net: ipnet::IpNet,
    overlaps: Overlaps,
    field: &str,
    block: &str,
    errors: &mut Vec<String>,
) {
    if let Err(error) = pool.add(net) {
        errors.push(match overlaps {
            Overlaps::Plain => error.to_string(),
            Overlaps::WithField => in_use(field, block, &error),
        });
    }
}

/// Message about a block that overlaps another one.
pub fn in_use(name: &str, block: &str, error: &cidr::Overlap) -> String {
    format!("whole or subset of {name} CIDR {block} is already in use: {error}")
}
