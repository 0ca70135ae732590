//! A server's lease: address, routes, name servers and times of its DHCPACK (cni-plugins §8).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cni::result::{CniResult, Dns, IpConfig, Route};
use dhcproto::v4::{DhcpOption, Message, OptionCode};
use ipnet::{IpNet, Ipv4Net};
use linux::routes::LINK_SCOPE;
use serde::{Deserialize, Serialize};

/// Duration of a lease without option 51.
const DEFAULT_LENGTH: Duration = Duration::from_mins(60);
/// Minimum time to the renewal: a server with leases of one second must not keep the node busy. Also the minimum time
/// after it, for the answers of servers.
const SHORTEST: Duration = Duration::from_secs(5);
/// The duration of an infinite lease (RFC 2131 section 3.3).
const INFINITE: u32 = u32::MAX;
/// Maximum number of accepted name servers, search domains and routes, each.
const MOST: usize = 64;

/// The reason for an unusable lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The mask is missing. The address cannot be set without it.
    #[error("DHCP option Subnet Mask not found in DHCPACK")]
    NoMask,
    /// The bits of the mask are not contiguous.
    #[error("DHCP option Subnet Mask of DHCPACK is no mask: {0}")]
    Mask(Ipv4Addr),
    /// The address is no host address.
    #[error("no host can have the address of DHCPACK: {0}")]
    Address(Ipv4Addr),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// The address with its prefix length.
    pub(crate) address: Ipv4Net,
    /// The first router.
    pub(crate) gateway: Option<Ipv4Addr>,
    /// All routes, including the default route.
    pub(crate) routes: Vec<LeasedRoute>,
    /// Name servers and domains.
    pub(crate) dns: LeasedDns,
    /// The server of the lease.
    pub(crate) server: Ipv4Addr,
    /// Times of the lease; `None` if it is infinite.
    pub(crate) times: Option<Times>,
}

/// A route of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasedRoute {
    pub(crate) to: Ipv4Net,
    /// The gateway; `None` for an on-link destination.
    pub(crate) by: Option<Ipv4Addr>,
}

/// Name servers and domains of a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasedDns {
    pub(crate) servers: Vec<Ipv4Addr>,
    pub(crate) domain: String,
    pub(crate) search: Vec<String>,
}

/// Times of a lease since its start: T1 ≤ T2 ≤ expiry. From T1 the client renews at the server, from T2 it requests a
/// lease from any server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) renew: Duration,
    pub(crate) rebind: Duration,
    pub(crate) end: Duration,
}

impl Lease {
    /// Reads a DHCPACK.
    pub(crate) fn read(message: &Message) -> Result<Self, Unusable> {
        let ip = message.yiaddr();
        if ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback() {
            return Err(Unusable::Address(ip));
        }
        let Some(DhcpOption::SubnetMask(mask)) = message.opts().get(OptionCode::SubnetMask) else {
            return Err(Unusable::NoMask);
        };
        let address = Ipv4Net::with_netmask(ip, *mask).map_err(|_| Unusable::Mask(*mask))?;
        let gateway = match message.opts().get(OptionCode::Router) {
            Some(DhcpOption::Router(routers)) => routers.first().copied(),
            _ => None,
        };
        Ok(Lease {
            address,
            gateway,
            routes: routes(message, gateway),
            dns: dns(message),
            server: server(message).unwrap_or_else(|| message.siaddr()),
            times: times(message),
        })
    }

    /// The lease as the result of an IPAM plugin. All routes get the metric.
    pub(crate) fn result(&self, priority: u32) -> CniResult {
        let route = |route: &LeasedRoute| Route {
            priority,
            scope: route.by.is_none().then_some(LINK_SCOPE),
            ..Route::new(IpNet::V4(route.to), route.by.map(IpAddr::V4))
        };
        CniResult {
            ips: vec![IpConfig {
                address: IpNet::V4(self.address),
                gateway: self.gateway.map(IpAddr::V4),
                interface: None,
            }],
            routes: self.routes.iter().map(route).collect(),
            dns: Dns {
                domain: self.dns.domain.clone(),
                nameservers: self.dns.servers.iter().map(ToString::to_string).collect(),
                options: Vec::new(),
                search: self.dns.search.clone(),
            },
            interfaces: Vec::new(),
        }
    }
}

/// The server identifier of a message.
pub(crate) fn server(message: &Message) -> Option<Ipv4Addr> {
    match message.opts().get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
        _ => None,
    }
}

