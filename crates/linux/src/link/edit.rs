//! Changes and removal of links.

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

/// A link to change: the index identifies it, and the name is for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRef<'a> {
    /// Interface index in the socket's namespace.
    pub index: u32,
    /// Name in errors.
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

/// Changes of a link in one message. `None` keeps a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// Administrative state.
    pub up: Option<bool>,
    /// Index of the link's bridge; 0 removes the link from its bridge.
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
    /// The alias of the link. An empty text removes it.
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
    /// Applies `change` in one message. `doing` names the operation in errors: `set link up`.
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

    /// Sets the link's Ethernet address. The write has effects even if the address is the same: the kernel announces
    /// the link's addresses again (see [`crate::arp`]), and a bridge no longer takes its address from its ports.
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

    /// Adds the link to the bridge, bond or VRF with index `master`; 0 removes the link from it.
    pub fn set_master<'a>(&mut self, link: impl Into<LinkRef<'a>>, master: u32) -> Result<()> {
        let change = LinkChange {
            master: Some(master),
            ..LinkChange::default()
        };
        self.change_link(link, "set master of link", &change)
    }

    /// Moves the link into another namespace and names it `name` there. The link goes down and loses its addresses. If
    /// the name is taken, the error [`is_exists`](crate::Error::is_exists): the link may then be in the other namespace
    /// under its old name, unless that name is taken too.
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

    /// Enables or disables promiscuous mode.
    pub fn set_promiscuous<'a>(&mut self, link: impl Into<LinkRef<'a>>, on: bool) -> Result<()> {
        let change = LinkChange {
            promiscuous: Some(on),
            ..LinkChange::default()
        };
        self.change_link(link, "set promiscuous mode of link", &change)
    }

    /// Removes the link. The removal of one end of a veth pair removes the other end too.
    pub fn delete_link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        let link = link.into();
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let request = Request::new("delete link", link.name);
        self.execute(request, RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Removes the link called `name`, without a lookup.
    pub fn delete_link_by_name(&mut self, name: &str) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let request = Request::new("delete link", name);
        self.execute(request, RouteNetlinkMessage::DelLink(message), 0)
    }
}

/// Stack size of a thread that only sends one request, bytes.
const STACK: usize = 128 * 1024;

/// A thread that waits for the kernel.
struct Waiting;

/// Number of such threads, and its limit. Above the limit, callers wait themselves.
static WAITING: AtomicUsize = AtomicUsize::new(0);
const MOST_WAITING: usize = 64;

impl Waiting {
    fn start() -> Option<Self> {
        let one_more = |waiting| (waiting < MOST_WAITING).then_some(waiting + 1);
        let started = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        started.ok().map(|_| Waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes the link called `name` from the namespace of the calling thread, as [`Socket::delete_link_by_name`] does,
/// and returns when the link is invisible. The kernel takes another 15 to 20 ms to free the link, because it waits for
/// all processors: a background thread waits for that. Use this in long-running processes only: the exit of a process
/// waits for the system calls of its threads.
pub fn delete_link_and_leave(name: &str) -> Result<()> {
    let mut socket = Socket::open()?;
    let Some(waiting) = Waiting::start() else {
        return socket.delete_link_by_name(name);
    };
    let (Ok(mut monitor), Ok((ended, end))) = (LinkMonitor::open(), std::io::pipe()) else {
        return socket.delete_link_by_name(name);
    };
    let (sender, result) = mpsc::sync_channel(1);
    let owned = name.to_owned();
    let thread = thread::Builder::new()
        .name("delete-link".into())
        .stack_size(STACK)
        .spawn(move || {
            // The caller no longer receives the result once the link is gone.
            let _ = sender.send(socket.delete_link_by_name(&owned));
            drop((end, waiting));
        });
    if thread.is_err() {
        return Socket::open()?.delete_link_by_name(name);
    }
    while !is_gone(&mut monitor, name) {
        match result.try_recv() {
            Err(TryRecvError::Empty) => {}
            outcome => return outcome.unwrap_or_else(|_| Err(died(name))),
        }
        let mut fds = [
            PollFd::new(&monitor, PollFlags::IN),
            PollFd::new(&ended, PollFlags::IN),
        ];
        if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) {
            return result.recv().unwrap_or_else(|_| Err(died(name)));
        }
    }
    Ok(())
}

/// Returns true if a received event reports the removal of the link. Lost and malformed events report nothing: then the
/// result of the request decides.
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
