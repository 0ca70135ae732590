//! Events of the kernel, so that nothing has to be polled.

mod filter;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    time::Instant,
};

use netlink_sys::{Socket as RawSocket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, poll};

pub use filter::LinkFilter;

use crate::{
    Errno, Error, Result,
    address::{Address, Family},
    link::{Link, LinkRef, OperState},
    route::{Request, Socket, descriptor, messages, remaining, retry},
    routes::Route,
};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, ... of `<linux/rtnetlink.h>`.
const LINK_GROUP: u32 = 1;
const NEIGHBOUR_GROUP: u32 = 3;
const IPV4_ADDRESS_GROUP: u32 = 5;
const IPV4_ROUTE_GROUP: u32 = 7;
const IPV6_ADDRESS_GROUP: u32 = 9;
const IPV6_ROUTE_GROUP: u32 = 11;
/// `RTM_NEWLINK` and `RTM_DELLINK`.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
/// `RTM_NEWADDR` and `RTM_DELADDR`, `RTM_NEWROUTE` and `RTM_DELROUTE`.
const ADDRESSES: [u16; 2] = [20, 21];
const ROUTES: [u16; 2] = [24, 25];
/// `RTM_NEWNEIGH` and `RTM_DELNEIGH`: entries of the neighbour table, and of forwarding tables.
const NEIGHBOURS: [u16; 2] = [28, 29];
/// One datagram holds one event, and an event describes one object.
const RECEIVE_BUFFER: usize = 32 * 1024;

/// A socket that receives events of some kinds.
#[derive(Debug)]
struct Subscription {
    raw: RawSocket,
    receive: Vec<u8>,
    doing: &'static str,
}

/// The result of reading a subscription.
enum Received {
    /// One datagram is in the buffer.
    Datagram,
    /// No datagram is pending.
    Nothing,
    /// The kernel dropped events because they were not read in time.
    Lost,
}

impl Subscription {
    fn open(doing: &'static str, groups: &[u32]) -> Result<Self> {
        let failed = |error: io::Error| Error::io(doing, "", &error);
        let mut raw = RawSocket::new(NETLINK_ROUTE).map_err(failed)?;
        raw.bind(&SocketAddr::new(0, 0)).map_err(failed)?;
        for group in groups {
            raw.add_membership(*group).map_err(failed)?;
        }
        raw.set_non_blocking(true).map_err(failed)?;
        Ok(Subscription {
            raw,
            receive: Vec::with_capacity(RECEIVE_BUFFER),
            doing,
        })
    }

    fn receive(&mut self) -> Result<Received> {
        self.receive.clear();
        match retry(|| self.raw.recv(&mut self.receive, 0)) {
            Ok(_) => Ok(Received::Datagram),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => Ok(Received::Lost),
            Err(error) => Err(Error::io(self.doing, "", &error)),
        }
    }

    /// Waits for an event. Returns `false` if `deadline` passed first.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let timeout = match deadline.map(remaining) {
                None => None,
                Some(None) => return Ok(false),
                // A duration of less than three weeks always fits.
                Some(Some(remaining)) => remaining.try_into().ok(),
            };
            let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::kernel(self.doing, "", errno)),
            }
        }
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        descriptor(&self.raw)
    }
}

/// A change of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link is new or has changed.
    Changed(Box<Link>),
    /// The link left the namespace. (A port that leaves its bridge is [`LinkEvent::Changed`].)
    Gone(Box<Link>),
    /// Events were lost: list all links again.
    Lost,
}

/// Changes of the interfaces in the namespace of its creation: a blocking iterator without an end, or, for event loops,
/// a descriptor to wait on and [`LinkMonitor::pending`].
#[derive(Debug)]
pub struct LinkMonitor {
    subscription: Subscription,
    waiting: VecDeque<LinkEvent>,
}

impl LinkMonitor {
    /// Subscribes. List the links afterwards, so that no change is missed.
    pub fn open() -> Result<Self> {
        let subscription = Subscription::open("subscribe to link events", &[LINK_GROUP])?;
        Ok(LinkMonitor {
            subscription,
            waiting: VecDeque::new(),
        })
    }

