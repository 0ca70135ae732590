//! The links of the node that resources stand on, kept by the kernel's events.

use crate::config::Config;
use crate::names::BOND;
use anyhow::Context;
use linux::link::Link;
use linux::monitor::{LinkEvent, LinkFilter, LinkMonitor};
use linux::route::Socket;
use std::collections::{BTreeMap, BTreeSet};
use tokio::io::unix::AsyncFd;

/// The links that matter, of the network namespace in which it was opened.
pub(crate) struct Links {
    monitor: AsyncFd<LinkMonitor>,
    socket: Socket,
    known: Known,
}

impl Links {
    /// Begins to listen in the calling thread's network namespace, and lists the links that are there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        // The subscription comes before the list, so that no change is missed in between.
        let monitor = LinkMonitor::open()?;
        #[allow(
            deprecated,
            reason = "its successor asks for a promise in unsafe code that holds here: the monitor never replaces its socket"
        )]
        let monitor = AsyncFd::new(monitor).context("cannot wait for link events")?;
        let mut links = Self {
            monitor,
            socket: Socket::open()?,
            known: Known::new(Concern::of(config)),
        };
        links.list()?;
        Ok(links)
    }

    /// Lists the links, and has the kernel drop the events about others. Returns whether the known links changed.
    fn list(&mut self) -> anyhow::Result<bool> {
        let before = self.known.links.clone();
        loop {
            self.known.list(self.socket.links()?);
            let listed = self.known.links.clone();
            self.known.pass_events_to(self.monitor.get_ref())?;
            self.known.list(self.socket.links()?);
            // Otherwise a link that was renamed before the filter knew its index has an unseen event.
            if self.known.links == listed {
                return Ok(listed != before);
            }
        }
    }

    /// Names of the links as of the last event.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.known.links.values().cloned().collect()
    }

    /// Waits until a link that matters came, went or was renamed. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> anyhow::Result<()> {
        loop {
            let mut ready = self.monitor.readable_mut().await?;
            let mut outcome = Outcome::Nothing;
            while let Some(event) = ready.get_inner_mut().pending()? {
                outcome = outcome.max(self.known.follow(event));
            }
            ready.clear_ready();
            let changed = match outcome {
                Outcome::Nothing => false,
                Outcome::Changed => {
                    self.list()?;
                    true
                }
                Outcome::Unclear => self.list()?,
            };
            if changed {
                return Ok(());
            }
        }
    }
}

/// Which links matter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Concern {
    /// Those of these names.
    Named(BTreeSet<String>),
    /// Hardware and bonds.
    Suitable,
}

impl Concern {
    fn of(config: &Config) -> Self {
        match config {
            Config::SuitableLinks => Self::Suitable,
            Config::Listed(listed) => Self::Named(
                listed
                    .values()
                    .map(|resource| resource.lower_device.clone())
                    .collect(),
            ),
        }
    }

    fn includes(&self, link: &Link) -> bool {
        match self {
            Self::Named(names) => names.contains(&link.name),
            Self::Suitable => !link.is_loopback() && link.kind.as_deref().is_none_or(|kind| kind == BOND),
        }
    }
}

/// What an event means, in the order of its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// No link that matters is concerned.
    Nothing,
    /// The known links are others now.
    Changed,
    /// The links have to be listed.
    Unclear,
}

/// Names of the links that matter, by interface index: a renamed link keeps its index.
#[derive(Debug)]
struct Known {
    concern: Concern,
    links: BTreeMap<u32, String>,
}

impl Known {
    fn new(concern: Concern) -> Self {
        Self {
            concern,
            links: BTreeMap::new(),
        }
    }

    fn list(&mut self, links: Vec<Link>) {
        let included = links.into_iter().filter(|link| self.concern.includes(link));
        self.links = included.map(|link| (link.index, link.name)).collect();
    }

