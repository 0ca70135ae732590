//! What is to be plugged in and unplugged, and what a pod's status says afterwards (multus.md §13.2). Pure.
//!
//! ```text
//! networks annotation ──> wanted: network and interface ─┐
//!                                                        ├─> Change: add in annotation order, remove in status order
//! network-status ───────> there:  network and interface ─┘
//! ```

use cni::result::{CniResult, Interface};
use cni::selection::{NetworkSelection, SelectionError, parse_networks};
use cni::status::{NetworkStatus, StatusError, entries_for, parse};

/// Why nothing can be said about a pod's networks.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Its wishes are malformed.
    #[error("{0}")]
    Networks(#[from] SelectionError),
    /// Its status is malformed.
    #[error("{0}")]
    Status(#[from] StatusError),
}

/// A network to plug in, and its interface in the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The interface.
    pub ifname: String,
    /// The element of the annotation.
    pub element: NetworkSelection,
}

impl Wanted {
    /// `namespace/name` of the definition.
    pub fn network(&self) -> String {
        format!("{}/{}", self.element.namespace, self.element.name)
    }
}

/// An attachment: a network, as `namespace/name`, and an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The network.
    pub network: String,
    /// The interface.
    pub ifname: String,
}

impl Attachment {
    /// Namespace and name of the definition.
    pub fn definition(&self) -> (&str, &str) {
        self.network.split_once('/').unwrap_or(("", &self.network))
    }

    fn is(&self, status: &NetworkStatus) -> bool {
        status.name == self.network && status.interface.as_deref() == Some(&self.ifname)
    }
}

/// What has to happen to a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// To be plugged in first, in this order.
    pub add: Vec<Wanted>,
    /// To be unplugged then, in this order.
    pub remove: Vec<Attachment>,
}

impl Change {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

/// Compares what a pod of `namespace` asks for with what its status lists.
///
/// As long as any element names no interface nothing changes: it can't be told which attachment it is. The default
/// network is left alone, and so is what is not the work of a definition: its name has no namespace.
pub fn plan(networks: &str, status: &str, namespace: &str) -> Result<Change, Unreadable> {
    let wanted = parse_networks(networks, namespace)?;
    let there = parse(status)?;
    let mut named = Vec::with_capacity(wanted.len());
    for element in wanted {
        match element.interface.clone() {
            Some(ifname) => named.push(Wanted { ifname, element }),
            None => return Ok(Change::default()),
        }
    }
    let default = there.iter().find(|entry| entry.default).map(|entry| &entry.name);
    let plugged: Vec<Attachment> = there
        .iter()
        .filter(|entry| !entry.default && Some(&entry.name) != default && entry.name.contains('/'))
        .filter_map(|entry| {
            Some(Attachment {
                network: entry.name.clone(),
                ifname: entry.interface.clone()?,
            })
        })
        .collect();
    let attachment = |wanted: &Wanted| Attachment {
        network: wanted.network(),
        ifname: wanted.ifname.clone(),
    };
    let kept: Vec<_> = named.iter().map(attachment).collect();
    Ok(Change {
        add: named
            .into_iter()
            .filter(|wanted| !there.iter().any(|entry| attachment(wanted).is(entry)))
            .collect(),
        remove: plugged
            .into_iter()
            .filter(|attachment| !kept.contains(attachment))
            .collect(),
    })
}

/// The status entry of a network that was plugged in: its interface in the pod with all addresses.
pub fn entry(wanted: &Wanted, result: &CniResult) -> NetworkStatus {
    let sandboxed = |found: &&Interface| {
        found
            .sandbox
            .as_deref()
            .is_some_and(|sandbox| !sandbox.is_empty())
    };
    let inside = result.interfaces.iter().rfind(sandboxed).cloned();
    let alone = CniResult {
        interfaces: vec![inside.unwrap_or_default()],
        ..result.clone()
    };
    let mut entries = entries_for(&wanted.network(), &alone, false, None);
    let mut entry = entries.pop().unwrap_or_default();
    // By this it is found again, whatever the plugin called it.
    entry.interface = Some(wanted.ifname.clone());
    entry
}

/// The status after a change, on the ground of what it is now: others write it too. Entries keep their order, new ones
/// follow.
pub fn merged(
    now: &str,
    added: &[NetworkStatus],
    removed: &[Attachment],
) -> Result<Vec<NetworkStatus>, StatusError> {
    let mut entries = parse(now)?;
    entries.retain(|entry| entry.default || !removed.iter().any(|gone| gone.is(entry)));
    for new in added {
        let same = |entry: &&mut NetworkStatus| entry.name == new.name && entry.interface == new.interface;
        match entries.iter_mut().find(same) {
            Some(old) => *old = new.clone(),
            None => entries.push(new.clone()),
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
