//! Tracked connections (conntrack): removal of connections that rules translate differently now.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use super::{
    Family, Socket, Table,
    wire::{field, fields},
};
use crate::{Feature, Result, route::Request};

/// Numbers of `<linux/netfilter/nfnetlink_conntrack.h>`.
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

/// Attribute numbers. Their values are in big endian, as in all of netfilter.
mod attribute {
    pub(super) const ORIGINAL: u16 = 1;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const FILTER: u16 = 25;

    pub(super) const TUPLE_ADDRESSES: u16 = 1;
    pub(super) const TUPLE_PROTOCOL: u16 = 2;
    pub(super) const DESTINATION_V4: u16 = 2;
    pub(super) const DESTINATION_V6: u16 = 4;
    pub(super) const PROTOCOL_NUMBER: u16 = 1;
    pub(super) const PROTOCOL_DESTINATION: u16 = 3;

    pub(super) const FILTER_ORIGINAL: u16 = 1;
    pub(super) const FILTER_REPLY: u16 = 2;
}

/// The fields of the filter: the protocol number and the destination port.
const FILTERED: u32 = 1 << 3 | 1 << 5;
const UDP: u8 = 17;

/// The original destination of a connection, before address translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The address; `None` for all addresses.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// A connection, reduced to the fields for its removal.
struct Connection {
    original: Vec<u8>,
    zone: Option<Vec<u8>>,
    id: Option<Vec<u8>>,
}

impl Socket {
    /// Removes the UDP connections of a family to a destination: the next packet starts a new connection. Ignores
    /// connections that end meanwhile.
    pub fn forget_udp(&mut self, family: Family, to: Destination) -> Result<()> {
        // Only the family of the table matters.
        let family = Table { family, name: "" };
        let request = Request::new("list UDP connections", "").needs(Feature::Driver("CONFIG_NF_CT_NETLINK"));
        let found = self.query(
            request,
            GET,
            NLM_F_REQUEST | NLM_F_DUMP,
            family,
            |writer| {
                // Kernels before 5.8 ignore the filter.
                writer.nest(attribute::ORIGINAL, |writer| {
                    writer.nest(attribute::TUPLE_PROTOCOL, |writer| {
                        writer.bytes(attribute::PROTOCOL_NUMBER, &[UDP]);
                        writer.bytes(attribute::PROTOCOL_DESTINATION, &to.port.to_be_bytes());
                    });
                });
                writer.nest(attribute::FILTER, |writer| {
                    writer.bytes(attribute::FILTER_ORIGINAL, &FILTERED.to_ne_bytes());
                    writer.bytes(attribute::FILTER_REPLY, &0_u32.to_ne_bytes());
                });
            },
            |payload| read(fields(payload), to),
        )?;
        for connection in found.into_iter().flatten() {
            let forgotten = self.query(
                Request::new("forget UDP connection", ""),
                DELETE,
                NLM_F_REQUEST | NLM_F_ACK,
                family,
                |writer| {
                    writer.nest(attribute::ORIGINAL, |writer| writer.raw(&connection.original));
                    if let Some(zone) = &connection.zone {
                        writer.bytes(attribute::ZONE, zone);
                    }
                    if let Some(id) = &connection.id {
                        writer.bytes(attribute::ID, id);
                    }
                },
                |_| (),
            );
            match forgotten {
                Err(error) if error.is_not_found() => {}
                forgotten => drop(forgotten?),
            }
        }
        Ok(())
    }
}

/// Reads a connection, if its destination is `to`.
fn read(bytes: &[u8], to: Destination) -> Option<Connection> {
    let original = field(bytes, attribute::ORIGINAL)?;
    let protocol = field(original, attribute::TUPLE_PROTOCOL)?;
    let addresses = field(original, attribute::TUPLE_ADDRESSES)?;
    let is_to_address = to.address.is_none_or(|address| match address {
        IpAddr::V4(ip) => field(addresses, attribute::DESTINATION_V4) == Some(&ip.octets()),
        IpAddr::V6(ip) => field(addresses, attribute::DESTINATION_V6) == Some(&ip.octets()),
    });
    let is_to_port = field(protocol, attribute::PROTOCOL_NUMBER) == Some(&[UDP])
        && field(protocol, attribute::PROTOCOL_DESTINATION) == Some(&to.port.to_be_bytes());
    let owned = |kind| field(bytes, kind).map(<[u8]>::to_vec);
    (is_to_address && is_to_port).then(|| Connection {
        original: original.to_vec(),
        zone: owned(attribute::ZONE),
        id: owned(attribute::ID),
    })
}
