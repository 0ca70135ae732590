//! Routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Parseable};
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
        RouteScope, RouteType,
    },
};

use crate::{
    Errno, Result,
    address::Family,
    route::{Request, Socket},
};

/// The main routing table.
pub const MAIN_TABLE: u32 = 254;
/// The kernel's table for the host's own addresses.
pub const LOCAL_TABLE: u32 = 255;
/// The origin of routes that the kernel adds together with an address.
pub const KERNEL_PROTOCOL: u8 = 2;
/// The scope of routes without a gateway.
pub const LINK_SCOPE: u8 = 253;

/// A unicast route, or a route that refuses packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination; `0.0.0.0/0` or `::/0` for the default route.
    pub dst: IpNet,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Index of the output interface.
    pub link: Option<u32>,
    /// Metric; lower values win. IPv6 has no metric 0: the kernel replaces it with 1024.
    pub priority: Option<u32>,
    /// Routing table; by default the main table.
    pub table: Option<u32>,
    /// Scope, by the kernel's numbers: 0 universe, 253 link, 254 host.
    pub scope: Option<u8>,
    /// MTU of the path, bytes.
    pub mtu: Option<u32>,
    /// Maximum segment size to announce, bytes.
    pub advmss: Option<u32>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// The origin (`rtm_protocol`): 2 for the kernel, 3 for administrators, which is the default of new routes.
    pub protocol: Option<u8>,
    /// The gateway is treated as a neighbour on the link, even if no subnet of the link contains it.
    pub onlink: bool,
    /// Packets are refused, and there is no next hop. New routes refuse packets with an ICMP message. The kernel's
    /// prohibit, blackhole and throw routes are read as such routes too.
    pub unreachable: bool,
}

impl Route {
    /// Returns a route to `dst` without other properties.
    pub fn to(dst: IpNet) -> Self {
        Route {
            dst,
            gateway: None,
            link: None,
            priority: None,
            table: None,
            scope: None,
            mtu: None,
            advmss: None,
            source: None,
            protocol: None,
            onlink: false,
            unreachable: false,
        }
    }

    fn message(&self) -> RouteMessage {
        let dst = self.dst.trunc();
        let mut message = RouteMessage::default();
        message.header.address_family = Family::raw(Some(Family::of(&dst.addr())));
        message.header.destination_prefix_length = dst.prefix_len();
        message.header.protocol = self.protocol.map_or(RouteProtocol::Boot, RouteProtocol::from);
        if self.onlink {
            message.header.flags |= RouteFlags::Onlink;
        }
        message.header.scope = self.scope.map_or(RouteScope::Universe, RouteScope::from);
        message.header.kind = if self.unreachable {
            RouteType::Unreachable
        } else {
            RouteType::Unicast
        };
        let table = self.table.unwrap_or(MAIN_TABLE);
        message.header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Table(table));
        if dst.prefix_len() != 0 {
            attributes.push(RouteAttribute::Destination(dst.addr().into()));
        }
        attributes.extend(self.gateway.map(|ip| RouteAttribute::Gateway(ip.into())));
        attributes.extend(self.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
        attributes.extend(self.link.map(RouteAttribute::Oif));
        attributes.extend(self.priority.map(RouteAttribute::Priority));
        let metrics: Vec<_> = self
            .mtu
            .map(RouteMetric::Mtu)
            .into_iter()
            .chain(self.advmss.map(RouteMetric::Advmss))
            .collect();
        if !metrics.is_empty() {
            attributes.push(RouteAttribute::Metrics(metrics));
        }
        message
    }

