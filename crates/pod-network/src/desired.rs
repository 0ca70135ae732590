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
    /// False if the link is set down. Its addresses of IPv4 stay.
    pub is_up: bool,
}

impl HostLink {
    fn has(&self, address: &IpAddr) -> bool {
        self.addresses.iter().any(|net| net.addr() == *address)
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
    /// Links that the state depends on, also those that are down.
    pub links: BTreeSet<u32>,
    /// Defects of nodes. They do not affect the rest.
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
    let near = Place::of(own, host);
    let mut inside: BTreeSet<IpNet> = choices.cluster.iter().map(IpNet::trunc).collect();
    if choices.cluster.is_empty() {
        inside.extend(accepted.keys());
    }
    let mut paths = Paths::new(own, &near, &accepted);
    let mut by_age: Vec<_> = accepted
        .iter()
        .filter(|(_, node)| node.name != own.name)
        .collect();
    by_age.sort_by_key(|(_, node)| **node);
    for (range, node) in by_age {
        problems.extend(paths.add(*range, node).err());
    }
    for node in peers
        .iter()
        .filter(|node| paths.direct.contains(node.name.as_str()))
    {
        let addresses = node.addresses.iter().copied();
        inside.extend(addresses.filter(|it| near.link_to(it).is_some()).map(IpNet::from));
    }

    let mut links: BTreeSet<u32> = near.uplinks.iter().map(|link| link.index).collect();
    let defaults = host.links.iter().filter(|link| link.is_default);
    links.extend(defaults.map(|link| link.index));
    let leading = host.links.iter().filter(|link| links.contains(&link.index));
    let mtu = |is_up| {
        let links = leading.clone().filter(move |link| link.is_up == is_up);
        links.map(|link| link.mtu).min()
    };
    let least = mtu(true).or_else(|| mtu(false));
    let peers = Peers {
        direct: paths.direct.len(),
        tunnel: paths.tunneled.len(),
    };
    let underlay = near.underlay.filter(|_| !paths.neighbours.is_empty());
    let less = underlay.as_ref().map_or(0, overhead);
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
        routes: paths.routes,
        unreachable: own.ranges.iter().map(IpNet::trunc).collect(),
        links,
        problems,
        peers,
    }
}

/// The place of this node in the cluster's network.
struct Place<'a> {
    /// Links with the addresses by which other nodes reach this node.
    uplinks: Vec<&'a HostLink>,
    /// The segments of the node: the subnet of its first address of each family, with the index of the link. The other
    /// nodes use the same addresses. If all nodes of a segment have the same prefix length, two nodes thus agree whether
    /// they are on one segment. Other subnets may exist at other sites too.
    segments: Vec<(IpNet, u32)>,
    /// This node's endpoint of tunnels.
    underlay: Option<IpAddr>,
    host: &'a Host,
}

impl<'a> Place<'a> {
    fn of(own: &Node, host: &'a Host) -> Self {
        let is_uplink = |link: &&HostLink| own.addresses.iter().any(|address| link.has(address));
        let uplinks: Vec<_> = host.links.iter().filter(is_uplink).collect();
        let up = uplinks.iter().filter(|link| link.is_up);
        let nets = up.flat_map(|link| link.addresses.iter().map(|net| (*net, link.index)));
        let is_segment = |net: &IpNet| {
            let address = net.addr();
            own.address_like(&address) == Some(address) && net.prefix_len() < net.max_prefix_len()
        };
        Self {
            segments: nets.filter(|(net, _)| is_segment(net)).collect(),
            uplinks,
            underlay: underlay(own),
            host,
        }
    }

    /// Returns the index of the link to a node on the same segment.
    fn link_to(&self, address: &IpAddr) -> Option<u32> {
        let mut segments = self.segments.iter();
        let (_, link) = segments.find(|(segment, _)| segment.contains(address))?;
        Some(*link)
    }

