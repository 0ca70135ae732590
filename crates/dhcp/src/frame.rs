//! DHCP messages in raw packets of UDP over IPv4: the kernel cannot send them, because the link has no address yet.

use std::net::Ipv4Addr;

/// Ports of DHCP (RFC 2131 section 4.1).
pub(crate) const SERVER_PORT: u16 = 67;
pub(crate) const CLIENT_PORT: u16 = 68;

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const VERSION_AND_LENGTH: u8 = 0x45;
const TIME_TO_LIVE: u8 = 64;
const UDP: u8 = 17;

/// Packs a message of the client. `None` if it is too long for a packet.
pub(crate) fn pack(message: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> Option<Vec<u8>> {
    let datagram = u16::try_from(message.len() + UDP_HEADER).ok()?;
    let total = u16::try_from(message.len() + UDP_HEADER + IPV4_HEADER).ok()?;
    let mut packet = vec![VERSION_AND_LENGTH, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0, 0, TIME_TO_LIVE, UDP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let header_sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&header_sum.to_be_bytes());
    let mut udp = Vec::with_capacity(UDP_HEADER);
    udp.extend(CLIENT_PORT.to_be_bytes());
    udp.extend(SERVER_PORT.to_be_bytes());
    udp.extend(datagram.to_be_bytes());
    udp.extend([0, 0]);
    let pseudo = [&[0, UDP][..], &datagram.to_be_bytes()].concat();
    // A checksum of 0 would mean no checksum.
    let sum = match checksum(&[&packet[12..], &pseudo, &udp, message]) {
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp);
    packet.extend_from_slice(message);
    Some(packet)
}

/// The message of a packet for the client. `None` for any other packet.
///
/// The UDP checksum is not verified: the kernel has not computed it yet for packets that never left this machine.
pub(crate) fn unpack(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || header < IPV4_HEADER || *packet.get(9)? != UDP {
        return None;
    }
    let total = usize::from(number(packet, 2)?);
    let fragment = number(packet, 6)? & 0x3fff;
    let datagram = packet.get(header..total)?;
    let length = usize::from(number(datagram, 4)?);
    if fragment != 0 || number(datagram, 0)? != SERVER_PORT || number(datagram, 2)? != CLIENT_PORT {
        return None;
    }
    datagram.get(UDP_HEADER..length)
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The Internet checksum (RFC 1071). All parts but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u32 = 0;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        let low = pair.get(1).copied().unwrap_or_default();
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn from_server(message: &[u8]) -> Vec<u8> {
        let mut packet = pack(message, SERVER, Ipv4Addr::BROADCAST).unwrap();
        packet.copy_within(22..24, 20);
        packet[22..24].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        packet
    }

    #[test]
    fn a_packet_has_valid_checksums() {
        let packet = pack(b"odd", Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST).unwrap();
        assert_eq!(packet.len(), 31);
        assert_eq!(checksum(&[&packet[..20]]), 0);
        assert_eq!(checksum(&[&packet[12..20], &[0, UDP, 0, 11], &packet[20..]]), 0);
    }

    #[test]
    fn a_servers_message_is_unpacked() {
        let mut packet = from_server(b"message");
        // Ethernet pads short packets.
        packet.extend([0; 9]);
        assert_eq!(unpack(&packet), Some(&b"message"[..]));
        let to_server = pack(b"message", SERVER, SERVER).unwrap();
        assert_eq!(unpack(&to_server), None);
        let mut fragment = from_server(b"message");
        fragment[6] = 0x20;
        assert_eq!(unpack(&fragment), None);
    }

    proptest! {
        #[test]
        fn any_bytes_unpack_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = unpack(&bytes);
            if let [first, ..] = &mut bytes[..] {
                *first = 0x45;
            }
            let _ = unpack(&bytes);
        }
    }
}
