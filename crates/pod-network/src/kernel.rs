//! The edge to the kernel: observes the host, and applies changes.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use linux::{
    address::{Address, Family},
    link::{KindState, Link, LinkChange, LinkKind, LinkRef, LinkSpec},
    netns::NetNs,
    nft,
    route::Socket,
    routes::{MAIN_TABLE, Route},
    sysctl::Key,
};

use crate::{
    desired::{Hop, Host, HostLink, Masquerade},
    difference::{Change, Observed, ObservedTunnel},
    masquerade,
    names::{LAST_PRIORITY, ROUTE_PROTOCOL, TUNNEL},
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Sockets to the kernel. They belong to the network namespace in which they were opened.
#[derive(Debug)]
pub struct Kernel {
    namespace: NetNs,
    routing: Socket,
    rules: nft::Socket,
}

/// An observation of the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observation {
    /// Links that may lead to other nodes.
    pub host: Host,
    /// Routes and tunnel.
    pub observed: Observed,
}

impl Kernel {
    /// Opens the sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses a socket, for instance without nftables.
    pub fn open() -> linux::Result<Self> {
        Ok(Self {
            namespace: NetNs::current()?,
            routing: Socket::open()?,
            rules: nft::Socket::open()?,
        })
    }

    /// Observes links, addresses, routes and the tunnel.
    ///
    /// # Errors
    /// If the kernel cannot list them.
    pub(crate) fn observe(&mut self) -> linux::Result<Observation> {
        let links = self.routing.links()?;
        let addresses = self.routing.all_addresses()?;
        let mut all = Vec::new();
        for family in FAMILIES {
            all.extend(self.routing.all_routes(family)?);
        }
        all.retain(|route| route.table == Some(MAIN_TABLE));
        let (unreachable, routes): (Vec<_>, Vec<_>) = all.into_iter().partition(|route| route.unreachable);
        let tunnel = match links.iter().find(|link| link.name == TUNNEL) {
            Some(link) => Some(self.tunnel(link, &addresses)?),
            None => None,
        };
        Ok(Observation {
            host: host(&links, &addresses, &routes),
            observed: Observed {
                routes,
                unreachable,
                tunnel,
            },
        })
    }

    fn tunnel(&mut self, link: &Link, addresses: &[Address]) -> linux::Result<ObservedTunnel> {
        let vxlan = match link.kind_state {
            KindState::Vxlan(vxlan) => Some(vxlan),
            _ => None,
        };
        let (mut neighbours, mut hosts) = (BTreeMap::new(), BTreeSet::new());
        if vxlan.is_some() {
            for family in FAMILIES {
                let known = self.routing.neighbours(link, family)?;
                let permanent = known.into_iter().filter(|neighbour| neighbour.permanent);
                neighbours.extend(permanent.filter_map(|neighbour| Some((neighbour.ip, neighbour.mac?))));
            }
            let known = self.routing.forwardings(link)?;
            hosts.extend(known.into_iter().map(|entry| (entry.mac, entry.host)));
        }
        let own = addresses.iter().filter(|it| it.link == link.index && it.global);
        Ok(ObservedTunnel {
            index: link.index,
            vxlan,
            mac: link.mac,
            mtu: link.mtu,
            is_up: link.is_up(),
            addresses: own.map(|address| address.net).collect(),
            neighbours,
            hosts,
        })
    }

