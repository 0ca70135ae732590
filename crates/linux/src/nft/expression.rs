//! The expressions of rules that Weft writes or recognises.

mod read;

use super::{
    Family,
    wire::{DATA_VALUE, DATA_VERDICT, LIST_ENTRY, Writer},
};

const NAME: u16 = 1;
const DATA: u16 = 2;

/// Numbers of attributes of the expressions.
mod attribute {
    pub(super) const META_TO: u16 = 1;
    pub(super) const META_KEY: u16 = 2;
    pub(super) const META_FROM: u16 = 3;
    pub(super) const PAYLOAD_TO: u16 = 1;
    pub(super) const PAYLOAD_BASE: u16 = 2;
    pub(super) const PAYLOAD_OFFSET: u16 = 3;
    pub(super) const PAYLOAD_LENGTH: u16 = 4;
    pub(super) const BITWISE_FROM: u16 = 1;
    pub(super) const BITWISE_TO: u16 = 2;
    pub(super) const BITWISE_LENGTH: u16 = 3;
    pub(super) const BITWISE_MASK: u16 = 4;
    pub(super) const BITWISE_XOR: u16 = 5;
    pub(super) const BITWISE_OPERATION: u16 = 6;
    pub(super) const COMPARE_FROM: u16 = 1;
    pub(super) const COMPARE_OPERATION: u16 = 2;
    pub(super) const COMPARE_DATA: u16 = 3;
    pub(super) const LOOKUP_SET: u16 = 1;
    pub(super) const LOOKUP_FROM: u16 = 2;
    pub(super) const LOOKUP_TO: u16 = 3;
    pub(super) const LOOKUP_FLAGS: u16 = 5;
    pub(super) const IMMEDIATE_TO: u16 = 1;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;
    pub(super) const FIB_TO: u16 = 1;
    pub(super) const FIB_RESULT: u16 = 2;
    pub(super) const FIB_FLAGS: u16 = 3;
    pub(super) const CONNECTION_TO: u16 = 1;
    pub(super) const CONNECTION_KEY: u16 = 2;
    pub(super) const NAT_KIND: u16 = 1;
    pub(super) const NAT_FAMILY: u16 = 2;
    pub(super) const NAT_ADDRESS: u16 = 3;
    pub(super) const NAT_LAST_ADDRESS: u16 = 4;
    pub(super) const NAT_PORT: u16 = 5;
    pub(super) const NAT_LAST_PORT: u16 = 6;
    pub(super) const NAT_FLAGS: u16 = 7;
    pub(super) const MATCH_NAME: u16 = 1;
    pub(super) const MATCH_REVISION: u16 = 2;
    pub(super) const MATCH_DATA: u16 = 3;
}

/// Names of the expressions.
mod name {
    pub(super) const META: &str = "meta";
    pub(super) const PAYLOAD: &str = "payload";
    pub(super) const BITWISE: &str = "bitwise";
    pub(super) const COMPARE: &str = "cmp";
    pub(super) const LOOKUP: &str = "lookup";
    pub(super) const IMMEDIATE: &str = "immediate";
    pub(super) const MASQUERADE: &str = "masq";
    pub(super) const FIB: &str = "fib";
    pub(super) const CONNECTION: &str = "ct";
    pub(super) const NAT: &str = "nat";
    pub(super) const MATCH: &str = "match";
}

/// The register of verdicts.
const VERDICT_REGISTER: u32 = 0;

/// Numbers of `fib`: type of the address, and destination address.
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 1 << 1;
/// Number of `ct`: state of the connection.
const CONNECTION_STATE: u32 = 0;
/// Numbers of `nat`: destination translation, and the flags for a given address and port, which the kernel sets by
/// itself.
const NAT_DESTINATION: u32 = 1;
const NAT_GIVEN: u32 = 3;

/// The type of an address of the host itself, as [`Expression::DestinationType`] loads it.
pub const LOCAL_ADDRESS: [u8; 4] = 2_u32.to_ne_bytes();
/// The bits of packets of established connections, and of packets of related connections, as
/// [`Expression::ConnectionState`] loads them.
pub const ESTABLISHED_OR_RELATED: [u8; 4] = 6_u32.to_ne_bytes();

