//! Nodes of the cluster, reduced to their network.

use std::net::IpAddr;

use ipnet::IpNet;
use kube_kit::kube::core::Object;
use serde::Deserialize;

use crate::names::INTERNAL_IP;

/// The greatest number of characters of a malformed text that is kept, and of malformed texts of a node: kubelets write
/// them, and each is reported.
const MOST_CHARACTERS: usize = 64;
const MOST_TEXTS: usize = 4;

/// A node. Nodes are ordered by age: if two nodes claim the same range, the older node keeps it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Node {
    /// Creation time of the Node, seconds since 1970.
    pub created: i64,
    /// Name of the Node.
    pub name: String,
    /// The ranges of the addresses of its pods (`spec.podCIDRs`).
    pub ranges: Vec<IpNet>,
    /// The addresses of type `InternalIP`.
    pub addresses: Vec<IpAddr>,
    /// The start of malformed ranges and addresses.
    pub unreadable: Vec<String>,
}

/// A Node of the API, reduced to the fields that the daemon reads.
pub(crate) type NodeObject = Object<Spec, Status>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    addresses: Option<Vec<Address>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: String,
    address: String,
}

impl Node {
    pub(crate) fn of(object: NodeObject) -> Self {
        let created = object.metadata.creation_timestamp;
        let mut node = Node {
            created: created.map(|at| at.0.as_second()).unwrap_or_default(),
            name: object.metadata.name.unwrap_or_default(),
            ..Node::default()
        };
        let Spec { pod_cidr, pod_cidrs } = object.spec;
        let ranges = pod_cidrs.filter(|ranges| !ranges.is_empty());
        for text in ranges.unwrap_or_else(|| pod_cidr.into_iter().collect()) {
            match text.parse::<IpNet>() {
                Ok(range) if is_usable(&range.network()) => node.ranges.push(range.trunc()),
                _ => node.note_unreadable(&text),
            }
        }
        let addresses = object.status.and_then(|status| status.addresses);
        for Address { r#type, address } in addresses.into_iter().flatten() {
            if r#type != INTERNAL_IP {
                continue;
            }
            match address.parse() {
                Ok(parsed) if is_usable(&parsed) => node.addresses.push(parsed),
                _ => node.note_unreadable(&address),
            }
        }
        node
    }

    fn note_unreadable(&mut self, text: &str) {
        if self.unreadable.len() < MOST_TEXTS {
            self.unreadable.push(text.chars().take(MOST_CHARACTERS).collect());
        }
    }

    /// Returns the first address that has the family of `like`.
    pub(crate) fn address_like(&self, like: &IpAddr) -> Option<IpAddr> {
        let addresses = self.addresses.iter();
        addresses
            .copied()
            .find(|address| address.is_ipv4() == like.is_ipv4())
    }
}

/// Returns true for an address that a node or a pod can have: the kernel refuses others as next hops, and the first
/// address of a range is the next hop in the tunnel.
fn is_usable(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value, status: &Value) -> Node {
        let object = json!({
            "apiVersion": "v1", "kind": "Node", "spec": spec, "status": status,
            "metadata": { "name": "n1", "creationTimestamp": "2026-01-02T03:04:05Z" },
        });
        Node::of(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn node_has_ranges_and_internal_addresses() {
        let node = node(
            &json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"], "taints": [] }),
            &json!({ "addresses": [
                { "type": "Hostname", "address": "n1" }, { "type": "ExternalIP", "address": "203.0.113.1" },
                { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "2001:db8::1" },
            ]}),
        );
        assert_eq!((node.created, node.name.as_str()), (1_767_323_045, "n1"));
        assert_eq!(
            node.ranges,
            ["10.1.0.0/24", "fd00:1::/64"].map(|r| r.parse().unwrap())
        );
        assert_eq!(
            node.addresses,
            ["192.0.2.1", "2001:db8::1"].map(|a| a.parse::<IpAddr>().unwrap())
        );
        assert!(node.unreadable.is_empty());
    }

    #[test]
    fn node_without_pod_cidrs_has_the_range_of_pod_cidr() {
        assert_eq!(
            node(&json!({ "podCIDR": "10.1.0.0/24" }), &json!({})).ranges,
            ["10.1.0.0/24".parse().unwrap()]
        );
        for spec in [json!({}), json!({ "podCIDRs": [] }), json!({ "podCIDRs": null })] {
            assert!(node(&spec, &json!({ "addresses": null })).ranges.is_empty());
        }
    }

    #[test]
    fn malformed_ranges_and_addresses_are_kept_as_text() {
        let node = node(
            &json!({ "podCIDRs": ["10.1.0.0/33", "10.2.0.7/24"] }),
            &json!({ "addresses": [{ "type": "InternalIP", "address": "n1.example" }] }),
        );
        assert_eq!(node.ranges, ["10.2.0.0/24".parse().unwrap()]);
        assert_eq!(node.unreadable, ["10.1.0.0/33", "n1.example"]);
    }

    #[test]
    fn malformed_texts_of_any_length_and_number_are_bounded() {
        let long = "ä\n".repeat(1000);
        let addresses: Vec<_> = (0..100)
            .map(|n| json!({ "type": "InternalIP", "address": format!("{long}{n}") }))
            .collect();
        let node = node(&json!({}), &json!({ "addresses": addresses }));
        assert_eq!(node.unreadable, vec!["ä\n".repeat(32); 4]);
    }

    #[test]
    fn addresses_that_no_node_or_pod_can_have_are_malformed() {
        let odd = ["0.0.0.0", "127.0.0.1", "224.0.0.1", "ff02::1"];
        let addresses = odd.map(|address| json!({ "type": "InternalIP", "address": address }));
        let found = node(&json!({}), &json!({ "addresses": addresses }));
        assert!(found.addresses.is_empty(), "{found:?}");
        assert_eq!(found.unreadable, odd);
        let odd = ["0.0.0.0/8", "127.0.0.0/16", "224.0.5.0/24", "ff00:1::/64"];
        let found = node(&json!({ "podCIDRs": odd }), &json!({}));
        assert!(found.ranges.is_empty(), "{found:?}");
        assert_eq!(found.unreadable, odd);
    }
}