    /// Passes the events about links of `filter` alone from now on: no other event wakes the process. Replaces an earlier
    /// filter. An event that leaves the kind out counts as one of a link without a kind.
    pub fn pass_only(&self, filter: &LinkFilter<'_>) -> Result<()> {
        filter::attach(self, filter).map_err(|error| Error::io("filter link events", "", &error))
    }

    /// Returns the next pending event, without waiting. Call this until it returns `None`, and then wait for the
    /// descriptor again.
    pub fn pending(&mut self) -> Result<Option<LinkEvent>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            match self.subscription.receive()? {
                Received::Nothing => return Ok(None),
                Received::Lost => return Ok(Some(LinkEvent::Lost)),
                Received::Datagram => read_links(&self.subscription.receive, &mut self.waiting)?,
            }
        }
    }

    /// Returns the next event, or `None` if `deadline` passed first. Without a deadline, waits without a limit.
    pub fn next_before(&mut self, deadline: Option<Instant>) -> Result<Option<LinkEvent>> {
        loop {
            if let Some(event) = self.pending()? {
                return Ok(Some(event));
            }
            if !self.subscription.wait(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl Iterator for LinkMonitor {
    type Item = Result<LinkEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_before(None).transpose()
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

impl AsRawFd for LinkMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.subscription.raw.as_raw_fd()
    }
}

fn read_links(datagram: &[u8], events: &mut VecDeque<LinkEvent>) -> Result<()> {
    let request = Request::new("subscribe to link events", "");
    for message in messages(request, datagram) {
        let message = message?;
        match message.message_type() {
            // Bridges report their ports in their own address family. There, a deletion means that the port left the
            // bridge, and not that the link is gone.
            _ if message.payload().first() != Some(&0) => {}
            NEW_LINK => {
                events.push_back(LinkEvent::Changed(Box::new(Link::read(
                    request,
                    message.payload(),
                )?)));
            }
            DELETE_LINK => {
                events.push_back(LinkEvent::Gone(Box::new(Link::read(request, message.payload())?)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A change of a link, an address, a route or a neighbour: creation, change or removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    /// A link.
    Link(Box<Link>),
    /// An address.
    Address(Address),
    /// A unicast route. Of several next hops, the first.
    Route(Route),
    /// A neighbour, or an entry of a forwarding table, on the link of [`HostMonitor::add_neighbours`].
    Neighbour {
        /// Index of the link.
        link: u32,
    },
    /// Events were lost: everything may have changed.
    Lost,
}

/// Changes of the links, addresses and routes in the namespace of its creation, for event loops: a descriptor to wait
/// on, and [`HostMonitor::pending`].
#[derive(Debug)]
pub struct HostMonitor {
    subscription: Subscription,
    waiting: VecDeque<HostEvent>,
}

impl HostMonitor {
    /// Subscribes. List all objects afterwards, so that no change is missed.
    pub fn open() -> Result<Self> {
        let groups = [
            LINK_GROUP,
            IPV4_ADDRESS_GROUP,
            IPV6_ADDRESS_GROUP,
            IPV4_ROUTE_GROUP,
            IPV6_ROUTE_GROUP,
        ];
        Ok(HostMonitor {
            subscription: Subscription::open(HOST_EVENTS, &groups)?,
            waiting: VecDeque::new(),
        })
    }

    /// Adds events of the neighbours of one link, in place of another link. List them afterwards, so that no change is
    /// missed. Events of neighbours on other links, which are frequent, never wake the process.
    pub fn add_neighbours(&mut self, link: u32) -> Result<()> {
        let failed = |error: io::Error| Error::io("subscribe to events of neighbours", "", &error);
        filter::attach_neighbours(self, link).map_err(failed)?;
        self.subscription
            .raw
            .add_membership(NEIGHBOUR_GROUP)
            .map_err(failed)
    }

    /// Returns the next pending event, without waiting. Call this until it returns `None`, and then wait for the
    /// descriptor again.
    pub fn pending(&mut self) -> Result<Option<HostEvent>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            match self.subscription.receive()? {
                Received::Nothing => return Ok(None),
                Received::Lost => return Ok(Some(HostEvent::Lost)),
                Received::Datagram => read_host(&self.subscription.receive, &mut self.waiting)?,
            }
        }
    }
}

impl AsFd for HostMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

impl AsRawFd for HostMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.subscription.raw.as_raw_fd()
    }
}

const HOST_EVENTS: &str = "subscribe to events of links, addresses and routes";

fn read_host(datagram: &[u8], events: &mut VecDeque<HostEvent>) -> Result<()> {
    let request = Request::new(HOST_EVENTS, "");
    for message in messages(request, datagram) {
        let message = message?;
        let body = message.payload();
        match message.message_type() {
            // Bridges report their ports in their own address family.
            NEW_LINK | DELETE_LINK if body.first() == Some(&0) => {
                events.push_back(HostEvent::Link(Box::new(Link::read(request, body)?)));
            }
            kind if ADDRESSES.contains(&kind) => {
                events.extend(Address::read(request, body)?.map(HostEvent::Address));
            }
            kind if ROUTES.contains(&kind) => {
                events.extend(Route::read(request, body)?.first().copied().map(HostEvent::Route));
            }
            kind if NEIGHBOURS.contains(&kind) => {
                // `ndmsg` has the index of the link behind the family and its padding.
                let link = body.get(4..8).and_then(|bytes| bytes.try_into().ok());
                events.extend(link.map(|bytes| HostEvent::Neighbour {
                    link: u32::from_ne_bytes(bytes),
                }));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits until the link is operationally up, and returns it. After `deadline`, returns it in its current state. Call
/// this in the namespace of `socket`.
///
/// Reads the state once before it subscribes: usually the link is already up.
pub fn wait_operstate_up<'a>(
    socket: &mut Socket,
    link: impl Into<LinkRef<'a>>,
    deadline: Instant,
) -> Result<Link> {
    let index = link.into().index;
    let first = socket.link_by_index(index)?;
    if first.operstate == OperState::Up {
        return Ok(first);
    }
    let mut monitor = LinkMonitor::open()?;
    loop {
        let current = socket.link_by_index(index)?;
        if current.operstate == OperState::Up {
            return Ok(current);
        }
        // An event of this link, or a loss of events, needs another read.
        loop {
            match monitor.next_before(Some(deadline))? {
                None => return socket.link_by_index(index),
                Some(LinkEvent::Changed(link) | LinkEvent::Gone(link)) if link.index != index => {}
                Some(_) => break,
            }
        }
    }
}

/// Changes of IPv6 addresses in the namespace of its creation.
#[derive(Debug)]
pub struct AddressMonitor(Subscription);

impl AddressMonitor {
    /// Subscribes. List the addresses afterwards, so that no change is missed.
    pub fn open() -> Result<Self> {
        Subscription::open("subscribe to address events", &[IPV6_ADDRESS_GROUP]).map(AddressMonitor)
    }

    /// Waits until an address changes. Returns `false` if `deadline` passed first.
    pub fn wait(&mut self, deadline: Instant) -> Result<bool> {
        if !self.0.wait(Some(deadline))? {
            return Ok(false);
        }
        // The caller lists the addresses afterwards, so the events themselves are dropped.
        while !matches!(self.0.receive()?, Received::Nothing) {}
        Ok(true)
    }
}

/// The result of duplicate address detection on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// All addresses can be used.
    Usable,
    /// Another station on the link has this address.
    Duplicate(std::net::IpAddr),
    /// The detection was not finished at the deadline.
    Tentative,
}

/// Waits until no IPv6 address of the link is tentative. Call this in the namespace of `socket`.
pub fn wait_addresses_settled<'a>(
    socket: &mut Socket,
    link: impl Into<LinkRef<'a>>,
    deadline: Instant,
) -> Result<Settled> {
    let link = link.into();
    let mut monitor = None;
    loop {
        let addresses = socket.addresses(link, Some(Family::V6))?;
        if let Some(duplicate) = addresses.iter().find(|address| address.duplicate) {
            return Ok(Settled::Duplicate(duplicate.net.addr()));
        }
        if !addresses.iter().any(|address| address.tentative) {
            return Ok(Settled::Usable);
        }
        match &mut monitor {
            // The first read precedes the subscription. From the second read on, no change is missed.
            None => monitor = Some(AddressMonitor::open()?),
            Some(monitor) => {
                if !monitor.wait(deadline)? {
                    return Ok(Settled::Tentative);
                }
            }
        }
    }
}
