//! The neighbour table: which Ethernet address an IP address has on a link.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, Parseable};
use netlink_packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
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
    /// Its address.
    pub ip: IpAddr,
    /// Its Ethernet address, if known.
    pub mac: Option<Mac>,
    /// Set by hand, for good.
    pub permanent: bool,
}

impl Socket {
    /// Enters a neighbour for good, in place of what the kernel knew.
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

    /// Forgets a neighbour.
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

    /// The neighbours of a link.
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

fn message(link: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = Family::raw(Some(Family::of(&ip)));
    message.header.ifindex = link;
    message
        .attributes
        .push(NeighbourAttribute::Destination(ip.into()));
    message
}
