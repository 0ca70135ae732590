//! What has to be changed on the host: pure.

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

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// All unicast routes of the main table, one for each next hop.
    pub routes: Vec<Route>,
    /// All unreachable routes of the main table.
    pub unreachable: Vec<Route>,
    /// The link with the tunnel's name.
    pub tunnel: Option<SeenTunnel>,
}

/// The tunnel as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenTunnel {
    /// Its index.
    pub index: u32,
    /// Its settings; none if it is a link of another kind.
    pub vxlan: Option<Vxlan>,
    /// Its Ethernet address.
    pub mac: Option<Mac>,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// It is up.
    pub is_up: bool,
    /// Its addresses that reach further than the link.
    pub addresses: BTreeSet<IpNet>,
    /// Neighbours that were entered for good.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// Hosts by Ethernet address. There may be several for one.
    pub hosts: BTreeSet<(Mac, IpAddr)>,
}

/// One step. They are taken in order, and each leaves a state that the next look finds its way from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Remove a route of ours.
    DeleteRoute(Route),
    /// Remove the tunnel, and with it what belongs to it.
    DeleteTunnel,
    /// Make the tunnel.
    CreateTunnel {
        /// Its settings.
        vxlan: Vxlan,
        /// Its Ethernet address.
        mac: Mac,
        /// Its MTU, bytes.
        mtu: u32,
    },
    /// Give the tunnel this MTU and set it up.
    SetTunnel {
        /// Bytes.
        mtu: u32,
    },
    /// Give the tunnel an address.
    AddAddress(IpNet),
    /// Take an address off it.
    DeleteAddress(IpNet),
    /// Tell the tunnel where an Ethernet address is.
    SetHost(Forwarding),
    /// Have the tunnel forget that.
    DeleteHost(Forwarding),
    /// Tell the tunnel which Ethernet address an address has.
    SetNeighbour(IpAddr, Mac),
    /// Have the tunnel forget that.
    DeleteNeighbour(IpAddr),
    /// Add a route.
    AddRoute(IpNet, Hop),
    /// Lead a route of ours another way.
    ReplaceRoute(IpNet, Hop),
    /// Refuse packets to a range of this node that no pod has.
    AddUnreachable(IpNet),
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

