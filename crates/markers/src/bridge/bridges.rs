//! The bridges of a network namespace, updated by the kernel's events.

use super::names::BRIDGE;
use crate::source::Source;
use linux::link::Link;
use linux::monitor::{LinkEvent, LinkFilter, LinkMonitor};
use linux::route::Socket;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use tokio::io::unix::AsyncFd;

/// The bridges of the namespace in which it was opened.
#[derive(Debug)]
pub struct Bridges {
    monitor: LinkMonitor,
    socket: Socket,
    known: Known,
}

impl Bridges {
    /// Subscribes to the events of the calling thread's network namespace, and lists its bridges.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> linux::Result<Self> {
        // The subscription comes before the list, so that no change is missed in between.
        let monitor = LinkMonitor::open()?;
        monitor.pass_only(&LinkFilter {
            kinds: &[BRIDGE],
            ..LinkFilter::default()
        })?;
        let mut socket = Socket::open()?;
        let known = Known::of(socket.links()?);
        Ok(Self {
            monitor,
            socket,
            known,
        })
    }
}

/// [`Bridges`] with a socket that the runtime polls.
#[derive(Debug)]
pub(super) struct Following {
    monitor: AsyncFd<LinkMonitor>,
    socket: Socket,
    known: Known,
}

impl TryFrom<Bridges> for Following {
    type Error = io::Error;

    fn try_from(bridges: Bridges) -> io::Result<Self> {
        let Bridges {
            monitor,
            socket,
            known,
        } = bridges;
        #[allow(
            deprecated,
            reason = "its successor needs unsafe code, whose condition holds here: the monitor never replaces its socket"
        )]
        let monitor = AsyncFd::new(monitor)?;
        Ok(Self {
            monitor,
            socket,
            known,
        })
    }
}

impl Source for Following {
    fn names(&self) -> Option<BTreeSet<String>> {
        Some(self.known.0.values().cloned().collect())
    }

    fn list(&mut self) -> anyhow::Result<()> {
        self.known = Known::of(self.socket.links()?);
        Ok(())
    }

    async fn changed(&mut self) -> anyhow::Result<()> {
        loop {
            let mut ready = self.monitor.readable_mut().await?;
            let before = self.known.clone();
            let mut lost = false;
            while let Some(event) = ready.get_inner_mut().pending()? {
                lost |= self.known.follow(event);
            }
            ready.clear_ready();
            if lost {
                self.list()?;
            }
            if self.known != before {
                return Ok(());
            }
        }
    }
}

/// Names of bridges by interface index: a renamed bridge keeps its index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known(BTreeMap<u32, String>);

impl Known {
    fn of(links: Vec<Link>) -> Self {
        let bridges = links.into_iter().filter(|link| link.is_kind(BRIDGE));
        Self(bridges.map(|link| (link.index, link.name)).collect())
    }

    /// Applies an event. Returns whether events were lost, so that all bridges have to be listed again.
    fn follow(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Changed(link) => {
                // The kind of a link never changes, and some events omit it.
                if link.is_kind(BRIDGE) {
                    self.0.insert(link.index, link.name);
                }
                false
            }
            LinkEvent::Gone(link) => {
                self.0.remove(&link.index);
                false
            }
            LinkEvent::Lost => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: Option<&str>) -> Link {
        let mut link = Link::default();
        link.index = index;
        name.clone_into(&mut link.name);
        link.kind = kind.map(str::to_owned);
        link
    }

    fn changed(index: u32, name: &str, kind: Option<&str>) -> LinkEvent {
        LinkEvent::Changed(Box::new(link(index, name, kind)))
    }

    fn names(known: &Known) -> Vec<&str> {
        known.0.values().map(String::as_str).collect()
    }

    #[test]
    fn follow_adds_removes_and_renames_bridges() {
        let mut known = Known::of(vec![
            link(1, "lo", None),
            link(2, "br1", Some("bridge")),
            link(3, "veth0", Some("veth")),
        ]);
        assert_eq!(names(&known), ["br1"]);
        assert!(!known.follow(changed(4, "br2", Some("bridge"))));
        known.follow(changed(2, "renamed", Some("bridge")));
        assert_eq!(names(&known), ["renamed", "br2"]);
        known.follow(changed(4, "br2", None));
        known.follow(changed(3, "veth0", Some("veth")));
        known.follow(LinkEvent::Gone(Box::new(link(2, "renamed", Some("bridge")))));
        assert_eq!(names(&known), ["br2"]);
        assert!(known.follow(LinkEvent::Lost));
    }
}
