//! One DNS query to one name server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use tokio::net::UdpSocket;

/// Timeout of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// Record types (RFC 1035, RFC 3596).
const A: u16 = 1;
const NS: u16 = 2;
const AAAA: u16 = 28;
/// Class Internet.
const IN: u16 = 1;
/// Port of name servers.
const PORT: u16 = 53;
/// Length of a message's header.
const HEADER: usize = 12;
/// Header flags: recursion desired, response, truncated, response code.
const RECURSE: u16 = 0x0100;
const ANSWER: u16 = 0x8000;
const TRUNCATED: u16 = 0x0200;
const CODE: u16 = 0x000f;
/// A zone rather than a host: this name has no addresses.
const ROOT_SERVERS: &str = crate::names::PROBE_HOST;

/// Whether the server resolves the name: the default name by its NS records, others by their addresses.
pub(super) async fn look_up(server: &str, host: &str) -> io::Result<()> {
    let server = address(server)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no address of a name server"))?;
    if host.trim_end_matches('.') == ROOT_SERVERS {
        return ask(server, host, NS).await;
    }
    match ask(server, host, A).await {
        Ok(()) => Ok(()),
        // A server that does not answer the first query will not answer the second one either.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        Err(_) => ask(server, host, AAAA).await,
    }
}

/// The socket address of a name server; a link-local one has an interface: `fe80::1%eth1`.
fn address(server: &str) -> Option<SocketAddr> {
    if let Ok(address) = server.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, PORT));
    }
    let (address, interface) = server.split_once('%')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let mut socket = linux::route::Socket::open().ok()?;
    let link = socket.find_link(interface).ok()??;
    Some(SocketAddrV6::new(address, PORT, 0, link.index).into())
}

async fn ask(server: SocketAddr, host: &str, kind: u16) -> io::Result<()> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    // An unpredictable identifier, so that no third party can answer without reading the query.
    let identifier = linux::random::bytes().map_err(io::Error::other)?;
    let question = question(host, kind, identifier)?;
    socket.send(&question).await?;
    let answer = async {
        let mut packet = vec![0; 4096];
        loop {
            let length = socket.recv(&mut packet).await?;
            if let Some(outcome) = read(packet.get(..length).unwrap_or_default(), &question) {
                return outcome;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, answer)
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
}

fn question(host: &str, kind: u16, identifier: [u8; 2]) -> io::Result<Vec<u8>> {
    let mut message = identifier.to_vec();
    for number in [RECURSE, 1, 0, 0, 0] {
        message.extend(number.to_be_bytes());
    }
    for label in host.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).unwrap_or(u8::MAX);
        if !(1..=63).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no host name"));
        }
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend(IN.to_be_bytes());
    Ok(message)
}

/// The result of a packet for the query; `None` if it answers another one.
fn read(packet: &[u8], question: &[u8]) -> Option<io::Result<()>> {
    let number = |at: usize| -> Option<u16> {
        let bytes = packet.get(at..at + 2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    };
    let flags = number(2)?;
    let same = packet.get(..2) == question.get(..2)
        && flags & ANSWER != 0
        && number(4) == Some(1)
        && packet
            .get(HEADER..question.len())?
            .eq_ignore_ascii_case(question.get(HEADER..)?);
    if !same {
        return None;
    }
    let answers = number(6)?;
    Some(match flags & CODE {
        0 if answers > 0 || flags & TRUNCATED != 0 => Ok(()),
        0 => Err(io::Error::other("the name has no such records")),
        3 => Err(io::Error::other("the name does not exist")),
        code => Err(io::Error::other(format!("the server refuses with code {code}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: &[u8], flags: u16, answers: u16) -> Vec<u8> {
        let mut packet = question.to_vec();
        packet[2..4].copy_from_slice(&(ANSWER | flags).to_be_bytes());
        packet[6..8].copy_from_slice(&answers.to_be_bytes());
        packet
    }

    #[test]
    fn query_has_wire_format() {
        let message = question("a.example.", NS, [7, 8]).expect("a question");
        assert_eq!(
            message,
            b"\x07\x08\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x02\x00\x01"
        );
        assert!(question("a..b", A, [0, 0]).is_err());
        assert!(question(&"a".repeat(64), A, [0, 0]).is_err());
    }

    #[test]
    fn answer_needs_records() {
        let asked = question("host.example", A, [1, 2]).expect("a question");
        let outcome =
            |packet: &[u8]| read(packet, &asked).map(|outcome| outcome.map_err(|error| error.to_string()));
        assert_eq!(outcome(&answer(&asked, 0, 1)), Some(Ok(())));
        assert_eq!(outcome(&answer(&asked, TRUNCATED, 0)), Some(Ok(())));
        assert_eq!(
            outcome(&answer(&asked, 0, 0)),
            Some(Err("the name has no such records".to_owned()))
        );
        assert_eq!(
            outcome(&answer(&asked, 3, 0)),
            Some(Err("the name does not exist".to_owned()))
        );
        assert_eq!(
            outcome(&answer(&asked, 5, 0)),
            Some(Err("the server refuses with code 5".to_owned()))
        );
        assert_eq!(outcome(&asked), None, "our own question");
        let other = question("other.example", A, [1, 2]).expect("a question");
        assert_eq!(outcome(&answer(&other, 0, 1)), None);
        assert_eq!(outcome(b"\x01\x02"), None);
    }

    #[tokio::test]
    async fn identifiers_of_queries_differ() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
        let address = server.local_addr().expect("an address");
        let mut identifiers = Vec::new();
        // Equal ones by chance are as unlikely as 1 in 2^48.
        for _ in 0..4 {
            let serve = async {
                let mut packet = [0; 512];
                let (length, client) = server.recv_from(&mut packet).await.expect("a query");
                let packet = answer(&packet[..length], 0, 1);
                server.send_to(&packet, client).await.expect("an answer");
                [packet[0], packet[1]]
            };
            let (outcome, identifier) = tokio::join!(ask(address, "host.example", A), serve);
            outcome.expect("the answer");
            identifiers.push(identifier);
        }
        identifiers.dedup();
        assert!(identifiers.len() > 1, "{identifiers:?}");
    }

    #[test]
    fn server_address_is_parsed() {
        assert_eq!(address("192.0.2.1"), Some(([192, 0, 2, 1], 53).into()));
        assert_eq!(address("2001:db8::1").map(|address| address.port()), Some(53));
        assert_eq!(address("fe80::1%nosuch"), None);
        assert_eq!(address("name"), None);
    }
}
