//! `ptp`: connects a pod only with the host, through a veth pair and routes (cni-plugins §15).
//!
//! ```text
//!   host namespace                                       container namespace
//!   veth1a2b3c4d: the gateway's address, /32  ══════════ net1: the address from IPAM
//!   route to the container's address                     route to the gateway, and by way of it to the subnet
//! ```

use cni::{
    Error, json,
    plugin::Call,
    result::{CniResult, Dns, IpConfig},
};
use ipnet::IpNet;
use linux::{
    address::Family,
    arp,
    link::{Link, LinkRef},
    route::Socket,
    routes::{LINK_SCOPE, Route},
};
use serde::Deserialize;

use crate::{
    attach::{
        Addressing, CreatedLink, Inspection, LinkPlugin, LinkRequest, Rules, Settings, Stage, Step, WireDns,
        interface_of, occupied_pair,
    },
    check,
    config::read_config,
    forwarding::enable_forwarding,
    ipam,
    masquerade::Choice,
    messages::{Explain as _, NO_PLUGIN_NAME},
    names::{PTP, kind},
    veth::Pair,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ptp;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: i64,
    dns: WireDns,
}

/// The requested pair.
struct Line {
    mtu: Option<u32>,
    masquerade: Option<Choice>,
    dns: Option<Dns>,
    /// Set by `make`.
    pair: Pair,
}

impl LinkPlugin for Ptp {
    fn name(&self) -> &'static str {
        PTP
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        let masquerade = wire.ip_masq.then(|| Choice::named(&wire.ip_masq_backend));
        if !ipam::is_wanted(call) {
            return Err(Error::internal(NO_PLUGIN_NAME));
        }
        Ok(Box::new(Line {
            mtu: u32::try_from(wire.mtu).ok().filter(|mtu| *mtu > 0),
            masquerade: masquerade.transpose()?,
            dns: wire.dns.given(),
            pair: Pair::default(),
        }))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Required
    }

    fn rules(&self, call: &Call) -> Rules {
        Rules::of(call)
    }
}

impl LinkRequest for Line {
    fn settings(&self) -> Settings {
        Settings {
            dns: self.dns.clone(),
            masquerade: self.masquerade,
            leave_down: false,
        }
    }

    fn kind(&self) -> Option<&'static str> {
        Some(kind::VETH)
    }

    fn occupied(&self, ifname: &str, left: &[Step]) -> Error {
        occupied_pair(ifname, left)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        self.pair = stage.make_pair(None, self.mtu)?;
        let name = &self.pair.outer_name;
        stage
            .host
            .set_up(self.pair.outer())
            .explain(|| format!("failed to set \"{name}\" up"))?;
        let outer = stage.host.link_by_index(self.pair.outer_index);
        let outer = outer.explain(|| format!("failed to lookup \"{name}\""))?;
        Ok(CreatedLink {
            link: Some(self.pair.inner.clone()),
            outside: vec![interface_of(&outer)],
        })
    }

    /// Requires a gateway for every address, because the pod's only route is via the gateway.
    fn complete(&self, leased: &mut CniResult) -> Result<(), Error> {
        match leased.ips.iter().find(|ip| ip.gateway.is_none()) {
            Some(ip) => Err(Error::internal(format!(
                "IPAM plugin returned no gateway for {}",
                ip.address
            ))),
            None => Ok(()),
        }
    }

    fn tune(&self, ifname: &str) {
        let _ = arp::enable(ifname);
    }

    fn route(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let families = [Family::V4, Family::V6];
        for family in families {
            if result
                .ips
                .iter()
                .any(|ip| Family::of(&ip.address.addr()) == family)
            {
                enable_forwarding(family)?;
            }
        }
        for ip in &result.ips {
            route_out(&mut stage.pod.socket, link.into(), ip)?;
            route_in(&mut stage.host, self.pair.outer(), ip)?;
        }
        Ok(())
    }

    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        let interfaces = &here.previous.interfaces;
        let expected = interfaces.iter().find(|interface| interface.sandbox.is_none());
        let expected = expected.ok_or_else(|| Error::internal("prevResult has no interface on the host"))?;
        let outer = here
            .host
            .find_link(&expected.name)
            .explain(|| format!("failed to lookup \"{}\"", expected.name))?;
        if outer
            .as_ref()
            .is_none_or(|outer| link.peer != Some(outer.index) || outer.peer != Some(link.index))
        {
            return Err(Error::internal(format!(
                "{} is not the other end of {}",
                expected.name, link.name
            )));
        }
        let routes = here.previous.ips.iter();
        let routes: Vec<_> = routes
            .map(|ip| cni::result::Route::new(IpNet::from(ip.address.addr()), None))
            .collect();
        check::routes(&mut here.host, &routes)
    }
}

