//! The desired state of a node's network, computed without I/O.
//!
//! ```text
//! nodes ──> ranges without a conflict ────┐
//! own node, host's links ─────────────────┴─> for each: next hop on the segment, or through the tunnel
//!                                                 ├─> routes
//!                                                 ├─> tunnel: Ethernet addresses and hosts
//!                                                 ├─> masquerading
//!                                                 └─> MTU of pods
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use linux::link::{Mac, Vxlan};

use crate::{
    messages::Problem,
    names::{OVERHEAD_IPV4, OVERHEAD_IPV6, USUAL_MTU},
    node::Node,
};

/// Settings of the administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    /// Identifier of the VXLAN, 24 bits.
    pub vxlan_id: u32,
    /// Its UDP port.
    pub vxlan_port: u16,
    /// The ranges of all pods. If empty, the ranges of the nodes apply.
    pub cluster: Vec<IpNet>,
    /// MTU of pods, bytes. If `None`, the daemon computes it from the links.
    pub mtu: Option<u32>,
}

/// The links of the host that may lead to other nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// Links with addresses, without the tunnel and the loopback.
    pub links: Vec<HostLink>,
}

/// A link of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostLink {
    pub index: u32,
    /// Bytes.
    pub mtu: u32,
    /// Addresses, each with the prefix length of its subnet.
    pub addresses: Vec<IpNet>,
    /// True if a default route uses this link.
    pub is_default: bool,
}

impl HostLink {
    fn has(&self, address: &IpAddr) -> bool {
        self.addresses.iter().any(|net| net.addr() == *address)
    }

    fn reaches(&self, address: &IpAddr) -> bool {
        let mut subnets = self.addresses.iter();
        subnets.any(|net| net.prefix_len() < net.max_prefix_len() && net.contains(address))
    }
}

/// The next hop of a pod range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// Through a node on the same segment.
    Direct {
        gateway: IpAddr,
        /// Index of the link to the segment.
        link: u32,
    },
    /// Through the tunnel.
    Tunnel {
        /// The address of the other node in the tunnel.
        gateway: IpAddr,
    },
}

/// The VXLAN device with its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub vxlan: Vxlan,
    pub mac: Mac,
    /// Bytes.
    pub mtu: u32,
    /// Addresses of the device. Packets from the host itself to pods have them as their source.
    pub addresses: BTreeSet<IpNet>,
    /// Ethernet addresses of the other nodes, by their addresses in the tunnel.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// Addresses of the nodes that own these Ethernet addresses.
    pub hosts: BTreeMap<Mac, IpAddr>,
}

/// Masquerading: packets to the outside get the node's address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Masquerade {
    /// Ranges of the node's pods.
    pub pods: BTreeSet<IpNet>,
    /// Destinations that are not masqueraded.
    pub inside: BTreeSet<IpNet>,
}

/// The desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    /// Routes to the ranges of other nodes.
    pub routes: BTreeMap<IpNet, Hop>,
    /// Ranges of the node itself: packets to addresses without a pod are refused.
    pub unreachable: BTreeSet<IpNet>,
    /// `None` if no node needs the tunnel.
    pub tunnel: Option<Tunnel>,
    /// Masquerading.
    pub masquerade: Masquerade,
    /// MTU of new pods, bytes; `None` if no link leads to other nodes.
    pub mtu: Option<u32>,
    /// Links that the state depends on.
    pub links: BTreeSet<u32>,
    /// Defects of other nodes. They do not affect the rest.
    pub problems: BTreeSet<Problem>,
    pub peers: Peers,
}

/// Numbers of other nodes, direct and through the tunnel. A node with ranges of both families may count in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peers {
    /// On the segment.
    pub direct: usize,
    /// Through the tunnel.
    pub tunnel: usize,
}

