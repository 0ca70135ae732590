//! Telling the neighbours where an address is: gratuitous ARP and unsolicited neighbour advertisement.
//!
//! The kernel sends both itself. A packet socket would do too, but closing one waits for an RCU grace
//! period: 8 to 16 ms, many times the rest of an attachment.

use crate::{
    Result,
    link::{LinkRef, Mac},
    route::Socket,
    sysctl::Key,
};

/// Lets the kernel announce addresses of `interface` from now on. To be called inside its namespace.
pub fn enable(interface: &str) -> Result<()> {
    Key::ipv4(interface, "arp_notify")?.write("1")?;
    match Key::ipv6(interface, "ndisc_notify")?.write("1") {
        Err(error) if !error.is_not_found() => Err(error),
        // Without IPv6 there is nothing to announce.
        _ => Ok(()),
    }
}

/// Announces the addresses that the link has, once, on a link that is up and has been [enabled](enable).
/// `mac` is the link's own: writing it again is what makes the kernel speak.
pub fn announce<'a>(socket: &mut Socket, link: impl Into<LinkRef<'a>>, mac: Mac) -> Result<()> {
    socket.set_mac(link, mac)
}