    /// Applies a change. An addition that exists and a removal that is missing count as applied.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    pub(crate) fn apply(&mut self, change: &Change) -> linux::Result<()> {
        let done = self.attempt(change);
        match (change, done) {
            (
                Change::DeleteRoute(_)
                | Change::DeleteTunnel
                | Change::DeleteAddress(_)
                | Change::DeleteHost(_)
                | Change::DeleteNeighbour(_),
                Err(error),
            ) if error.is_not_found() => Ok(()),
            (Change::AddAddress(_) | Change::AddUnreachable(_), Err(error)) if error.is_exists() => Ok(()),
            (_, done) => done,
        }
    }

    fn attempt(&mut self, change: &Change) -> linux::Result<()> {
        let socket = &mut self.routing;
        match change {
            Change::DeleteRoute(route) => socket.delete_route(&Route {
                protocol: Some(ROUTE_PROTOCOL),
                ..*route
            }),
            Change::DeleteTunnel => socket.delete_link_by_name(TUNNEL),
            Change::CreateTunnel { vxlan, mac, mtu } => socket.create_link(&LinkSpec {
                mtu: Some(*mtu),
                mac: Some(*mac),
                ..LinkSpec::new(TUNNEL, LinkKind::Vxlan(*vxlan))
            }),
            Change::SetTunnel { mtu } => {
                let change = LinkChange {
                    up: Some(true),
                    mtu: Some(*mtu),
                    ..LinkChange::default()
                };
                let link = tunnel(socket)?;
                socket.change_link(link, "set link up", &change)
            }
            Change::AddAddress(net) => {
                let link = tunnel(socket)?;
                socket.add_own_address(link, *net)
            }
            Change::DeleteAddress(net) => {
                let link = tunnel(socket)?;
                socket.delete_address(link, *net)
            }
            Change::SetHost(entry) => {
                let link = tunnel(socket)?;
                socket.set_forwarding(link, *entry)
            }
            Change::DeleteHost(entry) => {
                let link = tunnel(socket)?;
                socket.delete_forwarding(link, *entry)
            }
            Change::SetNeighbour(ip, mac) => {
                let link = tunnel(socket)?;
                socket.set_neighbour(link, *ip, *mac)
            }
            Change::DeleteNeighbour(ip) => {
                let link = tunnel(socket)?;
                socket.delete_neighbour(link, *ip)
            }
            Change::AddRoute(range, hop) => {
                let route = route(socket, *range, hop)?;
                socket.add_only_route(&route)
            }
            Change::ReplaceRoute(range, hop) => {
                let route = route(socket, *range, hop)?;
                socket.replace_route(&route)
            }
            Change::AddUnreachable(range) => socket.add_only_route(&Route {
                unreachable: true,
                priority: Some(LAST_PRIORITY),
                protocol: Some(ROUTE_PROTOCOL),
                ..Route::to(*range)
            }),
        }
    }

    /// Applies the packet rules. Returns true if they were written.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub(crate) fn masquerade(&mut self, wanted: &Masquerade) -> linux::Result<bool> {
        masquerade::ensure(&mut self.rules, wanted)
    }

    /// Enables forwarding for the families of these ranges.
    ///
    /// # Errors
    /// If a setting cannot be read or written: a container without privileges cannot write it.
    pub(crate) fn forward(&self, ranges: &[IpNet]) -> linux::Result<()> {
        // Entering a namespace needs a capability that reading its settings does not.
        if NetNs::current()?.same_as(&self.namespace) {
            forward(ranges)
        } else {
            self.namespace.run(|| forward(ranges))?
        }
    }

    /// Removes the daemon's routes, tunnel and packet rules. A failed removal does not stop the others. Returns the
    /// failures.
    pub fn clear(&mut self) -> Vec<linux::Error> {
        let mut errors = Vec::new();
        match self.observe() {
            Ok(view) => {
                let ours = |route: &&Route| route.protocol == Some(ROUTE_PROTOCOL);
                let routes = view.observed.routes.iter().chain(&view.observed.unreachable);
                let routes = routes.filter(ours).copied();
                let mut changes: Vec<_> = routes.map(Change::DeleteRoute).collect();
                let is_ours = view.observed.tunnel.is_some_and(|tunnel| tunnel.vxlan.is_some());
                changes.extend(is_ours.then_some(Change::DeleteTunnel));
                errors.extend(changes.iter().filter_map(|change| self.apply(change).err()));
            }
            Err(error) => errors.push(error),
        }
        errors.extend(masquerade::remove(&mut self.rules).err());
        errors
    }
}

fn forward(ranges: &[IpNet]) -> linux::Result<()> {
    for (is_ipv4, steps) in [
        (true, &["net", "ipv4", "ip_forward"][..]),
        (false, &["net", "ipv6", "conf", "all", "forwarding"][..]),
    ] {
        if !ranges.iter().any(|range| range.addr().is_ipv4() == is_ipv4) {
            continue;
        }
        let key = Key::new(steps)?;
        if key.read()? != "1" {
            key.write("1")?;
        }
    }
    Ok(())
}

fn host(links: &[Link], addresses: &[Address], routes: &[Route]) -> Host {
    let leads_anywhere = |link: &Link| {
        let mut defaults = routes.iter().filter(|route| route.dst.prefix_len() == 0);
        defaults.any(|route| route.link == Some(link.index))
    };
    let links = links
        .iter()
        .filter(|link| !link.is_loopback() && link.name != TUNNEL);
    Host {
        links: links
            .map(|link| HostLink {
                index: link.index,
                mtu: link.mtu,
                addresses: addresses
                    .iter()
                    .filter(|address| address.link == link.index && address.global && !address.duplicate)
                    .map(|address| address.net)
                    .collect(),
                is_default: leads_anywhere(link),
                is_up: link.is_up(),
            })
            .filter(|link| link.is_default || !link.addresses.is_empty())
            .collect(),
    }
}

fn tunnel(socket: &mut Socket) -> linux::Result<LinkRef<'static>> {
    let link = socket.link_by_name(TUNNEL)?;
    Ok(LinkRef {
        index: link.index,
        name: TUNNEL,
    })
}

fn route(socket: &mut Socket, range: IpNet, hop: &Hop) -> linux::Result<Route> {
    let (gateway, link, onlink) = match hop {
        Hop::Direct { gateway, link } => (*gateway, *link, false),
        Hop::Tunnel { gateway } => (*gateway, tunnel(socket)?.index, true),
    };
    Ok(Route {
        gateway: Some(gateway),
        link: Some(link),
        protocol: Some(ROUTE_PROTOCOL),
        onlink,
        ..Route::to(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_that_is_down_stays_with_its_addresses() {
        let mut down = Link::default();
        (down.index, down.mtu) = (2, 1500);
        let address = Address {
            link: 2,
            net: "192.0.2.1/24".parse().unwrap(),
            tentative: false,
            duplicate: false,
            global: true,
        };
        let expected = HostLink {
            index: 2,
            mtu: 1500,
            addresses: vec![address.net],
            is_default: false,
            is_up: false,
        };
        assert_eq!(host(&[down], &[address], &[]).links, [expected]);
    }
}