/// Computes the desired state. `nodes` may contain `own`.
pub(crate) fn desired<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    own: &Node,
    host: &Host,
    choices: &Choices,
) -> Desired {
    let peers: BTreeSet<&Node> = nodes.into_iter().filter(|node| node.name != own.name).collect();
    let mut problems = BTreeSet::new();
    let accepted = accept(&peers, own, choices, &mut problems);
    let near = Segment::of(own, host);
    let mut inside: BTreeSet<IpNet> = choices.cluster.iter().map(IpNet::trunc).collect();
    if choices.cluster.is_empty() {
        inside.extend(accepted.keys());
    }
    let mut paths = Paths::default();
    for (range, node) in accepted.into_iter().filter(|(_, node)| node.name != own.name) {
        if paths.direct(range, node, &near) {
            let addresses = node.addresses.iter().copied();
            inside.extend(addresses.filter(|it| near.link_to(it).is_some()).map(IpNet::from));
        } else if let Err(problem) = paths.through_tunnel(range, node, near.underlay) {
            problems.insert(problem);
        }
    }

    let mut links: BTreeSet<u32> = near.uplinks.iter().map(|link| link.index).collect();
    let defaults = host.links.iter().filter(|link| link.is_default);
    links.extend(defaults.map(|link| link.index));
    let leading = host.links.iter().filter(|link| links.contains(&link.index));
    let least = leading.map(|link| link.mtu).min();
    let peers = Peers {
        direct: paths.direct.len(),
        tunnel: paths.tunneled.len(),
    };
    let underlay = near.underlay.filter(|_| !paths.neighbours.is_empty());
    let less = underlay.as_ref().map_or(0, overhead);
    let routes = std::mem::take(&mut paths.routes);
    Desired {
        tunnel: underlay.map(|underlay| Tunnel {
            vxlan: Vxlan {
                id: choices.vxlan_id,
                port: choices.vxlan_port,
                local: Some(underlay),
                learning: false,
            },
            mac: mac(&underlay),
            mtu: near
                .mtu_at(&underlay)
                .or(least)
                .unwrap_or(USUAL_MTU)
                .saturating_sub(less),
            addresses: own
                .ranges
                .iter()
                .map(|range| IpNet::from(range.network()))
                .collect(),
            neighbours: paths.neighbours,
            hosts: paths.hosts,
        }),
        mtu: choices.mtu.or(least.map(|mtu| mtu.saturating_sub(less))),
        masquerade: Masquerade {
            pods: own.ranges.iter().copied().collect(),
            inside,
        },
        routes,
        unreachable: own.ranges.iter().map(IpNet::trunc).collect(),
        links,
        problems,
        peers,
    }
}

/// The place of this node in the cluster's network.
struct Segment<'a> {
    /// Links with the addresses by which other nodes reach this node. Subnets of other links may exist at other sites
    /// too.
    uplinks: Vec<&'a HostLink>,
    /// This node's endpoint of tunnels.
    underlay: Option<IpAddr>,
}

impl<'a> Segment<'a> {
    fn of(own: &Node, host: &'a Host) -> Self {
        let is_uplink = |link: &&HostLink| own.addresses.iter().any(|address| link.has(address));
        Self {
            uplinks: host.links.iter().filter(is_uplink).collect(),
            underlay: underlay(own),
        }
    }

    /// Returns the index of the link to a node on the same segment.
    fn link_to(&self, address: &IpAddr) -> Option<u32> {
        let link = self.uplinks.iter().find(|link| link.reaches(address))?;
        Some(link.index)
    }

    fn mtu_at(&self, address: &IpAddr) -> Option<u32> {
        let link = self.uplinks.iter().find(|link| link.has(address))?;
        Some(link.mtu)
    }
}

/// Routes and entries for the other nodes.
#[derive(Default)]
struct Paths<'a> {
    routes: BTreeMap<IpNet, Hop>,
    neighbours: BTreeMap<IpAddr, Mac>,
    hosts: BTreeMap<Mac, IpAddr>,
    direct: BTreeSet<&'a str>,
    tunneled: BTreeSet<&'a str>,
}

impl<'a> Paths<'a> {
    /// Adds a direct route. Returns false if the node is on another segment.
    fn direct(&mut self, range: IpNet, node: &'a Node, near: &Segment<'_>) -> bool {
        let address = node.address_like(&range.network());
        let Some((gateway, link)) = address.and_then(|address| Some((address, near.link_to(&address)?)))
        else {
            return false;
        };
        self.routes.insert(range, Hop::Direct { gateway, link });
        self.direct.insert(&node.name);
        true
    }