    /// Has the kernel drop the events about other links.
    fn pass_events_to(&self, monitor: &LinkMonitor) -> linux::Result<()> {
        let indexes: Vec<_> = self.links.keys().copied().collect();
        match &self.concern {
            Concern::Named(names) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                monitor.pass_only(&LinkFilter {
                    names: &names,
                    indexes: &indexes,
                    ..LinkFilter::default()
                })
            }
            Concern::Suitable => monitor.pass_only(&LinkFilter {
                kinds: &[BOND],
                without_kind: true,
                indexes: &indexes,
                ..LinkFilter::default()
            }),
        }
    }

    fn follow(&mut self, event: LinkEvent) -> Outcome {
        match event {
            LinkEvent::Lost => Outcome::Unclear,
            LinkEvent::Gone(link) => match self.links.remove(&link.index) {
                Some(_) => Outcome::Changed,
                None => Outcome::Nothing,
            },
            LinkEvent::Changed(link) => self.take(*link),
        }
    }

    fn take(&mut self, link: Link) -> Outcome {
        let known = self.links.get(&link.index);
        if known == Some(&link.name) {
            return Outcome::Nothing;
        }
        if !self.concern.includes(&link) {
            return match self.links.remove(&link.index) {
                Some(_) => Outcome::Changed,
                None => Outcome::Nothing,
            };
        }
        // Some events leave the kind out, and a new link without one looks like hardware.
        if known.is_none() && self.concern == Concern::Suitable && link.kind.is_none() {
            return Outcome::Unclear;
        }
        self.links.insert(link.index, link.name);
        Outcome::Changed
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

    fn gone(index: u32) -> LinkEvent {
        LinkEvent::Gone(Box::new(link(index, "gone", None)))
    }

    fn names(known: &Known) -> Vec<&str> {
        known.links.values().map(String::as_str).collect()
    }

    #[test]
    fn suitable_links_are_hardware_and_bonds() {
        // cni-plugins#68 (the choice of links)
        let mut known = Known::new(Concern::Suitable);
        let others = ["veth", "vlan", "bridge", "team", "dummy", "macvlan", "macvtap"];
        let mut links: Vec<_> = (10..)
            .zip(others)
            .map(|(index, kind)| link(index, kind, Some(kind)))
            .collect();
        links.push(link(2, "eth0", None));
        links.push(link(3, "bond0", Some("bond")));
        known.list(links);
        assert_eq!(names(&known), ["eth0", "bond0"]);
    }

    #[test]
    fn follow_named_links_come_go_and_are_renamed() {
        let wanted = ["eth1", "eth2"].map(str::to_owned);
        let mut known = Known::new(Concern::Named(wanted.into()));
        assert_eq!(known.follow(changed(5, "eth1", None)), Outcome::Changed);
        assert_eq!(known.follow(changed(5, "eth1", None)), Outcome::Nothing);
        assert_eq!(known.follow(changed(6, "veth", Some("veth"))), Outcome::Nothing);
        assert_eq!(known.follow(changed(5, "other", None)), Outcome::Changed);
        assert!(names(&known).is_empty());
        assert_eq!(known.follow(changed(5, "eth2", None)), Outcome::Changed);
        assert_eq!(names(&known), ["eth2"]);
        assert_eq!(known.follow(gone(6)), Outcome::Nothing);
        assert_eq!(known.follow(gone(5)), Outcome::Changed);
        assert_eq!(known.follow(LinkEvent::Lost), Outcome::Unclear);
    }

    #[test]
    fn follow_new_link_without_kind_is_looked_up() {
        let mut known = Known::new(Concern::Suitable);
        assert_eq!(known.follow(changed(5, "eth0", None)), Outcome::Unclear);
        assert!(names(&known).is_empty());
        assert_eq!(known.follow(changed(6, "bond0", Some("bond"))), Outcome::Changed);
        assert_eq!(known.follow(changed(6, "bond0", None)), Outcome::Nothing);
        assert_eq!(known.follow(changed(6, "bond1", None)), Outcome::Changed);
        assert_eq!(names(&known), ["bond1"]);
    }
}
