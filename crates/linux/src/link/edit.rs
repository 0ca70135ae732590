//! Changing and removing links.

use std::{
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, TryRecvError},
    },
    thread,
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Link, Mac};
use crate::{
    Errno, Error, Result,
    monitor::{LinkEvent, LinkMonitor},
    route::{Request, Socket},
};

/// Which link to change: the index decides, the name is for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRef<'a> {
    /// Interface index in the socket's namespace.
    pub index: u32,
    /// Name, for errors.
    pub name: &'a str,
}

impl<'a> From<&'a Link> for LinkRef<'a> {
    fn from(link: &'a Link) -> Self {
        LinkRef {
            index: link.index,
            name: &link.name,
        }
    }
}

/// Changes to make to a link in one message. `None` leaves a value alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// Administrative state.
    pub up: Option<bool>,
    /// Port of which bridge: its index; 0 takes the link off.
    pub master: Option<u32>,
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Promiscuous mode.
    pub promiscuous: Option<bool>,
    /// Reception of all multicast frames.
    pub all_multicast: Option<bool>,
    /// Length of the transmit queue, packets.
    pub tx_queue_len: Option<u32>,
    /// New name; the link must be down on kernels before 6.2.
    pub name: Option<&'a str>,
    /// The text that is kept at the link; an empty one removes it.
    pub alias: Option<&'a str>,
}

impl LinkChange<'_> {
    fn message(&self, index: u32) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let flags = [
            (LinkFlags::Up, self.up),
            (LinkFlags::Promisc, self.promiscuous),
            (LinkFlags::Allmulti, self.all_multicast),
        ];
        for (flag, wanted) in flags {
            let Some(on) = wanted else { continue };
            message.header.change_mask |= flag;
            if on {
                message.header.flags |= flag;
            }
        }
        message
            .attributes
            .extend(self.name.map(|name| LinkAttribute::IfName(name.to_owned())));
        message
            .attributes
            .extend(self.alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())));
        message
            .attributes
            .extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        message.attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        message
            .attributes
            .extend(self.tx_queue_len.map(LinkAttribute::TxQueueLen));
        message
            .attributes
            .extend(self.master.map(LinkAttribute::Controller));
        message
    }
}

impl Socket {
    /// Makes all of `change` in one message. `doing` says in an error what was attempted: `set link up`.
    pub fn change_link<'a>(
        &mut self,
        link: impl Into<LinkRef<'a>>,
        doing: &'static str,
        change: &LinkChange<'_>,
    ) -> Result<()> {
        let link = link.into();
        let message = RouteNetlinkMessage::SetLink(change.message(link.index));
        self.execute(Request::new(doing, link.name), message, 0)
    }

    /// Sets the link administratively up.
    pub fn set_up<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        self.change_link(
            link,
            "set link up",
            &LinkChange {
                up: Some(true),
                ..LinkChange::default()
            },
        )
    }

    /// Sets the link administratively down.
    pub fn set_down<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        self.change_link(
            link,
            "set link down",
            &LinkChange {
                up: Some(false),
                ..LinkChange::default()
            },
        )
    }

    /// Sets the link's Ethernet address, also when it has it already: the kernel then tells the neighbours
    /// again (see [`crate::arp`]) and a bridge stops following its ports.
    pub fn set_mac<'a>(&mut self, link: impl Into<LinkRef<'a>>, mac: Mac) -> Result<()> {
        self.change_link(
            link,
            "set MAC of link",
            &LinkChange {
                mac: Some(mac),
                ..LinkChange::default()
            },
        )
    }

    /// Makes the link a port of the bridge (or bond, VRF) with index `master`; 0 takes it off.
    pub fn set_master<'a>(&mut self, link: impl Into<LinkRef<'a>>, master: u32) -> Result<()> {
        let change = LinkChange {
            master: Some(master),
            ..LinkChange::default()
        };
        self.change_link(link, "set master of link", &change)
    }

    /// Moves the link, which goes down and loses its addresses, into another namespace and names it `name` there. An
    /// error that [`is_exists`](crate::Error::is_exists) if that is taken: then the link may be in the other namespace
    /// under its old name, unless there was no room for that either.
    pub fn move_link<'a>(
        &mut self,
        link: impl Into<LinkRef<'a>>,
        namespace: BorrowedFd<'_>,
        name: &str,
    ) -> Result<()> {
        let link = link.into();
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message
            .attributes
            .push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let request = Request::new("move link", link.name);
        self.execute(request, RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Turns promiscuous mode on or off.
    pub fn set_promiscuous<'a>(&mut self, link: impl Into<LinkRef<'a>>, on: bool) -> Result<()> {
        let change = LinkChange {
            promiscuous: Some(on),
            ..LinkChange::default()
        };
        self.change_link(link, "set promiscuous mode of link", &change)
    }

    /// Removes the link; for one end of a veth pair the other goes too.
    pub fn delete_link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        let link = link.into();
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let request = Request::new("delete link", link.name);
        self.execute(request, RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Removes the link called `name`, without looking it up first.
    pub fn delete_link_by_name(&mut self, name: &str) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let request = Request::new("delete link", name);
        self.execute(request, RouteNetlinkMessage::DelLink(message), 0)
    }
}

