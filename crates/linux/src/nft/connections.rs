//! Connections that the kernel remembers (conntrack): forgetting those that rules lead elsewhere by now.

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

/// Attributes. Their numbers are in big endian, as in all of netfilter.
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

/// The fields of the filter: the protocol's number and the destination's port.
const FILTERED: u32 = 1 << 3 | 1 << 5;
const UDP: u8 = 17;

/// Where packets of a connection were sent to, before anybody sent them elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The address; any without one.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// A connection, as far as is needed to forget it.
struct Connection {
    original: Vec<u8>,
    zone: Option<Vec<u8>>,
    id: Option<Vec<u8>>,
}

impl Socket {
    /// Forgets the UDP connections of a family to a destination: the next packet begins a new connection.
    /// Connections that end by themselves meanwhile are fine.
    pub fn forget_udp(&mut self, family: Family, to: Destination) -> Result<()> {
        // The family is all that counts of it.
        let family = Table { family, name: "" };
        let request = Request::new("list UDP connections", "").needs(Feature::Driver("CONFIG_NF_CT_NETLINK"));
        let found = self.ask(
            request,
            GET,
            NLM_F_REQUEST | NLM_F_DUMP,
            family,
            |writer| {
                // Kernels before 5.8 take no notice of it.
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
            let forgotten = self.ask(
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

/// Reads a connection, if it is one to `to`.
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
