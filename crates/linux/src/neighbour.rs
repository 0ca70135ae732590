//! The neighbour table: Ethernet addresses of IP addresses on a link, and for a VXLAN the hosts of Ethernet addresses.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, Parseable};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};

use crate::{
    Result,
    address::Family,
    link::{LinkRef, Mac},
    route::{Request, Socket},
};

/// A neighbour on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// IP address.
    pub ip: IpAddr,
    /// Ethernet address, if resolved.
    pub mac: Option<Mac>,
    /// The entry is permanent.
    pub permanent: bool,
}

/// The host that owns an Ethernet address behind a VXLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forwarding {
    /// The Ethernet address.
    pub mac: Mac,
    /// The host's address.
    pub host: IpAddr,
}

impl Socket {
    /// Sets the host of an Ethernet address in a VXLAN, in place of another host.
    pub fn set_forwarding<'a>(&mut self, link: impl Into<LinkRef<'a>>, entry: Forwarding) -> Result<()> {
        let link = link.into();
        let object = format!("{} on {}", entry.mac, link.name);
        let mut message = forwarding(link.index, entry);
        message.header.state = NeighbourState::Permanent;
        let request = Request::new("set forwarding of", &object);
        self.execute(
            request,
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Removes the host of an Ethernet address from a VXLAN.
    pub fn delete_forwarding<'a>(&mut self, link: impl Into<LinkRef<'a>>, entry: Forwarding) -> Result<()> {
        let link = link.into();
        let object = format!("{} on {}", entry.mac, link.name);
        let message = RouteNetlinkMessage::DelNeighbour(forwarding(link.index, entry));
        self.execute(Request::new("remove forwarding of", &object), message, 0)
    }

    /// Lists the hosts of a VXLAN.
    pub fn forwardings<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<Vec<Forwarding>> {
        let link = link.into();
        let request = Request::new("list forwarding of", link.name);
        let mut question = NeighbourMessage::default();
        question.header.family = AddressFamily::Bridge;
        self.dump(request, &RouteNetlinkMessage::GetNeighbour(question), |bytes| {
            let message = NeighbourMessage::parse(bytes).map_err(|e| request.unreadable(e))?;
            let entry = read(&message).and_then(|neighbour| {
                Some(Forwarding {
                    mac: neighbour.mac?,
                    host: neighbour.ip,
                })
            });
            Ok(entry.filter(|_| message.header.ifindex == link.index))
        })
    }

    /// Sets a permanent neighbour, in place of another entry.
    pub fn set_neighbour<'a>(&mut self, link: impl Into<LinkRef<'a>>, ip: IpAddr, mac: Mac) -> Result<()> {
        let link = link.into();
        let object = format!("{ip} on {}", link.name);
        let mut message = message(link.index, ip);
        message.header.state = NeighbourState::Permanent;
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        let request = Request::new("set neighbour", &object);
        self.execute(
            request,
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Removes a neighbour.
    pub fn delete_neighbour<'a>(&mut self, link: impl Into<LinkRef<'a>>, ip: IpAddr) -> Result<()> {
        let link = link.into();
        let object = format!("{ip} on {}", link.name);
        let request = Request::new("remove neighbour", &object);
        self.execute(
            request,
            RouteNetlinkMessage::DelNeighbour(message(link.index, ip)),
            0,
        )
    }

    /// Lists the neighbours of a link.
    pub fn neighbours<'a>(&mut self, link: impl Into<LinkRef<'a>>, family: Family) -> Result<Vec<Neighbour>> {
        let link = link.into();
        let request = Request::new("list neighbours of", link.name);
        let mut question = NeighbourMessage::default();
        question.header.family = Family::raw(Some(family));
        self.dump(request, &RouteNetlinkMessage::GetNeighbour(question), |bytes| {
            let message = NeighbourMessage::parse(bytes).map_err(|e| request.unreadable(e))?;
            Ok(if message.header.ifindex == link.index {
                read(&message)
            } else {
                None
            })
        })
    }
}

fn read(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => ip = Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => ip = Some((*v6).into()),
            // Entries of a VXLAN have no address family.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => ip = address(bytes),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok().map(Mac),
            _ => {}
        }
    }
    Some(Neighbour {
        ip: ip?,
        mac,
        permanent: message.header.state == NeighbourState::Permanent,
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn forwarding(link: u32, entry: Forwarding) -> NeighbourMessage {
    let mut message = message(link, entry.host);
    message.header.family = AddressFamily::Bridge;
    message.header.flags = NeighbourFlags::Own;
    message
        .attributes
        .push(NeighbourAttribute::LinkLayerAddress(entry.mac.0.to_vec()));
    message
}

fn message(link: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = Family::raw(Some(Family::of(&ip)));
    message.header.ifindex = link;
    message
        .attributes
        .push(NeighbourAttribute::Destination(ip.into()));
    message
}
