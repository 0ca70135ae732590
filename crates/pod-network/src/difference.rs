//! The changes from the observed to the desired state of the host, computed without I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use ipnet::IpNet;
use linux::{
    link::{Mac, Vxlan},
    neighbour::Forwarding,
    routes::Route,
};

use crate::{
    desired::{Desired, Hop, Tunnel},
    messages::Problem,
    names::{LAST_PRIORITY, ROUTE_PROTOCOL, TUNNEL},
};

/// The observed state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// All unicast routes of the main table, one for each next hop.
    pub routes: Vec<Route>,
    /// All routes of the main table that refuse packets.
    pub unreachable: Vec<Route>,
    /// The link with the tunnel's name.
    pub tunnel: Option<ObservedTunnel>,
}

/// The observed tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedTunnel {
    pub index: u32,
    /// `None` if the link is not a VXLAN.
    pub vxlan: Option<Vxlan>,
    pub mac: Option<Mac>,
    /// Its MTU, bytes.
    pub mtu: u32,
    pub is_up: bool,
    /// Addresses with more than link scope.
    pub addresses: BTreeSet<IpNet>,
    /// Permanent neighbours.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// Nodes by Ethernet address. One Ethernet address may have several.
    pub hosts: BTreeSet<(Mac, IpAddr)>,
}

/// A change. Changes are applied in order, and a later observation can continue from each intermediate state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    DeleteRoute(Route),
    /// Removes the tunnel with its addresses, routes and entries.
    DeleteTunnel,
    CreateTunnel {
        /// Its settings.
        vxlan: Vxlan,
        /// Its Ethernet address.
        mac: Mac,
        /// Its MTU, bytes.
        mtu: u32,
    },
    SetTunnel {
        /// Bytes.
        mtu: u32,
    },
    AddAddress(IpNet),
    DeleteAddress(IpNet),
    /// Sets the node that owns an Ethernet address.
    SetHost(Forwarding),
    DeleteHost(Forwarding),
    /// Sets the Ethernet address of an address in the tunnel.
    SetNeighbour(IpAddr, Mac),
    DeleteNeighbour(IpAddr),
    AddRoute(IpNet, Hop),
    ReplaceRoute(IpNet, Hop),
    /// Refuses packets to addresses without a pod in a range of this node.
    AddUnreachable(IpNet),
}

impl Change {
    /// Returns true if the change fails without a tunnel that is up.
    pub(crate) fn needs_tunnel(&self) -> bool {
        match self {
            Change::SetTunnel { .. }
            | Change::AddAddress(_)
            | Change::DeleteAddress(_)
            | Change::SetHost(_)
            | Change::DeleteHost(_)
            | Change::SetNeighbour(..)
            | Change::DeleteNeighbour(_)
            | Change::AddRoute(_, Hop::Tunnel { .. })
            | Change::ReplaceRoute(_, Hop::Tunnel { .. }) => true,
            Change::DeleteRoute(_)
            | Change::DeleteTunnel
            | Change::CreateTunnel { .. }
            | Change::AddRoute(_, Hop::Direct { .. })
            | Change::ReplaceRoute(_, Hop::Direct { .. })
            | Change::AddUnreachable(_) => false,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::DeleteRoute(route) if route.unreachable => {
                write!(f, "remove unreachable route {route}")
            }
            Change::DeleteRoute(route) => write!(f, "remove route {route}"),
            Change::DeleteTunnel => write!(f, "remove {TUNNEL}"),
            Change::CreateTunnel { vxlan, .. } => {
                write!(f, "create {TUNNEL}, id {} port {}", vxlan.id, vxlan.port)
            }
            Change::SetTunnel { mtu } => write!(f, "set {TUNNEL} up with MTU {mtu}"),
            Change::AddAddress(net) => write!(f, "add address {net}"),
            Change::DeleteAddress(net) => write!(f, "remove address {net}"),
            Change::SetHost(Forwarding { mac, host }) => write!(f, "set {mac} at {host}"),
            Change::DeleteHost(Forwarding { mac, host }) => write!(f, "remove {mac} at {host}"),
            Change::SetNeighbour(ip, mac) => write!(f, "set neighbour {ip} to {mac}"),
            Change::DeleteNeighbour(ip) => write!(f, "remove neighbour {ip}"),
            Change::AddRoute(range, hop) => write!(f, "add route {range} {hop}"),
            Change::ReplaceRoute(range, hop) => write!(f, "replace route {range} {hop}"),
            Change::AddUnreachable(range) => write!(f, "add unreachable route {range}"),
        }
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hop::Direct { gateway, .. } => write!(f, "via {gateway}"),
            Hop::Tunnel { gateway } => write!(f, "via {gateway} through {TUNNEL}"),
        }
    }
}