    /// Returns the gateway and the link to a range of a node on the same segment.
    fn direct(&self, range: &IpNet, node: &Node) -> Option<(IpAddr, u32)> {
        let gateway = node.address_like(&range.network())?;
        Some((gateway, self.link_to(&gateway)?))
    }

    /// Returns the endpoint of a node's tunnel, if it has the family of this node's endpoint.
    fn far(&self, node: &Node) -> Option<IpAddr> {
        let near = self.underlay?;
        underlay(node).filter(|far| far.is_ipv4() == near.is_ipv4())
    }

    fn mtu_at(&self, address: &IpAddr) -> Option<u32> {
        let mut links = self.uplinks.iter().filter(|link| link.has(address));
        // An address that moved to a bridge may stay on its former link, which is down.
        let up = links.clone().find(|link| link.is_up);
        up.or_else(|| links.next()).map(|link| link.mtu)
    }
}

/// Routes and entries for the other nodes.
struct Paths<'a> {
    own: &'a Node,
    near: &'a Place<'a>,
    accepted: &'a BTreeMap<IpNet, &'a Node>,
    routes: BTreeMap<IpNet, Hop>,
    neighbours: BTreeMap<IpAddr, Mac>,
    hosts: BTreeMap<Mac, IpAddr>,
    direct: BTreeSet<&'a str>,
    tunneled: BTreeSet<&'a str>,
}

impl<'a> Paths<'a> {
    fn new(own: &'a Node, near: &'a Place<'a>, accepted: &'a BTreeMap<IpNet, &'a Node>) -> Self {
        Self {
            own,
            near,
            accepted,
            routes: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            hosts: BTreeMap::new(),
            direct: BTreeSet::new(),
            tunneled: BTreeSet::new(),
        }
    }

    /// Adds a route to a range: direct if the node is on the same segment, else through the tunnel. Of two nodes with
    /// the same Ethernet address in the tunnel, the first one keeps it.
    ///
    /// The tunnel connects ranges of one family, so that each of two nodes needs it for the other one, and both have the
    /// device. A node without pods of a family gets no route through the tunnel: it has no source address there.
    fn add(&mut self, range: IpNet, node: &'a Node) -> Result<(), Problem> {
        if let Some((gateway, link)) = self.near.direct(&range, node) {
            self.check(node, gateway)?;
            self.routes.insert(range, Hop::Direct { gateway, link });
            self.direct.insert(&node.name);
            return Ok(());
        }
        let mut own_ranges = self.own.ranges.iter();
        if !own_ranges.any(|own| own.addr().is_ipv4() == range.addr().is_ipv4()) {
            return Ok(());
        }
        let (Some(near), Some(far)) = (self.near.underlay, self.near.far(node)) else {
            let node_name = node.name.clone();
            return Err(if node.addresses.is_empty() {
                Problem::NoAddressYet {
                    node: node_name,
                    range,
                }
            } else {
                Problem::NoAddress {
                    node: node_name,
                    range,
                }
            });
        };
        self.check(node, far)?;
        let its_mac = mac(&far);
        // Two addresses may have the same digest.
        if its_mac == mac(&near) || *self.hosts.entry(its_mac).or_insert(far) != far {
            return Err(Problem::SameMac {
                node: node.name.clone(),
                mac: its_mac,
            });
        }
        let gateway = range.network();
        self.neighbours.insert(gateway, its_mac);
        self.routes.insert(range, Hop::Tunnel { gateway });
        self.tunneled.insert(&node.name);
        Ok(())
    }

    fn check(&self, node: &Node, address: IpAddr) -> Result<(), Problem> {
        // The host may have more addresses than its Node.
        if self.near.host.links.iter().any(|link| link.has(&address)) {
            let node = node.name.clone();
            return Err(Problem::OwnAddress { node, address });
        }
        misplaced(node, address, self.own, self.accepted).map_or(Ok(()), Err)
    }
}