    /// Reads the payload of an `RTM_NEWROUTE`: one route for each next hop; empty for other kinds of routes, and for routes
    /// of one type of service.
    pub(crate) fn read(request: Request<'_>, bytes: &[u8]) -> Result<Vec<Route>> {
        let message = RouteMessage::parse(bytes).map_err(|e| request.unreadable(e))?;
        if message.header.tos != 0 {
            return Ok(Vec::new());
        }
        let unreachable = match message.header.kind {
            RouteType::Unicast => false,
            RouteType::Unreachable | RouteType::Prohibit | RouteType::BlackHole | RouteType::Throw => true,
            _ => return Ok(Vec::new()),
        };
        let length = message.header.destination_prefix_length;
        let dst = match message.header.address_family {
            netlink_packet_route::AddressFamily::Inet => {
                Ipv4Net::new(Ipv4Addr::UNSPECIFIED, length).map(IpNet::V4)
            }
            netlink_packet_route::AddressFamily::Inet6 => {
                Ipv6Net::new(Ipv6Addr::UNSPECIFIED, length).map(IpNet::V6)
            }
            _ => return Ok(Vec::new()),
        };
        let mut route = Route::to(dst.map_err(|e| request.unreadable(e))?);
        route.table = Some(u32::from(message.header.table));
        route.scope = Some(message.header.scope.into());
        route.protocol = Some(message.header.protocol.into());
        route.onlink = message.header.flags.contains(RouteFlags::Onlink);
        route.unreachable = unreachable;
        let mut hops = Vec::new();
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => {
                    if let Some(ip) = ip(address) {
                        route.dst = IpNet::new(ip, length).map_err(|e| request.unreadable(e))?;
                    }
                }
                RouteAttribute::Gateway(address) => route.gateway = ip(address),
                RouteAttribute::PrefSource(address) => route.source = ip(address),
                RouteAttribute::Oif(link) => route.link = Some(*link),
                RouteAttribute::Priority(priority) => route.priority = Some(*priority),
                RouteAttribute::Table(table) => route.table = Some(*table),
                RouteAttribute::Metrics(metrics) => {
                    for metric in metrics {
                        match metric {
                            RouteMetric::Mtu(mtu) => route.mtu = Some(*mtu),
                            RouteMetric::Advmss(advmss) => route.advmss = Some(*advmss),
                            _ => {}
                        }
                    }
                }
                RouteAttribute::MultiPath(all) => {
                    hops.extend(all.iter().map(|hop| {
                        let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                            RouteAttribute::Gateway(address) => ip(address),
                            _ => None,
                        });
                        (hop.interface_index, gateway)
                    }));
                }
                _ => {}
            }
        }
        if hops.is_empty() {
            return Ok(vec![route]);
        }
        Ok(hops
            .into_iter()
            .map(|(link, gateway)| Route {
                link: Some(link),
                gateway,
                ..route
            })
            .collect())
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dst.fmt(f)?;
        match self.gateway {
            Some(gateway) => write!(f, " via {gateway}"),
            None => Ok(()),
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

impl Socket {
    /// Adds a route beside existing ones: several next hops of one destination accumulate. If the identical route
    /// exists, the error [`is_exists`](crate::Error::is_exists).
    pub fn add_route(&mut self, route: &Route) -> Result<()> {
        let object = route.to_string();
        let request = Request::new("add route", &object);
        self.execute(
            request,
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE,
        )
    }

    /// Adds a route to a destination that has no route with the same priority and table. If it has one of any origin,
    /// the error [`is_exists`](crate::Error::is_exists).
    pub fn add_only_route(&mut self, route: &Route) -> Result<()> {
        let object = route.to_string();
        self.execute(
            Request::new("add route", &object),
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds a route in place of a route with the same destination, priority and table.
    pub fn replace_route(&mut self, route: &Route) -> Result<()> {
        let object = route.to_string();
        self.execute(
            Request::new("replace route", &object),
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Returns the index of the output link of packets to an address; `None` without a route.
    pub fn link_towards(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let object = address.to_string();
        let request = Request::new("look up route", &object);
        let host = IpNet::from(address);
        let mut question = RouteMessage::default();
        question.header.address_family = Family::raw(Some(Family::of(&address)));
        question.header.destination_prefix_length = host.prefix_len();
        question
            .attributes
            .push(RouteAttribute::Destination(address.into()));
        let found = self.get(request, RouteNetlinkMessage::GetRoute(question), |bytes| {
            Route::read(request, bytes)
        });
        match found {
            Ok(routes) => Ok(routes.first().and_then(|route| route.link)),
            Err(error)
                if error.is_not_found()
                    || matches!(error.errno(), Some(Errno::NETUNREACH | Errno::HOSTUNREACH)) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the first route that matches all properties that `route` sets.
    pub fn delete_route(&mut self, route: &Route) -> Result<()> {
        let object = route.to_string();
        let mut message = route.message();
        // The scope "nowhere" matches every scope.
        message.header.scope = route.scope.map_or(RouteScope::NoWhere, RouteScope::from);
        // The protocol 0 matches every protocol.
        if route.protocol.is_none() {
            message.header.protocol = RouteProtocol::Unspec;
        }
        self.execute(
            Request::new("remove route", &object),
            RouteNetlinkMessage::DelRoute(message),
            0,
        )
    }

    /// Lists all unicast routes of one family in all tables, with one entry for each next hop.
    pub fn routes(&mut self, family: Family) -> Result<Vec<Route>> {
        let mut routes = self.all_routes(family)?;
        routes.retain(|route| !route.unreachable);
        Ok(routes)
    }

    /// Like [`Self::routes`], with those that refuse packets.
    pub fn all_routes(&mut self, family: Family) -> Result<Vec<Route>> {
        let request = Request::new("list routes", "");
        let mut question = RouteMessage::default();
        question.header.address_family = Family::raw(Some(family));
        let routes = self.dump(request, &RouteNetlinkMessage::GetRoute(question), |bytes| {
            Route::read(request, bytes).map(Some)
        })?;
        Ok(routes.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable as _;

    use super::*;

    #[test]
    fn routes_of_all_refusing_kinds_are_read_as_unreachable() {
        let unreachable = Route {
            unreachable: true,
            ..Route::to("10.1.1.0/24".parse().unwrap())
        };
        for kind in [
            RouteType::Unreachable,
            RouteType::Prohibit,
            RouteType::BlackHole,
            RouteType::Throw,
        ] {
            let mut message = unreachable.message();
            message.header.kind = kind;
            let mut bytes = vec![0; message.buffer_len()];
            message.emit(&mut bytes);
            let read = Route::read(Request::new("list routes", ""), &bytes).unwrap();
            let dsts: Vec<_> = read.iter().map(|route| (route.dst, route.unreachable)).collect();
            assert_eq!(dsts, [(unreachable.dst, true)], "{kind:?}");
        }
    }
}
