//! `ConfigMaps` in the operator's namespace that tune OVN-Kubernetes (§7.1). Invalid values are ignored with a warning,
//! except for values without a safe default.

use std::collections::BTreeMap;

use api::cluster_network::operator::{ExportNetworkFlows, FlowCollectors};
use kube_kit::duration::GoDuration;

#[cfg(test)]
mod tests;

/// Data of a `ConfigMap`. Empty for a missing one.
pub type Data = BTreeMap<String, String>;

/// An invalid value that cannot be ignored.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The number of resources for management ports is not a positive integer.
    #[error("invalid {KEY_COUNT} {0:?}, it must be a positive integer")]
    Count(String),
    /// A node has the labels of two kinds.
    #[error("node {0} has multiple hardware offload labels")]
    Labels(String),
}

const KEY_COUNT: &str = "mgmt-port-resource-count";

/// Parses a value. A malformed value is ignored.
fn read<T: std::str::FromStr>(data: &Data, key: &str) -> Option<T> {
    let text = data.get(key)?;
    let value = text.parse().ok();
    if value.is_none() {
        tracing::warn!(key, value = text, "invalid value, ignored");
    }
    value
}

/// Export of flows, from `ovs-flows-config`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Flows {
    /// Host and port of the collector. Without a host, the collector runs on each node.
    pub target: String,
    /// Time after which an active flow is exported, in seconds.
    pub cache_active_timeout: Option<u64>,
    /// Maximum number of flows in the cache.
    pub cache_max_flows: Option<u32>,
    /// One of this many packets is sampled.
    pub sampling: Option<u32>,
}

/// Parses `ovs-flows-config`. `None` without a target.
pub fn flows(data: &Data) -> Option<Flows> {
    let shared = data.get("sharedTarget").cloned();
    let target = shared.or_else(|| data.get("nodePort").map(|port| format!(":{port}")));
    let Some(target) = target else {
        if !data.is_empty() {
            tracing::warn!("ovs-flows-config has neither sharedTarget nor nodePort, ignored");
        }
        return None;
    };
    let timeout = data.get("cacheActiveTimeout").and_then(|text| {
        let parsed = GoDuration::parse(text);
        let parsed =
            parsed.inspect_err(|error| tracing::warn!(%error, "invalid cacheActiveTimeout, ignored"));
        parsed.ok()
    });
    Some(Flows {
        target,
        cache_active_timeout: timeout.map(|timeout| timeout.length().as_secs()),
        cache_max_flows: read(data, "cacheMaxFlows"),
        sampling: read(data, "sampling"),
    })
}

/// Collectors of flows. Each list is separated by commas.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Collectors {
    /// Collectors of `NetFlow`.
    pub net_flow: String,
    /// Collectors of `sFlow`.
    pub s_flow: String,
    /// Collectors of `IPFIX`.
    pub ipfix: String,
}

/// Collectors of the configuration, followed by the collector of `ovs-flows-config`.
pub fn collectors(export: Option<&ExportNetworkFlows>, flows: Option<&Flows>) -> Collectors {
    let joined = |of: fn(&ExportNetworkFlows) -> Option<&FlowCollectors>, more: Option<&str>| {
        let configured = export.and_then(of).map(|it| it.collectors.as_slice());
        let configured = configured.unwrap_or_default().iter().map(String::as_str);
        configured.chain(more).collect::<Vec<_>>().join(",")
    };
    Collectors {
        net_flow: joined(|export| export.net_flow.as_ref(), None),
        s_flow: joined(|export| export.s_flow.as_ref(), None),
        ipfix: joined(
            |export| export.ipfix.as_ref(),
            flows.map(|flows| flows.target.as_str()),
        ),
    }
}

/// True if UDP datagrams are aggregated, from `udp-aggregation-config`.
pub fn udp_aggregation(data: &Data) -> bool {
    !read(data, "disable-udp-aggregation").unwrap_or(false)
}

/// Flags of `ovnkube-node`, from `ovn-kubernetes-config-overrides`.
pub fn overrides(data: &Data) -> Vec<String> {
    let mode = data.get("advertised-udn-isolation-mode");
    let probe: Option<u32> = read(data, "openflow-probe");
    let icmp: Option<bool> = read(data, "allow-icmp-network-policy");
    let mode = mode.map(|mode| format!("--advertised-udn-isolation-mode={mode}"));
    let probe = probe.map(|probe| format!("--openflow-probe={probe}"));
    let icmp = icmp.map(|icmp| format!("--allow-icmp-network-policy={icmp}"));
    [mode, probe, icmp].into_iter().flatten().collect()
}