/// Returns the endpoint of a node's tunnels. All nodes must use the same family, so IPv4 is preferred.
fn underlay(node: &Node) -> Option<IpAddr> {
    let first = |is_ipv4| node.addresses.iter().copied().find(|it| it.is_ipv4() == is_ipv4);
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
///
/// This node comes first, then the others by age. Each claim is compared with those before it alone, so that no node can
/// take the range or the address of an older one.
fn accept<'a>(
    peers: &BTreeSet<&'a Node>,
    own: &'a Node,
    choices: &Choices,
    problems: &mut BTreeSet<Problem>,
) -> BTreeMap<IpNet, &'a Node> {
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    let mut accepted: BTreeMap<IpNet, &Node> = BTreeMap::new();
    for node in std::iter::once(own).chain(peers.iter().copied()) {
        problems.extend(node.unreadable.iter().map(|text| Problem::Unreadable {
            node: node.name.clone(),
            text: text.clone(),
        }));
        let defect = |address: &IpAddr| misplaced(node, *address, own, &accepted);
        // One problem of a node is enough: a Node may have many addresses.
        problems.extend(node.addresses.iter().find_map(defect));
        let placed = node.addresses.iter().filter(|it| defect(it).is_none());
        addresses.extend(placed.copied());
        for range in &node.ranges {
            let problem = refusal(node, *range, own, choices, &addresses, &accepted);
            // Pods of this node have addresses of its ranges in any case. Other nodes refuse such a range.
            if problem.is_none() || node.name == own.name {
                accepted.insert(*range, node);
            }
            problems.extend(problem);
        }
    }
    accepted
}

/// Returns the problem with a range of a node, if other nodes must not route it to the node.
fn refusal(
    node: &Node,
    range: IpNet,
    own: &Node,
    choices: &Choices,
    addresses: &BTreeSet<IpAddr>,
    accepted: &BTreeMap<IpNet, &Node>,
) -> Option<Problem> {
    let name = node.name.clone();
    let mut cluster = choices.cluster.iter();
    if !choices.cluster.is_empty() && !cluster.any(|cluster| cluster.contains(&range)) {
        return Some(Problem::Outside { node: name, range });
    }
    if let Some(address) = addresses.range(range.network()..=range.broadcast()).next() {
        let address = *address;
        return Some(Problem::HasNode {
            node: name,
            range,
            address,
        });
    }
    let (_, by) = overlapping(accepted, &range)?;
    Some(if by.name == own.name && node < own {
        Problem::OwnTaken { by: name, range }
    } else {
        Problem::Taken {
            node: name,
            range,
            by: by.name.clone(),
        }
    })
}

/// Returns the problem with an address of a node, if packets to the address must not be sent to the node: the address is
/// one of this node, or in a range of another node.
fn misplaced(node: &Node, address: IpAddr, own: &Node, accepted: &BTreeMap<IpNet, &Node>) -> Option<Problem> {
    if node.name == own.name {
        return None;
    }
    let name = node.name.clone();
    if own.addresses.contains(&address) {
        return Some(Problem::OwnAddress { node: name, address });
    }
    let (range, by) = overlapping(accepted, &IpNet::from(address)).filter(|(_, by)| by.name != node.name)?;
    Some(Problem::InRange {
        node: name,
        address,
        range,
        by: by.name.clone(),
    })
}

/// Returns an overlapping range with its node. Accepted ranges do not overlap each other: only the neighbours in the
/// order can overlap.
fn overlapping<'a>(accepted: &BTreeMap<IpNet, &'a Node>, range: &IpNet) -> Option<(IpNet, &'a Node)> {
    let before = accepted.range(..=range).next_back();
    let after = accepted.range(range..).next();
    before
        .filter(|(other, _)| other.contains(range))
        .or(after.filter(|(other, _)| range.contains(*other)))
        .map(|(range, node)| (*range, *node))
}

#[cfg(test)]
mod tests;
