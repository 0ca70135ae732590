//! The lower devices on the node, updated by kernel events.

use crate::config::Config;
use crate::names::{BOND, LONGEST_NAME};
use anyhow::Context;
use linux::link::Link;
use linux::monitor::{LinkEvent, LinkFilter, LinkMonitor};
use linux::route::Socket;
use std::collections::{BTreeMap, BTreeSet};
use tokio::io::unix::AsyncFd;

/// The relevant links in the network namespace of its creation.
pub(crate) struct Links {
    monitor: AsyncFd<LinkMonitor>,
    socket: Socket,
    known: Known,
}

impl Links {
    /// Subscribes in the calling thread's network namespace, and lists the existing links.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        // The subscription precedes the list, so that no change is missed.
        let monitor = LinkMonitor::open()?;
        #[allow(
            deprecated,
            reason = "its successor needs unsafe code to assert what holds here: the monitor never replaces its socket"
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
            self.known.list(&self.socket.links()?);
            let listed = self.known.links.clone();
            self.known.pass_events_to(self.monitor.get_ref())?;
            self.known.list(&self.socket.links()?);
            // Otherwise a link that was renamed before the filter knew its index has an unseen event.
            if self.known.links == listed {
                return Ok(listed != before);
            }
        }
    }

    /// Returns the names of the relevant links: of listed ones, those of the configuration.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.known.links.values().flatten().cloned().collect()
    }

    /// Waits until a relevant link is created, removed or renamed. Cancel-safe.
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

/// The relevant links.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Concern {
    /// Links with these names or alternative names.
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

    /// The names under which a relevant link is known.
    fn names(&self, link: &Link) -> Vec<String> {
        match self {
            Self::Named(names) => names
                .iter()
                .filter(|name| is_called(link, name))
                .cloned()
                .collect(),
            Self::Suitable => vec![link.name.clone()],
        }
    }

    fn includes(&self, link: &Link) -> bool {
        match self {
            Self::Named(names) => names.iter().any(|name| is_called(link, name)),
            Self::Suitable => !link.is_loopback() && link.kind.as_deref().is_none_or(|kind| kind == BOND),
        }
    }
}

/// True if the kernel finds the link by this name when a macvtap is made on it: also an alternative one, if it is not
/// longer than the name of a link.
fn is_called(link: &Link, name: &str) -> bool {
    let mut alternatives = link.alternative_names.iter();
    link.name == name || (name.len() <= LONGEST_NAME && alternatives.any(|alternative| alternative == name))
}

/// The effect of an event, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The event concerns no relevant link.
    Nothing,
    /// The relevant links changed.
    Changed,
    /// The links must be listed again.
    Unclear,
}

/// Names of the relevant links by interface index: a renamed link keeps its index.
#[derive(Debug)]
struct Known {
    concern: Concern,
    links: BTreeMap<u32, Vec<String>>,
}

impl Known {
    fn new(concern: Concern) -> Self {
        Self {
            concern,
            links: BTreeMap::new(),
        }
    }

    fn list(&mut self, links: &[Link]) {
        let included = links.iter().filter(|link| self.concern.includes(link));
        self.links = included
            .map(|link| (link.index, self.concern.names(link)))
            .collect();
    }

    /// True if no link has one of these names. Hardware may get it as an alternative name, which the kernel's filter cannot
    /// compare.
    fn lacks_one_of(&self, names: &BTreeSet<String>) -> bool {
        let found: BTreeSet<&String> = self.links.values().flatten().collect();
        names.iter().any(|name| !found.contains(name))
    }

    /// Has the kernel drop the events about other links.
    fn pass_events_to(&self, monitor: &LinkMonitor) -> linux::Result<()> {
        let indexes: Vec<_> = self.links.keys().copied().collect();
        match &self.concern {
            Concern::Named(names) => {
                let without_kind = self.lacks_one_of(names);
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                monitor.pass_only(&LinkFilter {
                    names: &names,
                    indexes: &indexes,
                    without_kind,
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
            LinkEvent::Changed(link) => self.take(&link),
        }
    }

    fn take(&mut self, link: &Link) -> Outcome {
        let names = self.concern.names(link);
        let known = self.links.get(&link.index);
        if known == Some(&names) {
            return Outcome::Nothing;
        }
        if !self.concern.includes(link) {
            return match self.links.remove(&link.index) {
                Some(_) => Outcome::Changed,
                None => Outcome::Nothing,
            };
        }
        // Some events lack the kind, and a new link without a kind looks like hardware.
        if known.is_none() && self.concern == Concern::Suitable && link.kind.is_none() {
            return Outcome::Unclear;
        }
        self.links.insert(link.index, names);
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
        known.links.values().flatten().map(String::as_str).collect()
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
        known.list(&links);
        assert_eq!(names(&known), ["eth0", "bond0"]);
    }

    #[test]
    fn follow_reports_created_removed_and_renamed_links() {
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
    fn link_with_a_listed_alternative_name_is_relevant() {
        // cni-plugins#67 (an alternative name)
        let long = "a-name-that-no-link-is-found-by";
        let wanted = BTreeSet::from(["enp3s0f0np0", long].map(str::to_owned));
        let mut known = Known::new(Concern::Named(wanted.clone()));
        assert!(known.lacks_one_of(&wanted), "events of hardware count");
        let named = |alternatives: &[&str]| {
            let mut link = link(5, "eth1", None);
            link.alternative_names = alternatives.iter().map(|name| (*name).to_owned()).collect();
            link
        };
        known.list(&[named(&["other", "enp3s0f0np0", long])]);
        assert_eq!(names(&known), ["enp3s0f0np0"]);
        assert!(!known.lacks_one_of(&BTreeSet::from(["enp3s0f0np0".to_owned()])));
        let mut follow = |alternatives: &[&str]| {
            let event = LinkEvent::Changed(Box::new(named(alternatives)));
            let outcome = known.follow(event);
            (outcome, known.links.len())
        };
        assert_eq!(follow(&["enp3s0f0np0"]), (Outcome::Nothing, 1));
        assert_eq!(follow(&["other"]), (Outcome::Changed, 0));
        assert_eq!(follow(&["other", "enp3s0f0np0"]), (Outcome::Changed, 1));
    }

    #[test]
    fn follow_lists_links_for_a_new_link_without_kind() {
        let mut known = Known::new(Concern::Suitable);
        assert_eq!(known.follow(changed(5, "eth0", None)), Outcome::Unclear);
        assert!(names(&known).is_empty());
        assert_eq!(known.follow(changed(6, "bond0", Some("bond"))), Outcome::Changed);
        assert_eq!(known.follow(changed(6, "bond0", None)), Outcome::Nothing);
        assert_eq!(known.follow(changed(6, "bond1", None)), Outcome::Changed);
        assert_eq!(names(&known), ["bond1"]);
    }
}
