//! The statements of rules, as far as Weft writes or recognises them.

use super::wire::{DATA_VALUE, DATA_VERDICT, LIST_ENTRY, Writer, field, nested, number, text};
use crate::route::attributes;

const NAME: u16 = 1;
const DATA: u16 = 2;

/// Numbers of attributes of the expressions.
mod attribute {
    pub(super) const META_TO: u16 = 1;
    pub(super) const META_KEY: u16 = 2;
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
    pub(super) const LOOKUP_FLAGS: u16 = 5;
    pub(super) const IMMEDIATE_TO: u16 = 1;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;
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
}

/// The register that verdicts are put into.
const VERDICT_REGISTER: u32 = 0;

/// A register of 16 bytes; keys of several parts lie in neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u32);

impl Register {
    /// The first.
    pub const FIRST: Register = Register(1);
    /// Its neighbour.
    pub const SECOND: Register = Register(2);
}

/// What is known about a packet beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Name of the interface it came in by, 16 bytes.
    InputInterfaceName,
    /// IPv4 (2) or IPv6 (10), one byte.
    Protocol,
}

impl Meta {
    fn number(self) -> u32 {
        match self {
            Meta::InputInterfaceName => 6,
            Meta::Protocol => 15,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [Meta::InputInterfaceName, Meta::Protocol]
            .into_iter()
            .find(|meta| meta.number() == number)
    }
}

/// The header of a packet that an offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Ethernet.
    Link,
    /// IPv4 or IPv6.
    Network,
}

impl Header {
    fn number(self) -> u32 {
        match self {
            Header::Link => 0,
            Header::Network => 1,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [Header::Link, Header::Network]
            .into_iter()
            .find(|header| header.number() == number)
    }
}

/// How a rule ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is thrown away.
    Drop,
    /// Back to the calling chain.
    Return,
    /// To another chain and back.
    Jump(String),
    /// To another chain for good.
    Goto(String),
}

impl Verdict {
    fn number(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Return => -5,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
        }
    }

    fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            Verdict::Drop | Verdict::Return => None,
        }
    }
}

/// One step of a rule. A comparison that does not hold ends the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum Expression {
    /// Loads what is known about the packet.
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
    /// Goes on when the register equals `value`, or when it does not.
    Compare {
        register: Register,
        equal: bool,
        value: Vec<u8>,
    },
    /// Goes on when the set contains the registers from this one on, or when it does not.
    Lookup {
        set: String,
        register: Register,
        contained: bool,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Gives the packet the address of the interface that it leaves by.
    Masquerade,
    /// Something that Weft does not write, by the kernel's name for it.
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
            Expression::Meta { .. } => name::META,
            Expression::Payload { .. } => name::PAYLOAD,
            Expression::Mask { .. } => name::BITWISE,
            Expression::Compare { .. } => name::COMPARE,
            Expression::Lookup { .. } => name::LOOKUP,
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
            Expression::Mask { register, mask } => {
                writer.number(a::BITWISE_FROM, register.0);
                writer.number(a::BITWISE_TO, register.0);
                writer.number(a::BITWISE_LENGTH, u32::try_from(mask.len()).unwrap_or_default());
                writer.nest(a::BITWISE_MASK, |writer| writer.bytes(DATA_VALUE, mask));
                writer.nest(a::BITWISE_XOR, |writer| {
                    writer.bytes(DATA_VALUE, &vec![0; mask.len()]);
                });
            }
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

    /// Reads the list of a rule.
    pub(super) fn read_all(list: &[u8]) -> Vec<Self> {
        let mut expressions = Vec::new();
        attributes(list, |kind, entry| {
            if kind == LIST_ENTRY {
                let name = field(entry, NAME).map(text).unwrap_or_default();
                let data = field(entry, DATA).unwrap_or_default();
                expressions.push(Self::read(&name, data).unwrap_or(Expression::Other(name)));
            }
        });
        expressions
    }

    /// `None` for everything that Weft would not have written in this way.
    fn read(name: &str, data: &[u8]) -> Option<Self> {
        use attribute as a;
        let numeric = |kind| field(data, kind).and_then(number);
        let register = |kind| numeric(kind).map(Register);
        Some(match name {
            name::META => Expression::Meta {
                meta: Meta::from_number(numeric(a::META_KEY)?)?,
                to: register(a::META_TO)?,
            },
            name::PAYLOAD => Expression::Payload {
                header: Header::from_number(numeric(a::PAYLOAD_BASE)?)?,
                offset: numeric(a::PAYLOAD_OFFSET)?,
                length: numeric(a::PAYLOAD_LENGTH)?,
                to: register(a::PAYLOAD_TO)?,
            },
            name::BITWISE => {
                let from = register(a::BITWISE_FROM)?;
                let xor = nested(data, a::BITWISE_XOR, DATA_VALUE)?;
                let plain = register(a::BITWISE_TO)? == from
                    && numeric(a::BITWISE_OPERATION).unwrap_or_default() == 0
                    && xor.iter().all(|byte| *byte == 0);
                if !plain {
                    return None;
                }
                Expression::Mask {
                    register: from,
                    mask: nested(data, a::BITWISE_MASK, DATA_VALUE)?.to_vec(),
                }
            }
            name::COMPARE => Expression::Compare {
                register: register(a::COMPARE_FROM)?,
                equal: match numeric(a::COMPARE_OPERATION)? {
                    0 => true,
                    1 => false,
                    _ => return None,
                },
                value: nested(data, a::COMPARE_DATA, DATA_VALUE)?.to_vec(),
            },
            name::LOOKUP => Expression::Lookup {
                set: text(field(data, a::LOOKUP_SET)?),
                register: register(a::LOOKUP_FROM)?,
                contained: match numeric(a::LOOKUP_FLAGS).unwrap_or_default() {
                    0 => true,
                    1 => false,
                    _ => return None,
                },
            },
            name::IMMEDIATE => {
                let verdict = nested(data, a::IMMEDIATE_DATA, DATA_VERDICT)?;
                let chain = || field(verdict, a::VERDICT_CHAIN).map(text);
                let code = field(verdict, a::VERDICT_CODE).and_then(number)?;
                Expression::Verdict(match code.cast_signed() {
                    0 => Verdict::Drop,
                    -5 => Verdict::Return,
                    -3 => Verdict::Jump(chain()?),
                    -4 => Verdict::Goto(chain()?),
                    _ => return None,
                })
            }
            name::MASQUERADE if data.is_empty() => Expression::Masquerade,
            _ => return None,
        })
    }
}
