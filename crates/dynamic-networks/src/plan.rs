//! What is to be plugged in and unplugged, and what a pod's status says afterwards (multus.md §13.2). Pure.
//!
//! ```text
//! networks annotation ──> wanted: network and interface ─┐
//!                                                        ├─> steps: make room, add in annotation order, remove in
//! network-status ───────> there:  network and interface ─┘          status order
//! ```

use cni::json::{self, Object};
use cni::result::{CniResult, Interface};
use cni::selection::{MAX_NETWORKS, NetworkSelection, SelectionError, parse_networks};
use cni::status::{NetworkStatus, StatusError, entries_for};
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// Keys of a status entry that are read here.
mod field {
    pub(super) const NAME: &str = "name";
    pub(super) const INTERFACE: &str = "interface";
    pub(super) const DEFAULT: &str = "default";
}

/// The longest name of a namespace, and of a definition.
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

/// Why nothing can be said about a pod's networks.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Its wishes are malformed.
    #[error("{0}")]
    Networks(#[from] SelectionError),
    /// Its status is malformed.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Two elements of its wishes have one interface.
    #[error("interface {0} is asked for twice")]
    Twice(String),
    /// An interface belongs to something that stays, such as the default network.
    #[error("interface {ifname} is taken by network {network}")]
    Taken {
        /// The interface.
        ifname: String,
        /// Whose it is.
        network: String,
    },
    /// An element names what can't be a definition.
    #[error("{0:?} can't be the namespace and name of a network-attachment-definition")]
    Name(String),
    /// Its status lists more networks than a pod may have.
    #[error(
        "the network-status annotation lists {0} networks to remove, at most {MAX_NETWORKS} are looked at"
    )]
    TooMany(usize),
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

    /// What it is once it is plugged in.
    pub fn attachment(&self) -> Attachment {
        Attachment {
            network: self.network(),
            ifname: self.ifname.clone(),
        }
    }
}

/// An attachment: a network, as `namespace/name`, and an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
}

/// One thing that has to happen to a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A network comes.
    Plug(Box<Wanted>),
    /// A network goes.
    Unplug(Attachment),
}

/// An entry of the status, as far as it matters here, and its text, which stays as it is.
struct Entry<'a> {
    name: String,
    interface: Option<String>,
    default: bool,
    text: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(text: &'a RawValue) -> Result<Self, json::Error> {
        let object = Object::parse(text.get().as_bytes())?;
        Ok(Self {
            name: object.read(field::NAME)?.unwrap_or_default(),
            interface: object.read(field::INTERFACE)?,
            default: object.read(field::DEFAULT)?.unwrap_or_default(),
            text: text.get(),
        })
    }

    fn is(&self, attachment: &Attachment) -> bool {
        self.name == attachment.network && self.interface.as_deref() == Some(&attachment.ifname)
    }
}

fn entries(status: &str) -> Result<Vec<Entry<'_>>, StatusError> {
    if status.is_empty() {
        return Ok(Vec::new());
    }
    let texts: Vec<&RawValue> = serde_json::from_str(status).map_err(StatusError::List)?;
    let parse = |(index, text)| Entry::parse(text).map_err(|source| StatusError::Entry { index, source });
    texts.into_iter().enumerate().map(parse).collect()
}

/// Compares what a pod of `namespace` asks for with what its status lists.
///
/// As long as any element names no interface nothing changes: it can't be told which attachment it is. The default
/// network is left alone, and so is what is not the work of a definition: its name is none of a definition.
///
/// Networks come before others go, but where an interface has to become free for another network.
pub fn plan(networks: &str, status: &str, namespace: &str) -> Result<Vec<Step>, Unreadable> {
    let wanted = parse_networks(networks, namespace)?;
    let entries = entries(status)?;
    let mut named = Vec::with_capacity(wanted.len());
    for element in wanted {
        match element.interface.clone() {
            Some(ifname) => named.push(Wanted { ifname, element }),
            None => return Ok(Vec::new()),
        }
    }
    let mut ifnames = BTreeSet::new();
    for wanted in &named {
        if !ifnames.insert(wanted.ifname.as_str()) {
            return Err(Unreadable::Twice(wanted.ifname.clone()));
        }
        if !is_definition(&wanted.network()) {
            return Err(Unreadable::Name(wanted.network()));
        }
    }
    let default = entries
        .iter()
        .find(|entry| entry.default)
        .map(|entry| &entry.name);
    let mut there = BTreeSet::new();
    let mut gone = Vec::new();
    let kept: BTreeSet<_> = named.iter().map(Wanted::attachment).collect();
    for entry in &entries {
        let Some(ifname) = &entry.interface else { continue };
        let attachment = Attachment {
            network: entry.name.clone(),
            ifname: ifname.clone(),
        };
        let stays = entry.default || Some(&entry.name) == default || !is_definition(&entry.name);
        if kept.contains(&attachment) {
            there.insert(attachment);
        } else if !stays {
            gone.push(attachment);
        } else if ifnames.contains(ifname.as_str()) {
            return Err(Unreadable::Taken {
                ifname: ifname.clone(),
                network: entry.name.clone(),
            });
        }
    }
    if gone.len() > MAX_NETWORKS {
        return Err(Unreadable::TooMany(gone.len()));
    }
    let (first, then): (Vec<_>, Vec<_>) = gone
        .into_iter()
        .partition(|attachment| ifnames.contains(attachment.ifname.as_str()));
    let first: Vec<_> = first.into_iter().map(Step::Unplug).collect();
    let missing = named
        .into_iter()
        .filter(|wanted| !there.contains(&wanted.attachment()))
        .map(|wanted| Step::Plug(Box::new(wanted)));
    Ok(first
        .into_iter()
        .chain(missing)
        .chain(then.into_iter().map(Step::Unplug))
        .collect())
}

/// Whether a text can be `namespace/name` of a definition: names as the API server validates them.
fn is_definition(network: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_label = |text: &str| {
        !text.is_empty() && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
    };
    network.split_once('/').is_some_and(|(namespace, name)| {
        namespace.len() <= MAX_LABEL
            && is_label(namespace)
            && name.len() <= MAX_NAME
            && name.split('.').all(is_label)
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

/// The status once a network is there, on the ground of what it is now: others write it too. Entries keep their order
/// and their texts, a new one follows.
pub fn with(now: &str, new: &NetworkStatus) -> Result<String, StatusError> {
    let attachment = Attachment {
        network: new.name.clone(),
        ifname: new.interface.clone().unwrap_or_default(),
    };
    let text = json::pretty(new);
    let entries = entries(now)?;
    let replaced = entries.iter().position(|entry| entry.is(&attachment));
    let mut texts: Vec<&str> = entries.iter().map(|entry| entry.text).collect();
    match replaced {
        Some(place) => texts[place] = &text,
        None => texts.push(&text),
    }
    Ok(list(&texts))
}

/// The status once a network is gone, as [`with`].
pub fn without(now: &str, gone: &Attachment) -> Result<String, StatusError> {
    let entries = entries(now)?;
    let stay = entries.iter().filter(|entry| entry.default || !entry.is(gone));
    let texts: Vec<&str> = stay.map(|entry| entry.text).collect();
    Ok(list(&texts))
}

fn list(texts: &[&str]) -> String {
    format!("[{}]", texts.join(","))
}

#[cfg(test)]
mod tests;
