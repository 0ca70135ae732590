//! The link of an attachment, in its network namespace. The daemon holds no reference to the namespace: the namespace
//! ends with its container.

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};
use linux::address::Family;
use linux::link::{Link, Mac};
use linux::netns::NetNs;
use linux::packet::PacketSocket;
use linux::route::Socket;
use linux::routes::{LINK_SCOPE, Route};
use rustix::fs::fstat;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::changes::{self, Change};
use crate::frame::CLIENT_PORT;
use crate::lease::LeasedRoute;

/// Identity of a link. Names, paths and namespace numbers alone are reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    cookie: Option<u64>,
    link: u32,
}

/// Location of a link.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Path of the namespace in this process's file system.
    pub(crate) path: PathBuf,
    pub(crate) ifname: String,
    /// The required link; any link of the name if `None`.
    pub(crate) identity: Option<Identity>,
}

/// The reason for a failed operation on a link.
#[derive(Debug, Error)]
pub(crate) enum Trouble {
    /// The link no longer exists.
    #[error("{0}")]
    Gone(String),
    /// A retry may succeed.
    #[error("{0}")]
    Failed(String),
}

impl From<linux::Error> for Trouble {
    fn from(error: linux::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A link that is open for packets.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) identity: Identity,
    pub(crate) mac: Mac,
    pub(crate) socket: PacketSocket,
    /// A bound port: without it the kernel would refuse answers to the leased address.
    pub(crate) port: Option<UdpSocket>,
}

impl Place {
    /// Opens the link, and sets it up if it is down. `address` is the leased address.
    pub(crate) fn open(&self, address: Option<Ipv4Net>) -> Result<Opened, Trouble> {
        self.visit(|socket, link, identity| {
            if !link.is_up() {
                socket.set_up(link)?;
            }
            Ok(Opened {
                identity,
                mac: link.mac.unwrap_or(Mac([0; 6])),
                socket: PacketSocket::open(link.index, CLIENT_PORT)?,
                port: address.and_then(|address| UdpSocket::bind((address.addr(), CLIENT_PORT)).ok()),
            })
        })
    }

    /// Fails if the link does not exist.
    pub(crate) fn require(&self) -> Result<(), Trouble> {
        self.visit(|_, _, _| Ok(()))
    }

    /// Sets the link down.
    pub(crate) fn set_down(&self) -> Result<(), Trouble> {
        self.visit(|socket, link, _| socket.set_down(link))
    }

    /// Applies all changes, and returns those that the link still lacks, and the first error. A change that was already
    /// applied is no error. Routes of others that the kernel removes together with the address are added again.
    pub(crate) fn change(
        &self,
        changes: &[Change],
        priority: u32,
    ) -> Result<(Vec<Change>, Option<linux::Error>), Trouble> {
        self.visit(|socket, link, _| {
            let before = if changes.iter().any(|it| matches!(it, Change::RemoveAddress(_))) {
                socket.all_routes(Family::V4)?
            } else {
                Vec::new()
            };
            let outcome = changes::apply(changes, |change| match make(socket, link, change, priority) {
                Err(error) if error.is_exists() || error.is_not_found() => Ok(()),
                done => done,
            });
            if !before.is_empty()
                && let Ok(after) = socket.all_routes(Family::V4)
            {
                for route in changes::foreign(&before, &after, link.index, changes, priority) {
                    // The kernel refuses it if it needs the former address.
                    let _ = socket.add_route(&route);
                }
            }
            Ok(outcome)
        })
    }

    fn visit<T>(
        &self,
        work: impl FnOnce(&mut Socket, &Link, Identity) -> linux::Result<T>,
    ) -> Result<T, Trouble> {
        let namespace = NetNs::open(&self.path).map_err(|error| {
            let text = format!("failed to open netns \"{}\": {error}", self.path.display());
            if error.is_gone() {
                Trouble::Gone(text)
            } else {
                Trouble::Failed(text)
            }
        })?;
        namespace.run(|| {
            let mut socket = Socket::open()?;
            let link = socket.find_link(&self.ifname)?.ok_or_else(|| {
                Trouble::Gone(format!(
                    "no link {} in netns \"{}\"",
                    self.ifname,
                    self.path.display()
                ))
            })?;
            let identity = identity(&namespace, &link);
            if self.identity.is_some_and(|wanted| wanted != identity) {
                return Err(Trouble::Gone(format!(
                    "another link {} in netns \"{}\"",
                    self.ifname,
                    self.path.display()
                )));
            }
            Ok(work(&mut socket, &link, identity)?)
        })?
    }
}

fn identity(namespace: &NetNs, link: &Link) -> Identity {
    let (device, inode) = fstat(namespace).map_or((0, 0), |file| (file.st_dev, file.st_ino));
    Identity {
        device,
        inode,
        cookie: namespace.cookie(),
        link: link.index,
    }
}

fn make(socket: &mut Socket, link: &Link, change: Change, priority: u32) -> linux::Result<()> {
    let route = |route: LeasedRoute| Route {
        gateway: route.by.map(IpAddr::V4),
        link: Some(link.index),
        priority: Some(priority).filter(|priority| *priority != 0),
        scope: route.by.is_none().then_some(LINK_SCOPE),
        ..Route::to(IpNet::V4(route.to))
    };
    match change {
        Change::AddAddress(address) => socket.add_address(link, IpNet::V4(address)),
        Change::RemoveAddress(address) => socket.delete_address(link, IpNet::V4(address)),
        Change::AddRoute(added) => socket.add_route(&route(added)),
        Change::RemoveRoute(removed) => socket.delete_route(&route(removed)),
    }
}