/// Computes the changes from the observed to the desired state, and the problems that prevent some of them.
pub(crate) fn difference(desired: &Desired, observed: &Observed) -> (Vec<Change>, BTreeSet<Problem>) {
    let mut changes = Vec::new();
    let fits = |tunnel: &Tunnel, existing: &ObservedTunnel| {
        existing.vxlan == Some(tunnel.vxlan) && existing.mac == Some(tunnel.mac)
    };
    // A tunnel that is created again loses its routes.
    let kept = match (&desired.tunnel, &observed.tunnel) {
        (Some(tunnel), Some(existing)) if fits(tunnel, existing) => Some(existing),
        _ => None,
    };

    // A link of another kind is not ours: the creation of the tunnel fails and reports it, the routes through it are
    // skipped, and the link stays as it is.
    let is_obstructed = observed
        .tunnel
        .as_ref()
        .is_some_and(|existing| existing.vxlan.is_none());

    let is_ours = |route: &&Route| route.protocol == Some(ROUTE_PROTOCOL);
    let lost = |route: &&Route| {
        let of_old = observed.tunnel.as_ref().filter(|_| kept.is_none());
        of_old.is_some_and(|old| route.link == Some(old.index))
    };
    let mut ours: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in observed.routes.iter().filter(is_ours) {
        ours.entry(route.dst).or_default().push(route);
    }
    for (range, routes) in &ours {
        // Removals come first, so that a tunnel without routes can be removed too.
        if !desired.routes.contains_key(range) {
            changes.extend(routes.iter().map(|route| Change::DeleteRoute(**route)));
        }
    }

    match (&desired.tunnel, &observed.tunnel, kept) {
        (Some(tunnel), _, Some(existing)) => retune(tunnel, existing, &mut changes),
        (Some(tunnel), existing, None) => {
            if existing.is_some() && !is_obstructed {
                changes.push(Change::DeleteTunnel);
            }
            let Tunnel { vxlan, mac, mtu, .. } = *tunnel;
            changes.push(Change::CreateTunnel { vxlan, mac, mtu });
            let fresh = ObservedTunnel {
                index: 0,
                vxlan: Some(vxlan),
                mac: Some(mac),
                mtu,
                is_up: false,
                addresses: BTreeSet::new(),
                neighbours: BTreeMap::new(),
                hosts: BTreeSet::new(),
            };
            if !is_obstructed {
                retune(tunnel, &fresh, &mut changes);
            }
        }
        (None, Some(existing), _) if existing.vxlan.is_some() => changes.push(Change::DeleteTunnel),
        (None, _, _) => {}
    }

    let mut problems = BTreeSet::new();
    for (range, hop) in &desired.routes {
        let existing = ours.get(range).map(Vec::as_slice).unwrap_or_default();
        let existing: Vec<_> = existing.iter().copied().filter(|route| !lost(route)).collect();
        let tunnel = kept.map(|tunnel| tunnel.index);
        let (right, wrong): (Vec<&Route>, Vec<&Route>) =
            existing.into_iter().partition(|route| leads(route, hop, tunnel));
        match (right.as_slice(), wrong.as_slice()) {
            ([_, ..], wrong) => changes.extend(wrong.iter().map(|route| Change::DeleteRoute(**route))),
            // The new route replaces the first one, so that a route exists all the time.
            ([], [_, rest @ ..]) => {
                changes.extend(rest.iter().map(|route| Change::DeleteRoute(**route)));
                changes.push(Change::ReplaceRoute(*range, *hop));
            }
            ([], []) if all(observed).any(|route| is_foreign(route, range)) => {
                problems.insert(Problem::ForeignRoute { range: *range });
            }
            ([], []) => changes.push(Change::AddRoute(*range, *hop)),
        }
    }
    refuse(&desired.unreachable, &observed.unreachable, &mut changes);
    (changes, problems)
}

