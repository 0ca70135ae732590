//! Changes that the kernel tells about.

use std::io;

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Groups of `<linux/rtnetlink.h>`: links, addresses and routes of both families.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// `RTM_NEWROUTE` and `RTM_DELROUTE`.
const ROUTE: [u16; 2] = [24, 25];
/// Where in a route's message its flags begin, and the flag of routes that are made for one destination as it is used.
const FLAGS: std::ops::Range<usize> = 8..12;
const CLONED: u32 = 0x200;
/// A datagram holds one event, and an event describes one object.
const DATAGRAM: usize = 32 * 1024;

/// A socket that the kernel sends events to.
#[derive(Debug)]
pub struct Kernel {
    socket: AsyncFd<Socket>,
    datagram: Vec<u8>,
}

impl Kernel {
    /// Begins to listen in the network namespace of the calling thread. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        #[allow(
            deprecated,
            reason = "its successor asks for a promise in unsafe code that holds here: nothing replaces the socket"
        )]
        let socket = AsyncFd::new(socket)?;
        Ok(Self {
            socket,
            datagram: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Waits until something changed.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable_mut().await?;
            let mut changed = false;
            loop {
                self.datagram.clear();
                match ready.get_inner_mut().recv(&mut self.datagram, 0) {
                    Ok(_) => changed |= is_change(&self.datagram),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // Events were dropped because nobody read them in time.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => changed = true,
                    Err(error) => return Err(error),
                }
            }
            ready.clear_ready();
            if changed {
                return Ok(());
            }
        }
    }
}

/// Whether a datagram tells of something that reports have.
fn is_change(datagram: &[u8]) -> bool {
    let Ok(message) = NetlinkBuffer::new_checked(datagram) else {
        return true;
    };
    if !ROUTE.contains(&message.message_type()) {
        return true;
    }
    let flags = message
        .payload()
        .get(FLAGS)
        .and_then(|bytes| bytes.try_into().ok());
    flags.is_none_or(|flags| u32::from_ne_bytes(flags) & CLONED == 0)
}
