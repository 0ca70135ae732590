//! Events that wake the daemon: from Nodes, the kernel, and the directory of configurations.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::Path,
};

use ipnet::IpNet;
use kube_kit::{
    kube::{Api, Client},
    object,
    watch::{self, Change, DeserializeGuard, Name, Options, Store, Watch},
    watch_dir::DirWatcher,
};
use linux::{
    monitor::{HostEvent, HostMonitor},
    nft,
    routes::{MAIN_TABLE, Route},
};
use tokio::io::unix::AsyncFd;

use crate::{
    names::{ROUTE_PROTOCOL, TABLE, TUNNEL},
    node::{Node, NodeObject},
};

/// All Nodes, with a filter: kubelets report every few minutes, and usually change no field that the daemon reads.
pub(crate) struct Nodes {
    watch: Watch<Name, Node>,
    digests: BTreeMap<Name, u64>,
    synced: bool,
}

impl Nodes {
    pub(crate) fn watch(client: Client) -> Self {
        let api: Api<DeserializeGuard<NodeObject>> = Api::all_with(client, &object::NODE.api_resource());
        Self {
            watch: watch::start_named(api, &Options::all(), Node::of),
            digests: BTreeMap::new(),
            synced: false,
        }
    }

    pub(crate) fn store(&self) -> Store<Name, Node> {
        self.watch.store()
    }

    /// Waits until a relevant field of a Node changes. Cancellation loses no change.
    pub(crate) async fn changed(&mut self) {
        loop {
            let Some(change) = self.watch.next().await else {
                // The watch ends only with the process.
                return pending().await;
            };
            match change {
                Change::Applied(key) => {
                    let mut hasher = DefaultHasher::new();
                    if self
                        .watch
                        .store()
                        .with(&key, |node| node.hash(&mut hasher))
                        .is_none()
                    {
                        continue;
                    }
                    let digest = hasher.finish();
                    if self.digests.insert(key, digest) == Some(digest) {
                        continue;
                    }
                }
                Change::Deleted(key) => {
                    self.digests.remove(&key);
                }
                Change::Invalid(..) => continue,
                Change::Synced => self.synced = true,
            }
            // The first list reports every Node, so one return at its end is enough.
            if self.synced {
                return;
            }
        }
    }
}

/// The parts of the host that the daemon's state depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Links by index, also those that are down.
    pub(crate) links: BTreeSet<u32>,
    /// Ranges that need a route.
    pub(crate) ranges: BTreeSet<IpNet>,
    /// Index of the tunnel, whose neighbours and forwarding entries count.
    pub(crate) tunnel: Option<u32>,
}

impl Interest {
    /// Returns true if an event needs a new observation of the host. Events of pods, which start and end often, do not.
    fn is_touched_by(&self, event: &HostEvent) -> bool {
        match event {
            HostEvent::Link(link) => link.name == TUNNEL || self.links.contains(&link.index),
            HostEvent::Address(address) => {
                let is_subnet = address.net.prefix_len() < address.net.max_prefix_len();
                // The kernel gives each veth of a pod a link-local address with a subnet.
                is_subnet && address.global || self.links.contains(&address.link)
            }
            HostEvent::Route(route) => {
                route.table.is_none_or(|table| table == MAIN_TABLE) && self.is_relevant(route)
            }
            HostEvent::Neighbour { link } => self.tunnel == Some(*link),
            HostEvent::Lost => true,
        }
    }

    fn is_relevant(&self, route: &Route) -> bool {
        route.protocol == Some(ROUTE_PROTOCOL)
            || route.dst.prefix_len() == 0
            || self.ranges.contains(&route.dst)
    }
}

/// Events of the kernel, for the async runtime.
pub(crate) struct HostEvents {
    host: AsyncFd<HostMonitor>,
    /// Index of the tunnel whose neighbours are reported.
    tunnel: Option<u32>,
    rules: AsyncFd<nft::Monitor>,
}

/// Subscriptions to events of the kernel, opened in one network namespace.
#[derive(Debug)]
pub(crate) struct Monitors {
    host: HostMonitor,
    rules: nft::Monitor,
}

impl Monitors {
    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub(crate) fn open() -> linux::Result<Self> {
        Ok(Self {
            host: HostMonitor::open()?,
            rules: nft::Monitor::open(TABLE.name)?,
        })
    }
}

