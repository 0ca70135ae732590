//! `ptp`: connects a container with the host alone, by a pair and routes (cni-plugins §15).
//!
//! ```text
//!   host namespace                                       container namespace
//!   veth1a2b3c4d: the gateway's address, /32  ══════════ net1: the address from IPAM
//!   route to the container's address                     route to the gateway, and by way of it to the subnet
//! ```

use cni::{
    Error, json,
    plugin::Call,
    result::{CniResult, Dns, Interface, IpConfig},
};
use ipnet::IpNet;
use linux::{
    address::Family,
    arp,
    link::{Link, LinkRef},
    route::Socket,
    routes::Route,
};
use serde::Deserialize;

use crate::{
    attach::{Addressing, Inspection, LinkPlugin, Made, Rules, Settings, Stage, Step, WireDns, Wish},
    check,
    config::read_config,
    forwarding::enable_forwarding,
    ipam,
    masquerade::Choice,
    messages::{Explain as _, NO_PLUGIN_NAME},
    names::{PTP, kind},
    veth::{self, Pair},
};

/// The scope of what is reached without a gateway.
const LINK_SCOPE: u8 = 253;

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

/// The pair that a config asks for.
struct Line {
    mtu: Option<u32>,
    masquerade: Option<Choice>,
    dns: Option<Dns>,
    /// Known once it is there.
    pair: Pair,
}

impl LinkPlugin for Ptp {
    fn name(&self) -> &'static str {
        PTP
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error> {
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

impl Wish for Line {
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
        veth::occupied(ifname, left)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error> {
        self.pair = stage.make_pair(None, self.mtu)?;
        let name = &self.pair.outer_name;
        stage
            .host
            .set_up(self.pair.outer())
            .explain(|| format!("failed to set \"{name}\" up"))?;
        let outer = stage.host.link_by_index(self.pair.outer_index);
        let outer = outer.explain(|| format!("failed to lookup \"{name}\""))?;
        let outside = Interface {
            name: outer.name,
            mac: outer.mac.map(|mac| mac.to_string()),
            mtu: Some(outer.mtu),
            ..Interface::default()
        };
        Ok(Made {
            link: Some(self.pair.inner.clone()),
            outside: vec![outside],
        })
    }

    /// The container reaches everything by way of a gateway: an address without one leads nowhere.
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
            lead_out(&mut stage.pod.socket, link.into(), ip)?;
            lead_in(&mut stage.host, self.pair.outer(), ip)?;
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

/// Has the container send everything to the gateway, also what is for its own subnet: nobody else is at the other end.
fn lead_out(pod: &mut Socket, link: LinkRef<'_>, ip: &IpConfig) -> Result<(), Error> {
    for route in ways_out(link.index, ip) {
        match route {
            Way::Close(route) => match pod.delete_route(&route) {
                Err(error) if error.is_not_found() => {}
                done => done.explain(|| format!("failed to delete route {route}"))?,
            },
            Way::Open(route) => add(pod, &route).explain(|| format!("failed to add route {route}"))?,
        }
    }
    Ok(())
}

/// A change of the container's routes.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Close(Route),
    Open(Route),
}

/// The changes that an address asks for.
fn ways_out(link: u32, ip: &IpConfig) -> Vec<Way> {
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
    // The kernel makes no route to a subnet of one address, and nobody else is in it.
    if subnet.prefix_len() == subnet.max_prefix_len() {
        return vec![Way::Open(to_gateway)];
    }
    let to_subnet = Route {
        gateway: Some(gateway),
        source,
        ..to(subnet)
    };
    vec![
        Way::Close(to(subnet)),
        Way::Open(to_gateway),
        Way::Open(to_subnet),
    ]
}

/// Makes the host's end the gateway, and leads packets for the address to it.
fn lead_in(host: &mut Socket, outer: LinkRef<'_>, ip: &IpConfig) -> Result<(), Error> {
    if let Some(gateway) = ip.gateway {
        let net = IpNet::from(gateway);
        match host.add_address(outer, net) {
            // Two addresses have the same gateway.
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
    fn everything_goes_by_way_of_the_gateway() {
        let shown: Vec<_> = ways_out(7, &ip("10.1.2.3/24", "10.1.2.1"))
            .into_iter()
            .map(|way| match way {
                Way::Close(route) => format!("close {route}"),
                Way::Open(route) => format!("open {route} from {}", route.source.unwrap()),
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
    fn a_subnet_of_one_address_has_no_route() {
        for (address, gateway) in [("10.1.2.3/32", "10.1.2.1"), ("fd00::3/128", "fd00::1")] {
            let ways = ways_out(7, &ip(address, gateway));
            assert!(
                matches!(&ways[..], [Way::Open(route)] if route.gateway.is_none()),
                "{ways:?}"
            );
        }
    }
}
