//! Ports for programs that cannot choose one themselves.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{At, Error, Result};

/// The kernel's range of ports for outgoing connections, and for listeners without a port.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Programs have well-known ports below.
const LOWEST: u16 = 20_000;
/// Processes with successive numbers choose ports that are this far apart.
const PER_PROCESS: u32 = 16;

/// Returns a port that is free over TCP and UDP, another one at each call. No outgoing connection takes it before its
/// use, because it is below the kernel's range for these.
pub fn free_port() -> Result<u16> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string(RANGE).at("read", Path::new(RANGE))?;
    let ports = end(&range) - LOWEST;
    for _ in 0..ports {
        let number = process::id()
            .wrapping_mul(PER_PROCESS)
            .wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from(number % u32::from(ports)).unwrap_or_default();
        let address = (Ipv4Addr::UNSPECIFIED, LOWEST + offset);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address.1);
        }
    }
    Err(Error::Missing("no port is free".to_owned()))
}

/// Returns the first port that is not below the kernel's range, or the highest port if that range leaves none.
fn end(range: &str) -> u16 {
    let first: Option<u16> = range
        .split_whitespace()
        .next()
        .and_then(|first| first.parse().ok());
    first.filter(|first| *first > LOWEST).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_below_those_of_outgoing_connections() {
        assert_eq!(end("32768\t60999\n"), 32_768);
        assert_eq!(end("1024\t65535\n"), u16::MAX);
        assert_eq!(end(""), u16::MAX);
        let [first, second] = [free_port().unwrap(), free_port().unwrap()];
        assert_ne!(first, second);
        assert!(first >= LOWEST && second >= LOWEST, "{first} {second}");
    }
}
