//! One ICMP echo request to a neighbour over a given interface.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tokio::net::UdpSocket;

/// Timeout of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// Message types of request and reply, by family (RFC 792, RFC 4443).
const ECHO: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);
/// Header of an echo: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;

/// Waits for the reply to an echo request, until [`TIMEOUT`].
pub(super) async fn ping(address: IpAddr, interface: &str) -> io::Result<()> {
    let socket = open(address)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    let identifier = std::process::id().to_be_bytes();
    let request = request(address, [identifier[2], identifier[3]], sequence());
    socket.send_to(&request, SocketAddr::new(address, 0)).await?;
    let answer = async {
        let mut packet = vec![0; 1500];
        loop {
            let (length, from) = socket.recv_from(&mut packet).await?;
            let message = packet.get(..length).unwrap_or_default();
            if from.ip() == address && answers(message, request, address) {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(TIMEOUT, answer)
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
}

/// Opens a raw socket. tokio has no type for it, but sends and receives on it as on a UDP socket.
fn open(address: IpAddr) -> io::Result<UdpSocket> {
    let (family, protocol) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let raw = socket_with(family, SocketType::RAW, flags, Some(protocol))?;
    UdpSocket::from_std(StdSocket::from(raw))
}

/// A new sequence number, so that a late reply is not taken for that of the next request.
fn sequence() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn request(address: IpAddr, identifier: [u8; 2], sequence: u16) -> [u8; HEADER] {
    let kind = if address.is_ipv4() { ECHO.0 } else { ECHO_V6.0 };
    let [high, low] = sequence.to_be_bytes();
    let mut request = [kind, 0, 0, 0, identifier[0], identifier[1], high, low];
    // The kernel computes the checksum of ICMPv6, which covers the addresses.
    if address.is_ipv4() {
        [request[2], request[3]] = checksum(&request).to_be_bytes();
    }
    request
}

fn answers(packet: &[u8], request: [u8; HEADER], address: IpAddr) -> bool {
    // An IPv4 packet includes the IP header, whose length is in its first byte.
    let (kind, skipped) = match address {
        IpAddr::V4(_) => (
            ECHO.1,
            packet.first().map_or(0, |first| usize::from(first & 0xf) * 4),
        ),
        IpAddr::V6(_) => (ECHO_V6.1, 0),
    };
    let message = packet.get(skipped..).unwrap_or_default();
    message.first() == Some(&kind) && message.get(4..HEADER) == request.get(4..)
}

/// The Internet checksum (RFC 1071).
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reply_to_the_request_counts() {
        let address: IpAddr = "192.0.2.1".parse().expect("an address");
        let request = request(address, [0x12, 0x34], 1);
        assert_eq!(request, [8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1]);
        assert_eq!(checksum(&request), 0);
        let mut packet = vec![0x45; 20];
        packet.extend([0, 0, 0, 0, 0x12, 0x34, 0, 1]);
        assert!(answers(&packet, request, address));
        packet[20] = 8;
        assert!(!answers(&packet, request, address), "our own request");
        packet[20] = 0;
        let next = super::request(address, [0x12, 0x34], 2);
        assert!(!answers(&packet, next, address), "an answer to the one before");
        assert_ne!(sequence(), sequence());
        packet[25] = 0x35;
        assert!(!answers(&packet, request, address), "a reply to another request");
        assert!(!answers(&[], request, address));
        let six: IpAddr = "fe80::1".parse().expect("an address");
        let request = super::request(six, [0x12, 0x34], 1);
        assert_eq!(request, [128, 0, 0, 0, 0x12, 0x34, 0, 1]);
        assert!(answers(&[129, 0, 9, 9, 0x12, 0x34, 0, 1], request, six));
    }
}
