//! Literals of the component.

use linux::nft::{Family, Table};

/// User agent, and source component of events.
pub const COMPONENT: &str = "weft-pod-network";

/// The VXLAN device. It carries packets to nodes on other segments.
pub const TUNNEL: &str = "weft.vxlan";

/// The protocol number of the daemon's routes (`rtm_protocol`). <linux/rtnetlink.h> does not assign the number, and
/// iproute2's `rt_protos` does not use it.
pub const ROUTE_PROTOCOL: u8 = 87;

/// The metric of unreachable routes: any other route to the same range comes first.
pub(crate) const LAST_PRIORITY: u32 = u32::MAX;

/// The table of packet rules.
pub const TABLE: Table = Table {
    family: Family::Inet,
    name: "weft_pod_network",
};
pub(crate) const TABLE_COMMENT: &str =
    "weft pod-network: packets that leave the cluster get the address of the node";
/// The chain for packets that leave the node, and the chain for those of the node's pods.
pub(crate) const POSTROUTING: &str = "postrouting";
pub(crate) const FROM_PODS: &str = "from_pods";

/// The type of the addresses in a Node's status that nodes use among themselves.
pub(crate) const INTERNAL_IP: &str = "InternalIP";

/// Defaults of flags.
pub(crate) const CONF_DIR: &str = "/etc/cni/net.d";
pub(crate) const CONF_NAME: &str = "10-weft.conflist";
pub(crate) const NETWORK_NAME: &str = "weft";
pub(crate) const VXLAN_ID: u32 = 7765;
pub(crate) const VXLAN_PORT: u16 = 4789;
pub(crate) const LISTEN: &str = "127.0.0.1:9807";

/// Bytes that a VXLAN adds to a packet: an Ethernet header, a VXLAN header, a UDP header, and an IP header.
pub(crate) const OVERHEAD_IPV4: u32 = 14 + 8 + 8 + 20;
pub(crate) const OVERHEAD_IPV6: u32 = 14 + 8 + 8 + 40;
/// The MTU of Ethernet.
pub(crate) const USUAL_MTU: u32 = 1500;
/// The least MTU of IPv6 (RFC 8200), and the greatest MTU of a Linux link.
pub(crate) const LEAST_MTU: u32 = 1280;
pub(crate) const MOST_MTU: u32 = 65_535;

/// The version of the CNI specification that all current runtimes support.
pub(crate) const CNI_VERSION: &str = "1.0.0";
/// Plugins of the conflist. The installer gives Weft's plugins these names beside plugins of the platform.
pub(crate) const PTP: &str = "cnv-ptp";
pub(crate) const PORTMAP: &str = "cnv-portmap";
pub(crate) const BANDWIDTH: &str = "cnv-bandwidth";
pub(crate) const HOST_LOCAL: &str = "host-local";
/// Types of conflists that delegate to the next conflist.
pub(crate) const DELEGATING: [&str; 2] = ["multus", "multus-shim"];
/// File extensions that runtimes read.
pub(crate) const CONF_EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// Reasons of events on the Node.
pub(crate) mod reason {
    pub(crate) const NO_POD_RANGE: &str = "NoPodCIDR";
    pub(crate) const NO_ADDRESS: &str = "NoInternalIP";
    pub(crate) const OTHER_NETWORK: &str = "OtherPodNetwork";
    pub(crate) const PEER: &str = "PodNetworkPeer";
}