/// Bytes of stack of a thread that does nothing but send one request.
const STACK: usize = 128 * 1024;

/// One of the threads that wait for the kernel.
struct Waiting;

/// How many there are, and how many there may be: whoever comes then waits himself.
static WAITING: AtomicUsize = AtomicUsize::new(0);
const MOST_WAITING: usize = 64;

impl Waiting {
    fn begin() -> Option<Self> {
        let one_more = |waiting| (waiting < MOST_WAITING).then_some(waiting + 1);
        let begun = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        begun.ok().map(|_| Waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes the link called `name` from the namespace of the calling thread, as [`Socket::delete_link_by_name`] does,
/// and returns as soon as nobody sees it any more. Until the kernel has also freed what belonged to it takes another 15
/// to 20 ms (it waits for all processors): that is waited for by a thread, which ends by itself. For processes that
/// live on: one that ends waits for the system calls of its threads.
pub fn delete_link_and_leave(name: &str) -> Result<()> {
    let mut socket = Socket::open()?;
    let Some(waiting) = Waiting::begin() else {
        return socket.delete_link_by_name(name);
    };
    let (Ok(mut monitor), Ok((ended, end))) = (LinkMonitor::open(), std::io::pipe()) else {
        return socket.delete_link_by_name(name);
    };
    let (tell, told) = mpsc::sync_channel(1);
    let owned = name.to_owned();
    let thread = thread::Builder::new()
        .name("delete-link".into())
        .stack_size(STACK)
        .spawn(move || {
            // Nobody waits any more once the link is gone.
            let _ = tell.send(socket.delete_link_by_name(&owned));
            drop((end, waiting));
        });
    if thread.is_err() {
        return Socket::open()?.delete_link_by_name(name);
    }
    while !is_gone(&mut monitor, name) {
        match told.try_recv() {
            Err(TryRecvError::Empty) => {}
            outcome => return outcome.unwrap_or_else(|_| Err(died(name))),
        }
        let mut fds = [
            PollFd::new(&monitor, PollFlags::IN),
            PollFd::new(&ended, PollFlags::IN),
        ];
        if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) {
            return told.recv().unwrap_or_else(|_| Err(died(name)));
        }
    }
    Ok(())
}

/// Whether an event that is there already says that the link is gone. Events that were lost or cannot be read say
/// nothing: then the answer to the request counts.
fn is_gone(monitor: &mut LinkMonitor, name: &str) -> bool {
    while let Ok(Some(event)) = monitor.pending() {
        if matches!(event, LinkEvent::Gone(link) if link.name == name) {
            return true;
        }
    }
    false
}

fn died(name: &str) -> Error {
    Request::new("delete link", name).refused(Errno::IO)
}
