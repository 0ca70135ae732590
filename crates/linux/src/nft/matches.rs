//! Expressions that match packets, in nft's form.

use super::{Expression, Header, Meta, Register};
use ipnet::IpNet;

/// Offsets of the addresses in the headers, bytes.
const IPV4_SOURCE: u32 = 12;
const IPV4_DESTINATION: u32 = 16;
const IPV6_SOURCE: u32 = 8;
const IPV6_DESTINATION: u32 = 24;

/// An address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// Loads an address of a packet of a family.
pub fn address(side: Side, is_ipv4: bool, to: Register) -> Expression {
    let (offset, length) = place(side, is_ipv4);
    load(offset, length, to)
}

/// Returns offset and length of an address in the header of a family, bytes.
fn place(side: Side, is_ipv4: bool) -> (u32, u32) {
    match (side, is_ipv4) {
        (Side::Source, true) => (IPV4_SOURCE, 4),
        (Side::Destination, true) => (IPV4_DESTINATION, 4),
        (Side::Source, false) => (IPV6_SOURCE, 16),
        (Side::Destination, false) => (IPV6_DESTINATION, 16),
    }
}

fn load(offset: u32, length: u32, to: Register) -> Expression {
    Expression::Payload {
        header: Header::Network,
        offset,
        length,
        to,
    }
}

/// Compares the first register with a value.
pub fn compare(equal: bool, value: Vec<u8>) -> Expression {
    Expression::Compare {
        register: Register::FIRST,
        equal,
        value,
    }
}

/// Matches packets of the family of `net`.
pub fn protocol(net: &IpNet) -> Vec<Expression> {
    let number = match net {
        IpNet::V4(_) => 2,
        IpNet::V6(_) => 10,
    };
    let meta = Expression::Meta {
        meta: Meta::Protocol,
        to: Register::FIRST,
    };
    vec![meta, compare(true, vec![number])]
}

/// Matches an address inside or outside of `net`. Whole bytes are compared without a mask.
pub fn within(side: Side, net: &IpNet, inside: bool) -> Vec<Expression> {
    let (address, mask) = match net.trunc() {
        IpNet::V4(net) => (net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
        IpNet::V6(net) => (net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
    };
    let (offset, whole) = place(side, matches!(net, IpNet::V4(_)));
    let bits = net.prefix_len();
    let register = Register::FIRST;
    if bits > 0 && bits.is_multiple_of(8) {
        let length = bits / 8;
        return vec![
            load(offset, length.into(), register),
            compare(inside, address[..length.into()].to_vec()),
        ];
    }
    vec![
        load(offset, whole, register),
        Expression::Mask { register, mask },
        compare(inside, address),
    ]
}