/// Option 121 alone if it is present (RFC 3442); otherwise option 33, and the default route through the router.
fn routes(message: &Message, gateway: Option<Ipv4Addr>) -> Vec<LeasedRoute> {
    let by = |router: Ipv4Addr| Some(router).filter(|router| !router.is_unspecified());
    if let Some(DhcpOption::ClasslessStaticRoute(routes)) =
        message.opts().get(OptionCode::ClasslessStaticRoute)
    {
        let route = |(to, router): &(Ipv4Net, Ipv4Addr)| LeasedRoute {
            to: to.trunc(),
            by: by(*router),
        };
        return routes.iter().take(MOST).map(route).collect();
    }
    let mut routes = Vec::new();
    if let Some(DhcpOption::StaticRoutingTable(table)) = message.opts().get(OptionCode::StaticRoutingTable) {
        let classful = table.iter().take(MOST).filter_map(|(to, router)| {
            let to = Ipv4Net::new(*to, classful_prefix(*to)?).ok()?.trunc();
            Some(LeasedRoute { to, by: by(*router) })
        });
        routes.extend(classful);
    }
    if let Some(gateway) = gateway.and_then(by) {
        routes.push(LeasedRoute {
            to: Ipv4Net::default(),
            by: Some(gateway),
        });
    }
    routes
}

/// The prefix length of an address of class A, B or C.
fn classful_prefix(address: Ipv4Addr) -> Option<u8> {
    match address.octets()[0] {
        1..128 => Some(8),
        128..192 => Some(16),
        192..224 => Some(24),
        _ => None,
    }
}

fn dns(message: &Message) -> LeasedDns {
    let mut dns = LeasedDns::default();
    if let Some(DhcpOption::DomainNameServer(servers)) = message.opts().get(OptionCode::DomainNameServer) {
        dns.servers = servers.iter().take(MOST).copied().collect();
    }
    if let Some(DhcpOption::DomainName(name)) = message.opts().get(OptionCode::DomainName) {
        dns.domain = domain(name).unwrap_or_default();
    }
    if let Some(DhcpOption::DomainSearch(names)) = message.opts().get(OptionCode::DomainSearch) {
        let names = names.iter().take(MOST);
        dns.search = names.filter_map(|name| domain(&name.to_string())).collect();
    }
    dns
}

/// A domain that is safe in a resolver's file. `None` for any other text: a line break, for example, would start a new
/// line there.
fn domain(name: &str) -> Option<String> {
    let name = name.trim_end_matches(['.', '\0']);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!name.is_empty() && name.len() <= 253 && name.chars().all(fits)).then(|| name.to_owned())
}