/// Routes all packets of the pod via the gateway, also those for its subnet: the host is the only neighbour.
fn route_out(pod: &mut Socket, link: LinkRef<'_>, ip: &IpConfig) -> Result<(), Error> {
    for route in route_changes(link.index, ip) {
        match route {
            RouteChange::Delete(route) => match pod.delete_route(&route) {
                Err(error) if error.is_not_found() => {}
                done => done.explain(|| format!("failed to delete route {route}"))?,
            },
            RouteChange::Add(route) => add(pod, &route).explain(|| format!("failed to add route {route}"))?,
        }
    }
    Ok(())
}

/// A change of the container's routes.
#[derive(Debug, PartialEq, Eq)]
enum RouteChange {
    Delete(Route),
    Add(Route),
}

/// The route changes for an address.
fn route_changes(link: u32, ip: &IpConfig) -> Vec<RouteChange> {
    let Some(gateway) = ip.gateway else {
        return Vec::new();
    };
    let to = |dst| Route {
        link: Some(link),
        ..Route::to(dst)
    };
    let subnet = ip.address.trunc();
    let source = Some(ip.address.addr());
    let to_gateway = Route {
        scope: Some(LINK_SCOPE),
        source,
        ..to(IpNet::from(gateway))
    };
    // The kernel adds no route for a subnet with a single address.
    if subnet.prefix_len() == subnet.max_prefix_len() {
        return vec![RouteChange::Add(to_gateway)];
    }
    let to_subnet = Route {
        gateway: Some(gateway),
        source,
        ..to(subnet)
    };
    vec![
        RouteChange::Delete(to(subnet)),
        RouteChange::Add(to_gateway),
        RouteChange::Add(to_subnet),
    ]
}

/// Assigns the gateway's address to the host end, and routes the pod's address to it.
fn route_in(host: &mut Socket, outer: LinkRef<'_>, ip: &IpConfig) -> Result<(), Error> {
    if let Some(gateway) = ip.gateway {
        let net = IpNet::from(gateway);
        match host.add_address(outer, net) {
            // Several addresses share the gateway.
            Err(error) if error.is_exists() => {}
            done => done.explain(|| format!("failed to add IP addr ({net}) to veth"))?,
        }
    }
    let route = Route {
        link: Some(outer.index),
        scope: Some(LINK_SCOPE),
        ..Route::to(IpNet::from(ip.address.addr()))
    };
    add(host, &route).explain(|| "failed to add route on host".to_owned())
}

fn add(socket: &mut Socket, route: &Route) -> linux::Result<()> {
    match socket.add_route(route) {
        Err(error) if error.is_exists() => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str, gateway: &str) -> IpConfig {
        IpConfig {
            address: address.parse().unwrap(),
            gateway: Some(gateway.parse().unwrap()),
            interface: None,
        }
    }

    #[test]
    fn all_packets_use_the_gateway() {
        let shown: Vec<_> = route_changes(7, &ip("10.1.2.3/24", "10.1.2.1"))
            .into_iter()
            .map(|way| match way {
                RouteChange::Delete(route) => format!("close {route}"),
                RouteChange::Add(route) => format!("open {route} from {}", route.source.unwrap()),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "close 10.1.2.0/24",
                "open 10.1.2.1/32 from 10.1.2.3",
                "open 10.1.2.0/24 via 10.1.2.1 from 10.1.2.3"
            ]
        );
    }

    #[test]
    fn subnet_of_one_address_has_no_route() {
        for (address, gateway) in [("10.1.2.3/32", "10.1.2.1"), ("fd00::3/128", "fd00::1")] {
            let ways = route_changes(7, &ip(address, gateway));
            assert!(
                matches!(&ways[..], [RouteChange::Add(route)] if route.gateway.is_none()),
                "{ways:?}"
            );
        }
    }
}