/// A register of 16 bytes, or one of its four words. Keys of several parts are in consecutive registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// The first register of 16 bytes.
    pub const FIRST: Register = Register(1);
    /// The second register of 16 bytes.
    pub const SECOND: Register = Register(2);

    /// Returns the word with this number, counted from the start of the first register. The kernel has two numbers for
    /// some words.
    pub const fn word(number: u32) -> Self {
        if number.is_multiple_of(4) {
            Register(1 + number / 4)
        } else {
            Register(8 + number)
        }
    }
}

/// Properties of a packet besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Name of the input interface, 16 bytes.
    InputInterfaceName,
    /// Name of the output interface, 16 bytes.
    OutputInterfaceName,
    /// Protocol family: IPv4 (2) or IPv6 (10), one byte.
    Protocol,
    /// Transport protocol: TCP (6), UDP (17), ...; one byte.
    Transport,
    /// Mark of the packet, four bytes in host order.
    Mark,
}

impl Meta {
    fn number(self) -> u32 {
        match self {
            Meta::Mark => 3,
            Meta::InputInterfaceName => 6,
            Meta::OutputInterfaceName => 7,
            Meta::Protocol => 15,
            Meta::Transport => 16,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [
            Meta::Mark,
            Meta::InputInterfaceName,
            Meta::OutputInterfaceName,
            Meta::Protocol,
            Meta::Transport,
        ]
        .into_iter()
        .find(|meta| meta.number() == number)
    }
}

/// The header to which an offset refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Ethernet.
    Link,
    /// IPv4 or IPv6.
    Network,
    /// TCP, UDP, ...
    Transport,
}

impl Header {
    fn number(self) -> u32 {
        match self {
            Header::Link => 0,
            Header::Network => 1,
            Header::Transport => 2,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [Header::Link, Header::Network, Header::Transport]
            .into_iter()
            .find(|header| header.number() == number)
    }
}

/// The end of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Drops the packet.
    Drop,
    /// Accepts the packet in this hook's chain.
    Accept,
    /// Returns to the calling chain.
    Return,
    /// Continues in another chain, which may return.
    Jump(String),
    /// Continues in another chain, without a return.
    Goto(String),
}

impl Verdict {
    fn number(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Return => -5,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
        }
    }

    fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            Verdict::Drop | Verdict::Accept | Verdict::Return => None,
        }
    }
}

/// An expression of a rule. A comparison that fails ends the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields explain them")]
pub enum Expression {
    /// Loads a property of the packet.
    Meta { meta: Meta, to: Register },
    /// Loads bytes of the packet.
    Payload {
        header: Header,
        offset: u32,
        length: u32,
        to: Register,
    },
    /// Keeps only the bits of `mask`.
    Mask { register: Register, mask: Vec<u8> },
    /// Keeps only the bits of `mask`, and then inverts the bits of `flip`.
    Flip {
        register: Register,
        mask: Vec<u8>,
        flip: Vec<u8>,
    },
    /// Continues if the register equals `value`, or if it differs.
    Compare {
        register: Register,
        equal: bool,
        value: Vec<u8>,
    },
    /// Continues if the set contains the value of the registers from this one on, or if it does not.
    Lookup {
        set: String,
        register: Register,
        contained: bool,
    },
    /// Loads the value that a map has for the registers from this one on. Ends the rule if the map has none.
    Map {
        set: String,
        register: Register,
        to: Register,
    },
    /// Loads the type of the destination address, for instance [`LOCAL_ADDRESS`].
    DestinationType { to: Register },
    /// Loads the state of the packet's connection, for instance bits of [`ESTABLISHED_OR_RELATED`].
    ConnectionState { to: Register },
    /// Sets the mark of the packet.
    SetMark { from: Register },
    /// Translates the destination to another address and port.
    DestinationNat {
        family: Family,
        address: Register,
        port: Register,
    },
    /// A match of iptables, in the binary form of its module.
    Match {
        name: String,
        revision: u32,
        data: Vec<u8>,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates the source to the address of the output interface.
    Masquerade,
    /// An expression that Weft does not write, by the kernel's name.
    Other(String),
}

impl Expression {
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.nest(LIST_ENTRY, |writer| {
            writer.text(NAME, self.name());
            writer.nest(DATA, |writer| self.write_data(writer));
        });
    }

    fn name(&self) -> &str {
        match self {
            Expression::Meta { .. } | Expression::SetMark { .. } => name::META,
            Expression::Payload { .. } => name::PAYLOAD,
            Expression::Mask { .. } | Expression::Flip { .. } => name::BITWISE,
            Expression::Compare { .. } => name::COMPARE,
            Expression::Lookup { .. } | Expression::Map { .. } => name::LOOKUP,
            Expression::DestinationType { .. } => name::FIB,
            Expression::ConnectionState { .. } => name::CONNECTION,
            Expression::DestinationNat { .. } => name::NAT,
            Expression::Match { .. } => name::MATCH,
            Expression::Verdict(_) => name::IMMEDIATE,
            Expression::Masquerade => name::MASQUERADE,
            Expression::Other(name) => name,
        }
    }

