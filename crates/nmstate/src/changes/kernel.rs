//! Events of the kernel.

use std::io;

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Groups of `<linux/rtnetlink.h>`: links, addresses and routes of both families.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// `RTM_NEWROUTE` and `RTM_DELROUTE`.
const ROUTE: [u16; 2] = [24, 25];
/// Position of the flags in a route message, and the flag of routes that the kernel caches per destination.
const FLAGS: std::ops::Range<usize> = 8..12;
const CLONED: u32 = 0x200;
/// Each datagram holds one event about one object.
const DATAGRAM: usize = 32 * 1024;

/// An rtnetlink socket with event subscriptions.
#[derive(Debug)]
pub struct Kernel {
    socket: AsyncFd<Socket>,
    datagram: Vec<u8>,
}

impl Kernel {
    /// Subscribes in the network namespace of the calling thread. Needs a running tokio runtime.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        #[allow(
            deprecated,
            reason = "its successor needs unsafe code, whose condition holds here: nothing replaces the socket"
        )]
        let socket = AsyncFd::new(socket)?;
        Ok(Self {
            socket,
            datagram: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// If the socket fails.
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
                    // The kernel dropped events because the buffer was full.
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

/// Whether a datagram concerns something that reports include.
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