impl TryFrom<Monitors> for HostEvents {
    type Error = io::Error;

    #[allow(
        deprecated,
        reason = "its successor needs unsafe code to assert what holds here: monitors never replace their sockets"
    )]
    fn try_from(monitors: Monitors) -> io::Result<Self> {
        Ok(Self {
            host: AsyncFd::new(monitors.host)?,
            tunnel: None,
            rules: AsyncFd::new(monitors.rules)?,
        })
    }
}

impl HostEvents {
    /// Waits until a part of the host changes that the daemon depends on. Cancellation loses no change: an event only
    /// causes an observation.
    pub(crate) async fn changed(&mut self, interest: &Interest) -> anyhow::Result<()> {
        if let Some(tunnel) = interest.tunnel.filter(|tunnel| self.tunnel != Some(*tunnel)) {
            self.host.get_mut().add_neighbours(tunnel)?;
            self.tunnel = Some(tunnel);
            // An entry may have changed since the observation.
            return Ok(());
        }
        loop {
            let touched = tokio::select! {
                ready = self.host.readable_mut() => {
                    let mut ready = ready?;
                    let mut touched = false;
                    while let Some(event) = ready.get_inner_mut().pending()? {
                        touched |= interest.is_touched_by(&event);
                    }
                    ready.clear_ready();
                    touched
                }
                ready = self.rules.readable_mut() => {
                    let mut ready = ready?;
                    let changed = ready.get_inner_mut().changed()?;
                    ready.clear_ready();
                    changed
                }
            };
            if touched {
                return Ok(());
            }
        }
    }
}

/// The directory of configurations.
pub(crate) struct Files(DirWatcher);

impl Files {
    pub(crate) fn watch(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut watcher = DirWatcher::new()?;
        watcher.add(folder)?;
        Ok(Self(watcher))
    }

    /// Waits until a file in the directory changes.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.0.next().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use linux::{address::Address, link::Link};

    use super::*;

    fn link(index: u32, name: &str) -> HostEvent {
        let mut link = Link::default();
        link.index = index;
        name.clone_into(&mut link.name);
        HostEvent::Link(Box::new(link))
    }

    fn address(link: u32, net: &str) -> HostEvent {
        HostEvent::Address(Address {
            link,
            net: net.parse().unwrap(),
            tentative: false,
            duplicate: false,
            global: true,
        })
    }

    fn local(link: u32) -> HostEvent {
        HostEvent::Address(Address {
            link,
            net: "fe80::1/64".parse().unwrap(),
            tentative: false,
            duplicate: false,
            global: false,
        })
    }

    fn route(dst: &str, protocol: u8, table: u32) -> HostEvent {
        HostEvent::Route(Route {
            protocol: Some(protocol),
            table: Some(table),
            ..Route::to(dst.parse().unwrap())
        })
    }

    #[test]
    fn interest_ignores_events_of_pods() {
        let interest = Interest {
            links: [2].into(),
            ranges: ["10.1.1.0/24".parse().unwrap()].into(),
            tunnel: Some(9),
        };
        for (event, touches) in [
            (link(2, "eth0"), true),
            (link(9, TUNNEL), true),
            (link(7, "veth1"), false),
            (address(2, "192.0.2.1/32"), true),
            (address(5, "192.0.2.1/24"), true),
            (address(7, "10.1.0.1/32"), false),
            (address(7, "fd00:1::1/128"), false),
            (local(7), false),
            (local(2), true),
            (route("10.1.0.7/32", 3, MAIN_TABLE), false),
            (route("10.1.1.0/24", 3, MAIN_TABLE), true),
            (route("10.9.9.0/24", ROUTE_PROTOCOL, MAIN_TABLE), true),
            (route("10.9.9.0/24", ROUTE_PROTOCOL, 1000), false),
            (route("0.0.0.0/0", 16, MAIN_TABLE), true),
            (HostEvent::Neighbour { link: 9 }, true),
            (HostEvent::Neighbour { link: 2 }, false),
            (HostEvent::Lost, true),
        ] {
            assert_eq!(interest.is_touched_by(&event), touches, "{event:?}");
        }
    }
}