    fn through_tunnel(
        &mut self,
        range: IpNet,
        node: &'a Node,
        underlay: Option<IpAddr>,
    ) -> Result<(), Problem> {
        let far = underlay.and_then(|underlay| node.address_like(&underlay));
        let far = far.ok_or_else(|| {
            let (name, range) = (node.name.clone(), range);
            if node.addresses.is_empty() {
                Problem::NoAddressYet { node: name, range }
            } else {
                Problem::NoAddress { node: name, range }
            }
        })?;
        let mac = mac(&far);
        // Two addresses may have the same digest.
        if *self.hosts.entry(mac).or_insert(far) != far {
            return Err(Problem::SameMac {
                node: node.name.clone(),
                mac,
            });
        }
        let gateway = range.network();
        self.neighbours.insert(gateway, mac);
        self.routes.insert(range, Hop::Tunnel { gateway });
        self.tunneled.insert(&node.name);
        Ok(())
    }
}

/// Returns the endpoint of this node's tunnels. All nodes must use the same family, so IPv4 is preferred.
fn underlay(own: &Node) -> Option<IpAddr> {
    let first = |is_ipv4| own.addresses.iter().copied().find(|it| it.is_ipv4() == is_ipv4);
    first(true).or_else(|| first(false))
}

fn overhead(underlay: &IpAddr) -> u32 {
    if underlay.is_ipv4() {
        OVERHEAD_IPV4
    } else {
        OVERHEAD_IPV6
    }
}

/// Computes the Ethernet address in the tunnel of the node with this address, so that nodes need not publish it. It
/// contains all bits of an IPv4 address, or a digest of an IPv6 address.
pub fn mac(address: &IpAddr) -> Mac {
    // Locally administered, unicast.
    const FIRST: u8 = 0x0a;
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            Mac([FIRST, 0x57, a, b, c, d])
        }
        IpAddr::V6(address) => {
            // FNV-1a.
            let mut digest = 0xcbf2_9ce4_8422_2325_u64;
            for byte in address.octets() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            let digest = (digest ^ digest >> 40).to_be_bytes();
            let mut mac = [FIRST; 6];
            mac[1..].copy_from_slice(&digest[3..]);
            Mac(mac)
        }
    }
}

/// Returns the routed ranges with their nodes. Kubelets write Nodes: a node that claims the range of another node, the
/// address of a node, or a range outside of the cluster's must not receive the packets of others.
fn accept<'a>(
    peers: &BTreeSet<&'a Node>,
    own: &'a Node,
    choices: &Choices,
    problems: &mut BTreeSet<Problem>,
) -> BTreeMap<IpNet, &'a Node> {
    let mut addresses: BTreeSet<IpAddr> = own.addresses.iter().copied().collect();
    addresses.extend(peers.iter().flat_map(|node| node.addresses.iter().copied()));
    let mut accepted: BTreeMap<IpNet, &Node> = BTreeMap::new();
    let is_outside = |range: &IpNet| {
        let mut cluster = choices.cluster.iter();
        !choices.cluster.is_empty() && !cluster.any(|cluster| cluster.contains(range))
    };
    for range in &own.ranges {
        accepted.insert(*range, own);
        // Other nodes refuse this range.
        if is_outside(range) {
            problems.insert(Problem::Outside {
                node: own.name.clone(),
                range: *range,
            });
        }
    }
    for node in peers {
        for text in &node.unreadable {
            problems.insert(Problem::Unreadable {
                node: node.name.clone(),
                text: text.clone(),
            });
        }
        for range in &node.ranges {
            let refused = |by: &Node| Problem::Taken {
                node: node.name.clone(),
                range: *range,
                by: by.name.clone(),
            };
            let problem = if is_outside(range) {
                Some(Problem::Outside {
                    node: node.name.clone(),
                    range: *range,
                })
            } else if let Some(address) = addresses.range(range.network()..=range.broadcast()).next() {
                Some(Problem::HasNode {
                    node: node.name.clone(),
                    range: *range,
                    address: *address,
                })
            } else {
                overlapping(&accepted, range).map(refused)
            };
            match problem {
                Some(problem) => {
                    problems.insert(problem);
                }
                None => {
                    accepted.insert(*range, node);
                }
            }
        }
    }
    accepted
}

/// Returns the node of an overlapping range. Accepted ranges do not overlap each other: only the neighbours in the
/// order can overlap.
fn overlapping<'a>(accepted: &BTreeMap<IpNet, &'a Node>, range: &IpNet) -> Option<&'a Node> {
    let before = accepted.range(..=range).next_back();
    let after = accepted.range(range..).next();
    before
        .filter(|(other, _)| other.contains(range))
        .or(after.filter(|(other, _)| range.contains(*other)))
        .map(|(_, node)| *node)
}

#[cfg(test)]
mod tests;
