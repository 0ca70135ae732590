//! An exchange with DHCP servers over the link of an attachment.

use std::io;
use std::net::Ipv4Addr;

use linux::link::Mac;
use linux::packet::PacketSocket;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_blocking;

use crate::frame::{pack, unpack};
use crate::lease::Lease;
use crate::message::{Offer, Reply, Sender};
use crate::place::{Identity, Opened, Place, Trouble};
use plugins::dhcp::wire::Allocation;

const BROADCAST: Mac = Mac([0xff; 6]);
/// Maximum size of a received packet, in bytes.
const LONGEST: usize = 4096;

/// A message to send.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    Discover(Option<Ipv4Addr>),
    Request(Offer),
    Renew(Lease, Mac),
    Release(Lease, Mac),
}

/// An open exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    socket: AsyncFd<PacketSocket>,
    opened: (Identity, Mac),
    xid: u32,
    broadcast: bool,
    last: Option<(Vec<u8>, Mac)>,
    _port: Option<std::net::UdpSocket>,
}

/// Runs work on a thread that may enter a namespace.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    match spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Exchange {
    /// Opens an exchange over the link. `lease` is the present lease of the link.
    pub(crate) async fn open(place: &Place, broadcast: bool, lease: Option<&Lease>) -> Result<Self, Trouble> {
        let place = place.clone();
        let address = lease.map(|lease| lease.address);
        let Opened {
            identity,
            mac,
            socket,
            port,
        } = blocking(move || place.open(address)).await?;
        #[allow(
            deprecated,
            reason = "its successor needs unsafe code, whose condition holds here: the socket is never replaced"
        )]
        let socket = AsyncFd::new(socket)
            .map_err(|error| Trouble::Failed(format!("cannot wait for packets: {error}")))?;
        Ok(Self {
            socket,
            opened: (identity, mac),
            xid: u32::from_ne_bytes(linux::random::bytes()?),
            broadcast,
            last: None,
            _port: port,
        })
    }

    pub(crate) fn identity(&self) -> Identity {
        self.opened.0
    }

    fn sender<'a>(&self, allocation: &'a Allocation) -> Sender<'a> {
        Sender {
            allocation,
            mac: self.opened.1,
            xid: self.xid,
            broadcast: self.broadcast,
        }
    }

    pub(crate) fn send(&mut self, allocation: &Allocation, message: &Outgoing) -> linux::Result<()> {
        let sender = self.sender(allocation);
        let everybody = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, BROADCAST);
        let (bytes, (from, to, station)) = match message {
            Outgoing::Discover(wanted) => (sender.discover(*wanted), everybody),
            Outgoing::Request(offer) => (sender.request(*offer), everybody),
            Outgoing::Renew(lease, station) => (
                sender.renew(lease),
                (lease.address.addr(), lease.server, *station),
            ),
            Outgoing::Release(lease, station) => (
                sender.release(lease),
                (lease.address.addr(), lease.server, *station),
            ),
        };
        self.last = bytes.and_then(|bytes| Some((pack(&bytes, from, to)?, station)));
        self.again()
    }

    /// Resends the last message.
    pub(crate) fn again(&self) -> linux::Result<()> {
        match &self.last {
            Some((packet, station)) => self.socket.get_ref().send(packet, *station),
            None => Ok(()),
        }
    }

    /// Waits for an answer. Returns the answer and the MAC address of its sender.
    pub(crate) async fn receive(&self, allocation: &Allocation) -> io::Result<(Reply, Mac)> {
        let mut buffer = vec![0; LONGEST];
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| socket.get_ref().receive(&mut buffer));
            // A wake-up without a packet leads to another wait.
            let Ok(received) = received else { continue };
            let (length, station) = received?;
            let message = buffer.get(..length).and_then(unpack);
            if let Some(reply) = message.and_then(|message| self.sender(allocation).read(message)) {
                return Ok((reply, station));
            }
        }
    }
}