    fn write_data(&self, writer: &mut Writer<'_>) {
        use attribute as a;
        match self {
            Expression::Meta { meta, to } => {
                writer.number(a::META_KEY, meta.number());
                writer.number(a::META_TO, to.0);
            }
            Expression::Payload {
                header,
                offset,
                length,
                to,
            } => {
                writer.number(a::PAYLOAD_TO, to.0);
                writer.number(a::PAYLOAD_BASE, header.number());
                writer.number(a::PAYLOAD_OFFSET, *offset);
                writer.number(a::PAYLOAD_LENGTH, *length);
            }
            Expression::Mask { register, mask } => write_bits(writer, *register, mask, &vec![0; mask.len()]),
            Expression::Flip { register, mask, flip } => write_bits(writer, *register, mask, flip),
            Expression::Compare {
                register,
                equal,
                value,
            } => {
                writer.number(a::COMPARE_FROM, register.0);
                writer.number(a::COMPARE_OPERATION, u32::from(!equal));
                writer.nest(a::COMPARE_DATA, |writer| writer.bytes(DATA_VALUE, value));
            }
            Expression::Lookup {
                set,
                register,
                contained,
            } => {
                writer.text(a::LOOKUP_SET, set);
                writer.number(a::LOOKUP_FROM, register.0);
                writer.number(a::LOOKUP_FLAGS, u32::from(!contained));
            }
            Expression::Map { set, register, to } => {
                writer.text(a::LOOKUP_SET, set);
                writer.number(a::LOOKUP_FROM, register.0);
                writer.number(a::LOOKUP_TO, to.0);
            }
            Expression::DestinationType { to } => {
                writer.number(a::FIB_TO, to.0);
                writer.number(a::FIB_RESULT, FIB_ADDRESS_TYPE);
                writer.number(a::FIB_FLAGS, FIB_DESTINATION);
            }
            Expression::ConnectionState { to } => {
                writer.number(a::CONNECTION_TO, to.0);
                writer.number(a::CONNECTION_KEY, CONNECTION_STATE);
            }
            Expression::SetMark { from } => {
                writer.number(a::META_KEY, Meta::Mark.number());
                writer.number(a::META_FROM, from.0);
            }
            Expression::DestinationNat {
                family,
                address,
                port,
            } => {
                writer.number(a::NAT_KIND, NAT_DESTINATION);
                writer.number(a::NAT_FAMILY, u32::from(family.number()));
                writer.number(a::NAT_ADDRESS, address.0);
                writer.number(a::NAT_PORT, port.0);
            }
            Expression::Match { name, revision, data } => {
                writer.text(a::MATCH_NAME, name);
                writer.number(a::MATCH_REVISION, *revision);
                writer.bytes(a::MATCH_DATA, data);
            }
            Expression::Verdict(verdict) => {
                writer.number(a::IMMEDIATE_TO, VERDICT_REGISTER);
                writer.nest(a::IMMEDIATE_DATA, |writer| {
                    writer.nest(DATA_VERDICT, |writer| {
                        writer.bytes(a::VERDICT_CODE, &verdict.number().to_be_bytes());
                        if let Some(chain) = verdict.chain() {
                            writer.text(a::VERDICT_CHAIN, chain);
                        }
                    });
                });
            }
            Expression::Masquerade | Expression::Other(_) => {}
        }
    }
}

fn write_bits(writer: &mut Writer<'_>, register: Register, mask: &[u8], flip: &[u8]) {
    use attribute as a;
    writer.number(a::BITWISE_FROM, register.0);
    writer.number(a::BITWISE_TO, register.0);
    writer.number(a::BITWISE_LENGTH, u32::try_from(mask.len()).unwrap_or_default());
    writer.nest(a::BITWISE_MASK, |writer| writer.bytes(DATA_VALUE, mask));
    writer.nest(a::BITWISE_XOR, |writer| writer.bytes(DATA_VALUE, flip));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_register_numbers_of_the_kernel() {
        let numbers: Vec<u32> = (0..6).map(|number| Register::word(number).0).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13]);
    }
}
