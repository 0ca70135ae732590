//! Decoding of the expressions of rules.

use super::{
    CONNECTION_STATE, DATA, Expression, FIB_ADDRESS_TYPE, FIB_DESTINATION, Header, Meta, NAME,
    NAT_DESTINATION, NAT_GIVEN, Register, Verdict, attribute as a, name,
};
use crate::{
    nft::{
        Family,
        wire::{DATA_VALUE, DATA_VERDICT, LIST_ENTRY, field, nested, number, text},
    },
    route::attributes,
};

/// The attributes of one expression.
#[derive(Clone, Copy)]
struct Data<'a>(&'a [u8]);

impl Data<'_> {
    fn has(self, kind: u16) -> bool {
        field(self.0, kind).is_some()
    }

    fn number(self, kind: u16) -> Option<u32> {
        field(self.0, kind).and_then(number)
    }

    fn register(self, kind: u16) -> Option<Register> {
        self.number(kind).map(Register)
    }

    fn text(self, kind: u16) -> Option<String> {
        field(self.0, kind).map(text)
    }

    /// A number that must be 0 or 1.
    fn switch(number: u32) -> Option<bool> {
        match number {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Expression {
    /// Decodes the list of expressions of a rule.
    pub(in crate::nft) fn read_all(list: &[u8]) -> Vec<Self> {
        let mut expressions = Vec::new();
        attributes(list, |kind, entry| {
            if kind == LIST_ENTRY {
                let name = field(entry, NAME).map(text).unwrap_or_default();
                let data = Data(field(entry, DATA).unwrap_or_default());
                expressions.push(Self::read(&name, data).unwrap_or(Expression::Other(name)));
            }
        });
        expressions
    }

    /// Returns `None` for expressions that Weft never writes in this form.
    fn read(name: &str, data: Data<'_>) -> Option<Self> {
        match name {
            name::META => read_meta(data),
            name::PAYLOAD => Some(Expression::Payload {
                header: Header::from_number(data.number(a::PAYLOAD_BASE)?)?,
                offset: data.number(a::PAYLOAD_OFFSET)?,
                length: data.number(a::PAYLOAD_LENGTH)?,
                to: data.register(a::PAYLOAD_TO)?,
            }),
            name::BITWISE => read_bits(data),
            name::COMPARE => Some(Expression::Compare {
                register: data.register(a::COMPARE_FROM)?,
                equal: !Data::switch(data.number(a::COMPARE_OPERATION)?)?,
                value: nested(data.0, a::COMPARE_DATA, DATA_VALUE)?.to_vec(),
            }),
            name::LOOKUP => read_lookup(data),
            name::IMMEDIATE => read_verdict(data).map(Expression::Verdict),
            name::MASQUERADE if data.0.is_empty() => Some(Expression::Masquerade),
            name::FIB => {
                let asked = (data.number(a::FIB_RESULT)?, data.number(a::FIB_FLAGS)?);
                let to = data.register(a::FIB_TO)?;
                (asked == (FIB_ADDRESS_TYPE, FIB_DESTINATION)).then_some(Expression::DestinationType { to })
            }
            name::CONNECTION => {
                let to = data.register(a::CONNECTION_TO)?;
                (data.number(a::CONNECTION_KEY)? == CONNECTION_STATE)
                    .then_some(Expression::ConnectionState { to })
            }
            name::NAT => read_nat(data),
            name::MATCH => Some(Expression::Match {
                name: data.text(a::MATCH_NAME)?,
                revision: data.number(a::MATCH_REVISION)?,
                data: field(data.0, a::MATCH_DATA)?.to_vec(),
            }),
            _ => None,
        }
    }
}

fn read_meta(data: Data<'_>) -> Option<Expression> {
    let meta = Meta::from_number(data.number(a::META_KEY)?)?;
    match data.register(a::META_FROM) {
        None => Some(Expression::Meta {
            meta,
            to: data.register(a::META_TO)?,
        }),
        Some(from) => (meta == Meta::Mark).then_some(Expression::SetMark { from }),
    }
}

fn read_bits(data: Data<'_>) -> Option<Expression> {
    let register = data.register(a::BITWISE_FROM)?;
    if data.register(a::BITWISE_TO)? != register || data.number(a::BITWISE_OPERATION).unwrap_or_default() != 0
    {
        return None;
    }
    let mask = nested(data.0, a::BITWISE_MASK, DATA_VALUE)?.to_vec();
    let flip = nested(data.0, a::BITWISE_XOR, DATA_VALUE)?.to_vec();
    Some(if flip.iter().all(|byte| *byte == 0) {
        Expression::Mask { register, mask }
    } else {
        Expression::Flip { register, mask, flip }
    })
}

fn read_lookup(data: Data<'_>) -> Option<Expression> {
    let (set, register) = (data.text(a::LOOKUP_SET)?, data.register(a::LOOKUP_FROM)?);
    let inverted = Data::switch(data.number(a::LOOKUP_FLAGS).unwrap_or_default())?;
    if !data.has(a::LOOKUP_TO) {
        return Some(Expression::Lookup {
            set,
            register,
            contained: !inverted,
        });
    }
    let to = data.register(a::LOOKUP_TO)?;
    (!inverted).then_some(Expression::Map { set, register, to })
}

fn read_verdict(data: Data<'_>) -> Option<Verdict> {
    let verdict = Data(nested(data.0, a::IMMEDIATE_DATA, DATA_VERDICT)?);
    let chain = || verdict.text(a::VERDICT_CHAIN);
    Some(match verdict.number(a::VERDICT_CODE)?.cast_signed() {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -5 => Verdict::Return,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        _ => return None,
    })
}

fn read_nat(data: Data<'_>) -> Option<Expression> {
    let (address, port) = (data.register(a::NAT_ADDRESS)?, data.register(a::NAT_PORT)?);
    let plain = data.number(a::NAT_KIND)? == NAT_DESTINATION
        && data.number(a::NAT_FLAGS).unwrap_or_default() & !NAT_GIVEN == 0
        && data
            .register(a::NAT_LAST_ADDRESS)
            .is_none_or(|last| last == address)
        && data.register(a::NAT_LAST_PORT).is_none_or(|last| last == port);
    let family = Family::from_number(data.number(a::NAT_FAMILY)?)?;
    plain.then_some(Expression::DestinationNat {
        family,
        address,
        port,
    })
}