/// Kind of hardware offload of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offload {
    /// The host of a data processing unit (DPU).
    DpuHost,
    /// A DPU.
    Dpu,
    /// A node whose network card forwards packets.
    SmartNic,
}

/// A label that selects nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeLabel {
    /// Key of the label.
    pub key: String,
    /// Value of the label. Empty for any value.
    pub value: String,
}

impl NodeLabel {
    /// Parses `key=` or `key=value`.
    fn read(text: &str) -> Option<Self> {
        let (key, value) = text.split_once('=')?;
        let (prefix, name) = key
            .rsplit_once('/')
            .map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let is_name = |text: &str| {
            let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            text.len() <= 63
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                && edge(text.bytes().next())
                && edge(text.bytes().last())
        };
        let is_prefix = |text: &str| {
            text.len() <= 253
                && text
                    .split('.')
                    .all(|label| is_name(label) && label == label.to_lowercase())
        };
        let is_valid = is_name(name) && prefix.is_none_or(is_prefix) && (value.is_empty() || is_name(value));
        is_valid.then(|| Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }

    fn matches(&self, labels: &Data) -> bool {
        labels
            .get(&self.key)
            .is_some_and(|value| self.value.is_empty() || *value == self.value)
    }
}

/// Values of `hardware-offload-config`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hardware {
    /// Label of each kind of node.
    pub labels: [(Offload, NodeLabel); 3],
    /// Extended resource of management ports. Empty for none.
    pub port_resource: String,
    /// Number of resources for each node.
    pub port_count: u32,
    /// Interval of renewals of a node's lease, in seconds. 0 for no lease.
    pub lease_renew: u32,
    /// Duration of the lease, in seconds.
    pub lease_duration: u32,
}

/// Default interval of renewals and default duration of a lease, in seconds.
const LEASE: (u32, u32) = (10, 40);

/// Parses `hardware-offload-config`.
///
/// # Errors
/// If the number of resources is not a positive integer.
pub fn hardware(data: &Data) -> Result<Hardware, Error> {
    let label = |key: &str, default: &str| {
        let given = data.get(key).and_then(|text| {
            let label = NodeLabel::read(text);
            if label.is_none() {
                tracing::warn!(key, value = text, "invalid label, the default is used");
            }
            label
        });
        given.unwrap_or_else(|| NodeLabel {
            key: format!("network.operator.openshift.io/{default}"),
            value: String::new(),
        })
    };
    let port_count = match data.get(KEY_COUNT) {
        None => 1,
        Some(text) => {
            let count = text.parse().ok().filter(|count| *count > 0);
            count.ok_or_else(|| Error::Count(text.clone()))?
        }
    };
    let renew = read(data, "dpu-node-lease-renew-interval").unwrap_or(LEASE.0);
    let duration = read(data, "dpu-node-lease-duration").filter(|duration| *duration > 0);
    let duration = duration.unwrap_or(LEASE.1);
    let lease = if duration > renew {
        (renew, duration)
    } else {
        tracing::warn!(
            renew,
            duration,
            "the duration of a lease must exceed its renewal interval, the defaults are used"
        );
        LEASE
    };
    Ok(Hardware {
        labels: [
            (Offload::DpuHost, label("dpu-host-mode-label", "dpu-host")),
            (Offload::Dpu, label("dpu-mode-label", "dpu")),
            (Offload::SmartNic, label("smart-nic-mode-label", "smart-nic")),
        ],
        port_resource: data.get("mgmt-port-resource-name").cloned().unwrap_or_default(),
        port_count,
        lease_renew: lease.0,
        lease_duration: lease.1,
    })
}

/// Kind of hardware offload of a node with these labels. `None` for a node without offload.
///
/// # Errors
/// If the node has the labels of two kinds.
pub fn offload(hardware: &Hardware, node: &str, labels: &Data) -> Result<Option<Offload>, Error> {
    let mut kinds = hardware.labels.iter().filter(|(_, label)| label.matches(labels));
    let kind = kinds.next().map(|(kind, _)| *kind);
    match kinds.next() {
        Some(_) => Err(Error::Labels(node.to_owned())),
        None => Ok(kind),
    }
}