/// The steps from what is seen to what is desired, and what stands in their way.
pub(crate) fn difference(desired: &Desired, seen: &Seen) -> (Vec<Change>, BTreeSet<Problem>) {
    let mut changes = Vec::new();
    let fits = |tunnel: &Tunnel, there: &SeenTunnel| {
        there.vxlan == Some(tunnel.vxlan) && there.mac == Some(tunnel.mac)
    };
    // One that has to be made anew takes its routes along.
    let kept = match (&desired.tunnel, &seen.tunnel) {
        (Some(tunnel), Some(there)) if fits(tunnel, there) => Some(there),
        _ => None,
    };

    // A link of another kind is not ours: making the tunnel fails, and says so, and nothing else is done to it.
    let is_obstructed = seen.tunnel.as_ref().is_some_and(|there| there.vxlan.is_none());

    let is_ours = |route: &&Route| route.protocol == Some(ROUTE_PROTOCOL);
    let lost = |route: &&Route| {
        let of_old = seen.tunnel.as_ref().filter(|_| kept.is_none());
        of_old.is_some_and(|old| route.link == Some(old.index))
    };
    let mut ours: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in seen.routes.iter().filter(is_ours) {
        ours.entry(route.dst).or_default().push(route);
    }
    for (range, routes) in &ours {
        // What goes away comes first, so that a tunnel without routes can go too.
        if !desired.routes.contains_key(range) {
            changes.extend(routes.iter().map(|route| Change::DeleteRoute(**route)));
        }
    }

    match (&desired.tunnel, &seen.tunnel, kept) {
        (Some(tunnel), _, Some(there)) => retune(tunnel, there, &mut changes),
        (Some(tunnel), there, None) => {
            if there.is_some() && !is_obstructed {
                changes.push(Change::DeleteTunnel);
            }
            let Tunnel { vxlan, mac, mtu, .. } = *tunnel;
            changes.push(Change::CreateTunnel { vxlan, mac, mtu });
            let fresh = SeenTunnel {
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
        (None, Some(there), _) if there.vxlan.is_some() => changes.push(Change::DeleteTunnel),
        (None, _, _) => {}
    }

    let mut problems = BTreeSet::new();
    for (range, hop) in &desired.routes {
        if is_obstructed && matches!(hop, Hop::Tunnel { .. }) {
            continue;
        }
        let there = ours.get(range).map(Vec::as_slice).unwrap_or_default();
        let there: Vec<_> = there.iter().copied().filter(|route| !lost(route)).collect();
        let tunnel = kept.map(|tunnel| tunnel.index);
        let (right, wrong): (Vec<&Route>, Vec<&Route>) =
            there.into_iter().partition(|route| leads(route, hop, tunnel));
        match (right.as_slice(), wrong.as_slice()) {
            ([_, ..], wrong) => changes.extend(wrong.iter().map(|route| Change::DeleteRoute(**route))),
            // One takes the place of the first: there is a way all the time.
            ([], [_, rest @ ..]) => {
                changes.extend(rest.iter().map(|route| Change::DeleteRoute(**route)));
                changes.push(Change::ReplaceRoute(*range, *hop));
            }
            ([], []) if seen.routes.iter().any(|route| is_foreign(route, range)) => {
                problems.insert(Problem::ForeignRoute { range: *range });
            }
            ([], []) => changes.push(Change::AddRoute(*range, *hop)),
        }
    }
    refuse(&desired.unreachable, &seen.unreachable, &mut changes);
    (changes, problems)
}

/// Brings the host to refuse packets to the ranges of this node, where no pod has the address, and to no others.
fn refuse(ranges: &BTreeSet<IpNet>, seen: &[Route], changes: &mut Vec<Change>) {
    let ours = seen.iter().filter(|route| route.protocol == Some(ROUTE_PROTOCOL));
    let (right, wrong): (Vec<&Route>, Vec<&Route>) =
        ours.partition(|route| ranges.contains(&route.dst) && route.priority == Some(LAST_PRIORITY));
    changes.extend(wrong.into_iter().copied().map(Change::DeleteRoute));
    let missing = ranges
        .iter()
        .filter(|range| !right.iter().any(|route| route.dst == **range));
    changes.extend(missing.copied().map(Change::AddUnreachable));
}

/// Somebody else's route that ours would take the place of: IPv6 routes have a metric of 1024 where none is given.
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

/// Brings the tunnel to know whom it has to know, and no others.
fn retune(tunnel: &Tunnel, there: &SeenTunnel, changes: &mut Vec<Change>) {
    for net in there.addresses.difference(&tunnel.addresses) {
        changes.push(Change::DeleteAddress(*net));
    }
    // Setting it down has taken neighbours and routes along, so it goes up first.
    if !there.is_up || there.mtu != tunnel.mtu {
        changes.push(Change::SetTunnel { mtu: tunnel.mtu });
    }
    for net in tunnel.addresses.difference(&there.addresses) {
        changes.push(Change::AddAddress(*net));
    }
    for (mac, host) in &there.hosts {
        if tunnel.hosts.get(mac) != Some(host) {
            changes.push(Change::DeleteHost(Forwarding {
                mac: *mac,
                host: *host,
            }));
        }
    }
    for (mac, host) in &tunnel.hosts {
        if !there.hosts.contains(&(*mac, *host)) {
            changes.push(Change::SetHost(Forwarding {
                mac: *mac,
                host: *host,
            }));
        }
    }
    for ip in there.neighbours.keys() {
        if !tunnel.neighbours.contains_key(ip) {
            changes.push(Change::DeleteNeighbour(*ip));
        }
    }
    for (ip, mac) in &tunnel.neighbours {
        if there.neighbours.get(ip) != Some(mac) {
            changes.push(Change::SetNeighbour(*ip, *mac));
        }
    }
}

#[cfg(test)]
mod tests;
