//! Texts that users see.

use std::{fmt, net::IpAddr, path::Path};

use ipnet::IpNet;
use linux::link::Mac;

/// Something about another node that keeps its pods from being reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// It has no address to send packets to.
    NoAddress {
        /// The node.
        node: String,
        /// The range that has no route.
        range: IpNet,
    },
    /// It has no address at all, as one that was just registered.
    NoAddressYet {
        /// The node.
        node: String,
        /// The range that has no route.
        range: IpNet,
    },
    /// An older node has the range.
    Taken {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
        /// The node that has it.
        by: String,
    },
    /// A node's own address is in the range.
    HasNode {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
        /// The address in it.
        address: IpAddr,
    },
    /// The range is no part of the cluster's.
    Outside {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
    },
    /// Another node has the same Ethernet address in the tunnel.
    SameMac {
        /// The node.
        node: String,
        /// The Ethernet address.
        mac: Mac,
    },
    /// A range or address is malformed.
    Unreadable {
        /// The node.
        node: String,
        /// As it is written.
        text: String,
    },
    /// Somebody else's route leads to the range.
    ForeignRoute {
        /// The range.
        range: IpNet,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoAddress { node, range } => write!(
                f,
                "pods of node {node} in {range} can't be reached: the node has no InternalIP that this node can send to"
            ),
            Problem::NoAddressYet { node, range } => write!(
                f,
                "pods of node {node} in {range} can't be reached yet: the node has no InternalIP"
            ),
            Problem::Taken { node, range, by } => write!(
                f,
                "node {node} claims the pod range {range}, which overlaps one of node {by}: no route for it"
            ),
            Problem::HasNode { node, range, address } => write!(
                f,
                "node {node} claims the pod range {range}, which contains the node address {address}: no route for it"
            ),
            Problem::Outside { node, range } => write!(
                f,
                "node {node} claims the pod range {range}, which is outside of --cluster-cidr: no route for it"
            ),
            Problem::SameMac { node, mac } => write!(
                f,
                "node {node} has the same address in the tunnel ({mac}) as another node: no route for it"
            ),
            Problem::Unreadable { node, text } => {
                write!(
                    f,
                    "node {node}: \"{text}\" is no pod range or address, left aside"
                )
            }
            Problem::ForeignRoute { range } => write!(
                f,
                "somebody else's route leads to the pod range {range}: it stays, and ours is not added"
            ),
        }
    }
}

/// The own node has no range.
pub(crate) fn no_pod_range(node: &str) -> String {
    format!(
        "node {node} has no spec.podCIDRs: pods get no network before it has. Run kube-controller-manager with \
         --allocate-node-cidrs and --cluster-cidr, or set the range on the Node"
    )
}

/// The API server has no such node.
pub(crate) fn no_node(node: &str) -> String {
    format!("there is no node {node}: waiting for it to be registered")
}

/// The runtime would take another network's configuration.
pub(crate) fn other_network(foreign: &Path, ours: &Path) -> String {
    format!(
        "pods on this node get the network of {}, which sorts before {}: remove it, or rename one of them",
        foreign.display(),
        ours.display()
    )
}
