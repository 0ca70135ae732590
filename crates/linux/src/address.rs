//! Addresses of interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, Parseable};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
};

use crate::{
    Result,
    link::LinkRef,
    route::{Request, Socket},
};

/// IP version 4 or 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of `address`.
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(crate) fn raw(this: Option<Family>) -> AddressFamily {
        match this {
            Some(Family::V4) => AddressFamily::Inet,
            Some(Family::V6) => AddressFamily::Inet6,
            None => AddressFamily::Unspec,
        }
    }
}

/// An address on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub link: u32,
    /// Address with its prefix length.
    pub net: IpNet,
    /// IPv6: duplicate address detection is running, and the address cannot be used yet.
    pub tentative: bool,
    /// IPv6: another station has the address, and the address cannot be used.
    pub duplicate: bool,
    /// The scope exceeds the link and the host.
    pub global: bool,
}

impl Address {
    /// Reads the body of an `RTM_NEWADDR`; `None` for families other than IP.
    pub(crate) fn read(request: Request<'_>, bytes: &[u8]) -> Result<Option<Address>> {
        let message = AddressMessage::parse(bytes).map_err(|e| request.unreadable(e))?;
        let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
        let (mut local, mut address) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        // On point-to-point links, `IFA_ADDRESS` is the address of the peer. Without `IFA_LOCAL` it is the link's own.
        let Some(ip) = local.or(address) else {
            return Ok(None);
        };
        let net = IpNet::new(ip, message.header.prefix_len).map_err(|e| request.unreadable(e))?;
        Ok(Some(Address {
            link: message.header.index,
            net,
            tentative: flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic),
            duplicate: flags.contains(AddressFlags::Dadfailed),
            global: message.header.scope == AddressScope::Universe,
        }))
    }
}

impl Socket {
    /// Adds an address to the link. If the link has the address, the error [`is_exists`](crate::Error::is_exists).
    pub fn add_address<'a>(&mut self, link: impl Into<LinkRef<'a>>, net: IpNet) -> Result<()> {
        let link = link.into();
        let object = format!("{net} on {}", link.name);
        let mut message = message(link.index, net);
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            message
                .attributes
                .push(AddressAttribute::Broadcast(net.broadcast()));
        }
        let request = Request::new("add address", &object);
        self.execute(
            request,
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds an address without IPv6 duplicate address detection, so that the address can be used at once. The caller
    /// must know that no other station has the address. If the link has the address, the error
    /// [`is_exists`](crate::Error::is_exists).
    pub fn add_own_address<'a>(&mut self, link: impl Into<LinkRef<'a>>, net: IpNet) -> Result<()> {
        let link = link.into();
        let object = format!("{net} on {}", link.name);
        let mut message = message(link.index, net);
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
        self.execute(
            Request::new("add address", &object),
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Lists all addresses of all links.
    pub fn all_addresses(&mut self) -> Result<Vec<Address>> {
        let request = Request::new("list addresses", "");
        let mut query = AddressMessage::default();
        query.header.family = Family::raw(None);
        self.dump(request, &RouteNetlinkMessage::GetAddress(query), |bytes| {
            Address::read(request, bytes)
        })
    }

    /// Removes an address from the link.
    pub fn delete_address<'a>(&mut self, link: impl Into<LinkRef<'a>>, net: IpNet) -> Result<()> {
        let link = link.into();
        let object = format!("{net} on {}", link.name);
        let request = Request::new("remove address", &object);
        self.execute(
            request,
            RouteNetlinkMessage::DelAddress(message(link.index, net)),
            0,
        )
    }

    /// Lists the addresses of a link, of one family or of both.
    pub fn addresses<'a>(
        &mut self,
        link: impl Into<LinkRef<'a>>,
        family: Option<Family>,
    ) -> Result<Vec<Address>> {
        let link = link.into();
        let mut query = AddressMessage::default();
        query.header.family = Family::raw(family);
        query.header.index = link.index;
        let request = Request::new("list addresses of", link.name);
        self.dump(request, &RouteNetlinkMessage::GetAddress(query), |bytes| {
            // Kernels before 4.20 do not filter by interface.
            Ok(Address::read(request, bytes)?.filter(|address| address.link == link.index))
        })
    }
}

fn message(index: u32, net: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = Family::raw(Some(Family::of(&net.addr())));
    message.header.prefix_len = net.prefix_len();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(net.addr()));
    message.attributes.push(AddressAttribute::Address(net.addr()));
    message
}
