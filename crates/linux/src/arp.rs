//! Announcements of addresses: gratuitous ARP and unsolicited neighbour advertisements.
//!
//! The kernel sends both. A packet socket could send them too, but its close waits for an RCU grace period of 8 to 16
//! ms, many times the rest of an attachment.

use crate::{
    Result,
    link::{LinkRef, Mac},
    route::Socket,
    sysctl::Key,
};

/// Makes the kernel announce the addresses of `interface` from now on. Call this inside the interface's namespace.
pub fn enable(interface: &str) -> Result<()> {
    Key::ipv4(interface, "arp_notify")?.write("1")?;
    match Key::ipv6(interface, "ndisc_notify")?.write("1") {
        Err(error) if !error.is_not_found() => Err(error),
        // Without IPv6, no neighbour advertisements are needed.
        _ => Ok(()),
    }
}

/// Announces the addresses of the link once. The link must be up and [enabled](enable). `mac` is the link's own
/// address: the kernel announces when the address is written again.
pub fn announce<'a>(socket: &mut Socket, link: impl Into<LinkRef<'a>>, mac: Mac) -> Result<()> {
    socket.set_mac(link, mac)
}
