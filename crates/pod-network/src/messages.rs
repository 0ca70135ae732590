//! Texts for users.

use std::{fmt, net::IpAddr, path::Path};

use ipnet::IpNet;
use linux::link::Mac;

/// A defect of a node that makes its pods unreachable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// The node and this node have no family in common for the tunnel.
    NoAddress {
        /// The node.
        node: String,
        /// The range that has no route.
        range: IpNet,
    },
    /// The node has no address, for instance because it just registered.
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
        /// The node that keeps the range.
        by: String,
    },
    /// The range contains the address of this node, of an older node, or of the node itself.
    HasNode {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
        /// The address in it.
        address: IpAddr,
    },
    /// An older node has a range of this node.
    OwnTaken {
        /// The older node.
        by: String,
        /// The range of the older node.
        range: IpNet,
    },
    /// The node's address is in a range of this node or of an older node.
    InRange {
        /// The node.
        node: String,
        /// The address.
        address: IpAddr,
        /// The range that contains the address.
        range: IpNet,
        /// The node that has the range.
        by: String,
    },
    /// The node's address is an address of this node.
    OwnAddress {
        /// The node.
        node: String,
        /// The address.
        address: IpAddr,
    },
    /// The range is outside of the cluster's ranges.
    Outside {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
    },
    /// This node or an older node has the same Ethernet address in the tunnel.
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
        /// The start of the malformed text.
        text: String,
    },
    /// The kernel refuses the node's address as a next hop.
    Refused {
        /// The node.
        node: String,
        /// The range.
        range: IpNet,
        /// The kernel's words.
        error: String,
    },
    /// A route of another owner leads to the range.
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
                "pods of node {node} in {range} are unreachable: the nodes are not on one segment, and the tunnel \
                 connects only nodes that both have an IPv4 InternalIP, or both have none"
            ),
            Problem::NoAddressYet { node, range } => write!(
                f,
                "pods of node {node} in {range} are unreachable: the node has no InternalIP yet"
            ),
            Problem::Taken { node, range, by } => write!(
                f,
                "node {node} claims the pod range {range}, which overlaps one of node {by}: no route for it"
            ),
            Problem::HasNode { node, range, address } => write!(
                f,
                "node {node} claims the pod range {range}, which contains the node address {address}: no route for it"
            ),
            Problem::OwnTaken { by, range } => write!(
                f,
                "node {by} is older than this node and has the pod range {range}, which overlaps one of this node: \
                 other nodes send packets for pods of this node to node {by}"
            ),
            Problem::InRange {
                node,
                address,
                range,
                by,
            } => write!(
                f,
                "node {node} has the InternalIP {address}, which is in the pod range {range} of node {by}: no route to \
                 its pods through this address"
            ),
            Problem::OwnAddress { node, address } => write!(
                f,
                "node {node} has the InternalIP {address}, which is an address of this node: no route to its pods \
                 through this address"
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
                    "node {node}: {text:?} is not a pod range or an address, ignored"
                )
            }
            Problem::Refused { node, range, error } => write!(
                f,
                "pods of node {node} in {range} are unreachable, the kernel refuses the route: {error}"
            ),
            Problem::ForeignRoute { range } => write!(
                f,
                "another program's route leads to the pod range {range}: no route of Weft for it"
            ),
        }
    }
}

/// The node of this daemon has no pod range.
pub(crate) fn no_pod_range(node: &str) -> String {
    format!(
        "node {node} has no spec.podCIDRs: its pods get no network. Run kube-controller-manager with \
         --allocate-node-cidrs and --cluster-cidr, or set the range on the Node"
    )
}

/// The node of this daemon has no address.
pub(crate) fn no_address(node: &str) -> String {
    format!(
        "node {node} has no InternalIP yet: its routes stay as they are. Kubelet or the cloud controller manager \
         reports the address"
    )
}

/// Another program disabled forwarding.
pub(crate) const NOT_FORWARDING: &str = "forwarding was disabled, and this node drops packets of its pods. Set \
    net.ipv4.ip_forward=1 and net.ipv6.conf.all.forwarding=1 for the families of its pod ranges";

/// The API server has no Node with this name.
pub(crate) fn no_node(node: &str) -> String {
    format!("node {node} is not registered: its pods get no network")
}

/// Runtimes use the configuration of another network.
pub(crate) fn other_network(foreign: &Path, ours: &Path) -> String {
    format!(
        "pods on this node get the network of {}, which sorts before {}: remove it, or rename one of the files",
        foreign.display(),
        ours.display()
    )
}
