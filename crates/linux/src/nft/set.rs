//! Sets: kinds of keys, keys, elements.

use std::net::IpAddr;

use super::{
    userdata,
    wire::{DATA_VALUE, LIST_ENTRY, element, field, nested},
};
use crate::{link::Mac, route::attributes};

/// Length of an interface name, bytes.
const INTERFACE_NAME: usize = 16;

/// A part of a set's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPart {
    /// Name of an interface.
    InterfaceName,
    /// Ethernet address.
    Mac,
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// TCP, UDP, ...
    Transport,
    /// TCP or UDP port.
    Port,
}

impl KeyPart {
    /// nft's number of the type, which determines how nft prints it.
    fn nft_type(self) -> u32 {
        match self {
            KeyPart::Ipv4 => 7,
            KeyPart::Ipv6 => 8,
            KeyPart::Mac => 9,
            KeyPart::Transport => 12,
            KeyPart::Port => 13,
            KeyPart::InterfaceName => 41,
        }
    }

    /// nft's number of the byte order: 1 for host order, 2 for network order.
    fn nft_order(self) -> u32 {
        match self {
            KeyPart::InterfaceName => 1,
            KeyPart::Mac | KeyPart::Ipv4 | KeyPart::Ipv6 | KeyPart::Transport | KeyPart::Port => 2,
        }
    }

    fn length(self) -> usize {
        match self {
            KeyPart::InterfaceName => INTERFACE_NAME,
            KeyPart::Mac => 6,
            KeyPart::Ipv4 => 4,
            KeyPart::Ipv6 => 16,
            KeyPart::Transport => 1,
            KeyPart::Port => 2,
        }
    }
}

/// Returns nft's type, length in bytes and byte order of a key. Each part of a longer key takes whole registers of 4
/// bytes.
pub(super) fn layout(parts: &[KeyPart]) -> (u32, usize, u32) {
    if let [part] = parts {
        return (part.nft_type(), part.length(), part.nft_order());
    }
    let nft_type = parts.iter().fold(0, |sum, part| sum << 6 | part.nft_type());
    let length = parts.iter().map(|part| part.length().next_multiple_of(4)).sum();
    (nft_type, length, 0)
}

/// A value in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Name of an interface.
    InterfaceName(&'a str),
    /// Ethernet address.
    Mac(Mac),
    /// IPv4 or IPv6 address.
    Ip(IpAddr),
    /// TCP (6), UDP (17), ...
    Transport(u8),
    /// TCP or UDP port.
    Port(u16),
}

impl Value<'_> {
    fn append(self, bytes: &mut Vec<u8>) {
        match self {
            Value::InterfaceName(name) => {
                let end = bytes.len() + INTERFACE_NAME;
                bytes.extend(name.bytes().take(INTERFACE_NAME));
                bytes.resize(end, 0);
            }
            Value::Mac(mac) => bytes.extend_from_slice(&mac.0),
            Value::Ip(IpAddr::V4(ip)) => bytes.extend_from_slice(&ip.octets()),
            Value::Ip(IpAddr::V6(ip)) => bytes.extend_from_slice(&ip.octets()),
            Value::Transport(number) => bytes.push(number),
            Value::Port(port) => bytes.extend_from_slice(&port.to_be_bytes()),
        }
    }
}

/// The key of an element, or its value in a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub(super) Vec<u8>);

impl Key {
    /// Returns the key with these values, in the order of the set's parts.
    pub fn of(values: &[Value<'_>]) -> Self {
        let mut bytes = Vec::new();
        for value in values {
            value.append(&mut bytes);
            if values.len() > 1 {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        Key(bytes)
    }

    /// Returns the name in the first part, if the first part is an interface name.
    pub fn interface_name(&self) -> Option<String> {
        self.0.get(..INTERFACE_NAME).map(super::wire::text)
    }

    /// Returns true if the first part has this value.
    pub fn begins_with(&self, value: Value<'_>) -> bool {
        let mut bytes = Vec::new();
        value.append(&mut bytes);
        self.0.starts_with(&bytes)
    }
}

/// A new set.
#[derive(Debug, Clone, Copy)]
pub struct SetSpec<'a> {
    /// The name in the table.
    pub name: &'a str,
    /// The parts of its keys.
    pub key: &'a [KeyPart],
    /// The parts of a map's values; none in a set.
    pub data: &'a [KeyPart],
    /// The purpose, for administrators.
    pub comment: &'a str,
}

/// An element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key.
    pub key: Key,
    /// The value in a map.
    pub data: Option<Key>,
    /// The comment, or an empty text.
    pub comment: String,
}

/// Decodes the elements of one answer.
pub(super) fn read_elements(bytes: &[u8]) -> Vec<Element> {
    let mut elements = Vec::new();
    let list = field(bytes, element::LIST_ELEMENTS).unwrap_or_default();
    attributes(list, |kind, entry| {
        if kind != LIST_ENTRY {
            return;
        }
        if let Some(key) = nested(entry, element::KEY, DATA_VALUE) {
            elements.push(Element {
                key: Key(key.to_vec()),
                data: nested(entry, element::DATA, DATA_VALUE).map(|data| Key(data.to_vec())),
                comment: field(entry, element::USERDATA)
                    .and_then(userdata::read_comment)
                    .unwrap_or_default(),
            });
        }
    });
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_numbers_of_nft() {
        assert_eq!(layout(&[KeyPart::InterfaceName]), (41, 16, 1));
        assert_eq!(layout(&[KeyPart::InterfaceName, KeyPart::Mac]), (0xa49, 24, 0));
        assert_eq!(layout(&[KeyPart::Ipv6]), (8, 16, 2));
        assert_eq!(layout(&[KeyPart::Transport, KeyPart::Port]), (0x30d, 8, 0));
        assert_eq!(layout(&[KeyPart::Ipv4, KeyPart::Port]), (0x1cd, 8, 0));
    }

    #[test]
    fn part_of_a_key_takes_whole_registers() {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let port = Value::InterfaceName("veth1");
        let key = Key::of(&[port, Value::Mac(mac)]);
        assert_eq!(key.0, *b"veth1\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\x01\0\0");
        assert!(key.begins_with(port));
        assert!(!key.begins_with(Value::InterfaceName("veth")));
        assert_eq!(Key::of(&[Value::Mac(mac)]).0.len(), 6);
    }
}
