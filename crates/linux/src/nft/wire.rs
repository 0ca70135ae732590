//! Binary messages of `nf_tables`: numbers of `<linux/netfilter/nf_tables.h>`, attributes in big endian.

use crate::{nft::Family, route::attributes};

/// `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// `struct nfgenmsg`, which follows the header.
pub(super) const GENERIC_HEADER: usize = 4;
/// Offsets of the flags and the sequence number in the header.
pub(super) const FLAGS: usize = 6;
pub(super) const SEQUENCE: usize = 8;

const NESTED: u16 = 1 << 15;
const ATTRIBUTE_HEADER: usize = 4;

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
pub(super) const BATCH_BEGIN: u16 = 16;
pub(super) const BATCH_END: u16 = 17;
/// `NFNL_BATCH_GENID`.
pub(super) const BATCH_GENERATION: u16 = 1;
/// `NFTA_GEN_ID`.
pub(super) const GENERATION: u16 = 1;

/// `enum nf_tables_msg_types`, with the subsystem's number.
pub(super) mod message {
    const fn own(number: u16) -> u16 {
        super::SUBSYSTEM << 8 | number
    }
    pub(in crate::nft) const NEW_TABLE: u16 = own(0);
    pub(in crate::nft) const DELETE_TABLE: u16 = own(2);
    pub(in crate::nft) const NEW_CHAIN: u16 = own(3);
    pub(in crate::nft) const GET_CHAIN: u16 = own(4);
    pub(in crate::nft) const DELETE_CHAIN: u16 = own(5);
    pub(in crate::nft) const NEW_RULE: u16 = own(6);
    pub(in crate::nft) const GET_RULE: u16 = own(7);
    pub(in crate::nft) const DELETE_RULE: u16 = own(8);
    pub(in crate::nft) const NEW_SET: u16 = own(9);
    pub(in crate::nft) const GET_SET: u16 = own(10);
    pub(in crate::nft) const DELETE_SET: u16 = own(11);
    pub(in crate::nft) const NEW_ELEMENT: u16 = own(12);
    pub(in crate::nft) const GET_ELEMENT: u16 = own(13);
    pub(in crate::nft) const DELETE_ELEMENT: u16 = own(14);
    pub(in crate::nft) const GET_GENERATION: u16 = own(16);
}

pub(super) mod table {
    pub(in crate::nft) const NAME: u16 = 1;
    pub(in crate::nft) const USERDATA: u16 = 6;
}

pub(super) mod chain {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const NAME: u16 = 3;
    pub(in crate::nft) const HOOK: u16 = 4;
    pub(in crate::nft) const TYPE: u16 = 7;
    pub(in crate::nft) const USERDATA: u16 = 12;
    pub(in crate::nft) const HOOK_NUMBER: u16 = 1;
    pub(in crate::nft) const HOOK_PRIORITY: u16 = 2;
}

pub(super) mod rule {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const CHAIN: u16 = 2;
    pub(in crate::nft) const HANDLE: u16 = 3;
    pub(in crate::nft) const EXPRESSIONS: u16 = 4;
    pub(in crate::nft) const USERDATA: u16 = 7;
}

pub(super) mod set {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const NAME: u16 = 2;
    pub(in crate::nft) const FLAGS: u16 = 3;
    pub(in crate::nft) const KEY_TYPE: u16 = 4;
    pub(in crate::nft) const KEY_LENGTH: u16 = 5;
    pub(in crate::nft) const DATA_TYPE: u16 = 6;
    pub(in crate::nft) const DATA_LENGTH: u16 = 7;
    pub(in crate::nft) const ID: u16 = 10;
    pub(in crate::nft) const USERDATA: u16 = 13;
}

pub(super) mod element {
    pub(in crate::nft) const LIST_TABLE: u16 = 1;
    pub(in crate::nft) const LIST_SET: u16 = 2;
    pub(in crate::nft) const LIST_ELEMENTS: u16 = 3;
    pub(in crate::nft) const KEY: u16 = 1;
    pub(in crate::nft) const DATA: u16 = 2;
    pub(in crate::nft) const USERDATA: u16 = 6;
}

/// `NFTA_LIST_ELEM`: an entry of any list.
pub(super) const LIST_ENTRY: u16 = 1;
/// `NFTA_DATA_VALUE` and `NFTA_DATA_VERDICT`.
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;

/// Appends one message to a buffer.
pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    /// Writes a zero-terminated string.
    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.nested_as(kind, |writer| {
            writer.0.extend_from_slice(text.as_bytes());
            writer.0.push(0);
        });
    }

    pub(super) fn number(&mut self, kind: u16, number: u32) {
        self.bytes(kind, &number.to_be_bytes());
    }

    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.nested_as(kind, |writer| writer.0.extend_from_slice(value));
    }

    /// Writes encoded attributes unchanged.
    pub(super) fn raw(&mut self, attributes: &[u8]) {
        self.0.extend_from_slice(attributes);
    }

    /// Writes an attribute that contains others.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Writer<'_>)) {
        self.nested_as(kind | NESTED, fill);
    }

    fn nested_as(&mut self, kind: u16, fill: impl FnOnce(&mut Writer<'_>)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; ATTRIBUTE_HEADER]);
        fill(self);
        // The kernel refuses a value that is too long for an attribute, because the lengths do not match then.
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// Appends a message with sequence number 0. `resource` is the subsystem, in the messages around a transaction.
pub(super) fn append(
    buffer: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    family: Option<Family>,
    resource: u16,
    fill: impl FnOnce(&mut Writer<'_>),
) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; HEADER]);
    buffer.extend_from_slice(&[family.map_or(0, Family::number), 0]);
    buffer.extend_from_slice(&resource.to_be_bytes());
    fill(&mut Writer(buffer));
    let length = u32::try_from(buffer.len() - start).unwrap_or(u32::MAX);
    buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    buffer[start + 4..start + FLAGS].copy_from_slice(&kind.to_ne_bytes());
    buffer[start + FLAGS..start + SEQUENCE].copy_from_slice(&flags.to_ne_bytes());
}

/// Sets the sequence number of the message at `start`.
pub(super) fn set_sequence(buffer: &mut [u8], start: usize, sequence: u32) {
    buffer[start + SEQUENCE..start + SEQUENCE + 4].copy_from_slice(&sequence.to_ne_bytes());
}

/// Returns the attributes of an answer's payload, after `struct nfgenmsg`.
pub(super) fn fields(payload: &[u8]) -> &[u8] {
    payload.get(GENERIC_HEADER..).unwrap_or_default()
}

/// Returns the first attribute `kind` in `bytes`.
pub(super) fn field(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut found = None;
    attributes(bytes, |number, value| {
        if number == kind && found.is_none() {
            found = Some(value);
        }
    });
    found
}

/// Returns an attribute inside another.
pub(super) fn nested(bytes: &[u8], outer: u16, inner: u16) -> Option<&[u8]> {
    field(field(bytes, outer)?, inner)
}

/// Returns a string up to its first zero byte.
pub(super) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}