fn times(message: &Message) -> Option<Times> {
    let options = message.opts();
    let seconds = |code| match options.get(code) {
        Some(
            DhcpOption::AddressLeaseTime(seconds)
            | DhcpOption::Renewal(seconds)
            | DhcpOption::Rebinding(seconds),
        ) => Some(*seconds),
        _ => None,
    };
    let length = |code| seconds(code).map(|seconds| Duration::from_secs(seconds.into()));
    if seconds(OptionCode::AddressLeaseTime) == Some(INFINITE) {
        return None;
    }
    let end = length(OptionCode::AddressLeaseTime).unwrap_or(DEFAULT_LENGTH);
    let end = end.max(SHORTEST * 2);
    let rebind = length(OptionCode::Rebinding).filter(|rebind| *rebind + SHORTEST <= end);
    let rebind = rebind.unwrap_or(end * 85 / 100);
    let renew = length(OptionCode::Renewal).filter(|renew| *renew <= rebind);
    let renew = renew.unwrap_or_else(|| (end / 2).min(rebind)).max(SHORTEST);
    Some(Times {
        renew,
        rebind: rebind.max(renew),
        end,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ack(options: impl IntoIterator<Item = DhcpOption>) -> Message {
        let mut message = Message::default();
        message.set_yiaddr([10, 1, 0, 7]);
        for option in options {
            message.opts_mut().insert(option);
        }
        message
    }

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn mask() -> DhcpOption {
        DhcpOption::SubnetMask(ip("255.255.255.0"))
    }

    fn shown(lease: &Lease) -> Vec<String> {
        let routes = lease.result(0).routes;
        let show = |route: &Route| {
            let by = route.gw.map_or("link".to_owned(), |gw| gw.to_string());
            format!("{} by {by} scope {:?}", route.dst, route.scope)
        };
        routes.iter().map(show).collect()
    }

    #[test]
    fn a_router_is_gateway_and_default_route() {
        // cni-plugins#45
        let lease = Lease::read(&ack([
            mask(),
            DhcpOption::Router(vec![ip("10.1.0.1"), ip("10.1.0.2")]),
        ]))
        .unwrap();
        let result = lease.result(7);
        assert_eq!(result.ips[0].address.to_string(), "10.1.0.7/24");
        assert_eq!(result.ips[0].gateway, Some(IpAddr::V4(ip("10.1.0.1"))));
        assert_eq!(result.routes[0].priority, 7);
        assert_eq!(shown(&lease), ["0.0.0.0/0 by 10.1.0.1 scope None"]);
    }

    #[test]
    fn classless_routes_replace_the_routers() {
        // cni-plugins#45
        let lease = Lease::read(&ack([
            mask(),
            DhcpOption::Router(vec![ip("10.1.0.1")]),
            DhcpOption::StaticRoutingTable(vec![(ip("10.9.0.0"), ip("10.1.0.3"))]),
            DhcpOption::ClasslessStaticRoute(vec![
                ("10.8.0.0/16".parse().unwrap(), ip("10.1.0.2")),
                ("10.7.0.0/16".parse().unwrap(), ip("0.0.0.0")),
            ]),
        ]))
        .unwrap();
        assert_eq!(lease.gateway, Some(ip("10.1.0.1")));
        assert_eq!(
            shown(&lease),
            [
                "10.8.0.0/16 by 10.1.0.2 scope None",
                "10.7.0.0/16 by link scope Some(253)"
            ]
        );
    }

    #[test]
    fn old_static_routes_have_masks_of_their_class() {
        let lease = Lease::read(&ack([
            mask(),
            DhcpOption::Router(vec![ip("10.1.0.1")]),
            DhcpOption::StaticRoutingTable(vec![
                (ip("9.1.2.3"), ip("10.1.0.2")),
                (ip("172.16.5.0"), ip("10.1.0.2")),
                (ip("192.168.7.0"), ip("10.1.0.2")),
                (ip("224.0.0.0"), ip("10.1.0.2")),
            ]),
        ]))
        .unwrap();
        let to: Vec<_> = lease.routes.iter().map(|route| route.to.to_string()).collect();
        assert_eq!(to, ["9.0.0.0/8", "172.16.0.0/16", "192.168.7.0/24", "0.0.0.0/0"]);
    }

    #[test]
    fn an_unusable_lease_is_refused() {
        assert_eq!(
            Lease::read(&ack([])).unwrap_err().to_string(),
            "DHCP option Subnet Mask not found in DHCPACK"
        );
        let holes = DhcpOption::SubnetMask(ip("255.0.255.0"));
        assert_eq!(Lease::read(&ack([holes])), Err(Unusable::Mask(ip("255.0.255.0"))));
        let mut nowhere = ack([mask()]);
        nowhere.set_yiaddr([127, 0, 0, 1]);
        assert_eq!(Lease::read(&nowhere), Err(Unusable::Address(ip("127.0.0.1"))));
    }

    #[test]
    fn times_have_defaults_and_an_order() {
        let times = |options: Vec<DhcpOption>| {
            let times = super::times(&ack(options))?;
            Some([times.renew, times.rebind, times.end].map(|time| time.as_secs()))
        };
        assert_eq!(times(vec![]), Some([1800, 3060, 3600]));
        assert_eq!(
            times(vec![DhcpOption::AddressLeaseTime(100)]),
            Some([50, 85, 100])
        );
        assert_eq!(times(vec![DhcpOption::AddressLeaseTime(INFINITE)]), None);
        assert_eq!(times(vec![DhcpOption::AddressLeaseTime(0)]), Some([5, 8, 10]));
        let odd = vec![
            DhcpOption::AddressLeaseTime(100),
            DhcpOption::Renewal(90),
            DhcpOption::Rebinding(80),
        ];
        assert_eq!(times(odd), Some([50, 80, 100]));
        let late = vec![
            DhcpOption::AddressLeaseTime(100),
            DhcpOption::Renewal(100),
            DhcpOption::Rebinding(100),
        ];
        assert_eq!(times(late), Some([50, 85, 100]));
    }

    #[test]
    fn a_domain_cannot_bring_lines_of_its_own() {
        assert_eq!(domain("pods.example.").as_deref(), Some("pods.example"));
        assert_eq!(domain("a\nnameserver 10.0.0.9"), None);
        assert_eq!(domain(""), None);
    }
}