/// Plans the unreachable routes to the ranges of this node, for addresses without a pod, and removes other ones.
fn refuse(ranges: &BTreeSet<IpNet>, observed: &[Route], changes: &mut Vec<Change>) {
    let ours = observed
        .iter()
        .filter(|route| route.protocol == Some(ROUTE_PROTOCOL));
    let (right, stale): (Vec<&Route>, Vec<&Route>) =
        ours.partition(|route| ranges.contains(&route.dst) && route.priority == Some(LAST_PRIORITY));
    changes.extend(stale.into_iter().copied().map(Change::DeleteRoute));
    let missing = ranges
        .iter()
        .filter(|range| !right.iter().any(|route| route.dst == **range));
    changes.extend(missing.copied().map(Change::AddUnreachable));
}

fn all(observed: &Observed) -> impl Iterator<Item = &Route> {
    observed.routes.iter().chain(&observed.unreachable)
}

/// Returns true for a route of another owner that ours would replace. IPv6 routes without a metric get 1024.
fn is_foreign(route: &Route, range: &IpNet) -> bool {
    let priority = route.priority.unwrap_or_default();
    route.dst == *range
        && route.protocol != Some(ROUTE_PROTOCOL)
        && priority
            == if range.addr().is_ipv4() {
                0
            } else {
                DEFAULT_IPV6_METRIC
            }
}

const DEFAULT_IPV6_METRIC: u32 = 1024;

fn leads(route: &Route, hop: &Hop, tunnel: Option<u32>) -> bool {
    let (gateway, link) = match hop {
        Hop::Direct { gateway, link } => (gateway, Some(*link)),
        Hop::Tunnel { gateway } => (gateway, tunnel),
    };
    route.gateway == Some(*gateway) && link.is_some() && route.link == link
}

/// Adds the missing addresses and entries of the tunnel, and removes the others.
fn retune(tunnel: &Tunnel, existing: &ObservedTunnel, changes: &mut Vec<Change>) {
    // A link that was set down has lost its neighbours and routes, so the link is set up first.
    if !existing.is_up || existing.mtu != tunnel.mtu {
        changes.push(Change::SetTunnel { mtu: tunnel.mtu });
    }
    for net in tunnel.addresses.difference(&existing.addresses) {
        changes.push(Change::AddAddress(*net));
    }
    // With the last IPv4 address, the kernel would remove all IPv4 routes and neighbours of the link.
    for net in existing.addresses.difference(&tunnel.addresses) {
        changes.push(Change::DeleteAddress(*net));
    }
    for (mac, host) in &existing.hosts {
        if tunnel.hosts.get(mac) != Some(host) {
            changes.push(Change::DeleteHost(Forwarding {
                mac: *mac,
                host: *host,
            }));
        }
    }
    for (mac, host) in &tunnel.hosts {
        if !existing.hosts.contains(&(*mac, *host)) {
            changes.push(Change::SetHost(Forwarding {
                mac: *mac,
                host: *host,
            }));
        }
    }
    for ip in existing.neighbours.keys() {
        if !tunnel.neighbours.contains_key(ip) {
            changes.push(Change::DeleteNeighbour(*ip));
        }
    }
    for (ip, mac) in &tunnel.neighbours {
        if existing.neighbours.get(ip) != Some(mac) {
            changes.push(Change::SetNeighbour(*ip, *mac));
        }
    }
}

#[cfg(test)]
mod tests;
