//! Decides which networks to plug and unplug, and edits the network status accordingly (multus.md §13.2). Pure.
//!
//! ```text
//! networks annotation ──> desired: network and interface ──┐
//!                                                          ├─> steps: free interfaces, add in annotation order,
//! network-status ───────> observed: network and interface ─┘          remove in status order
//! ```

use cni::json::{self, Object};
use cni::result::{CniResult, Interface};
use cni::selection::{MAX_NETWORKS, NetworkSelection, SelectionError, parse_networks};
use cni::status::{NetworkStatus, StatusError, entries_for};
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// Keys of a status entry that are read.
mod field {
    pub(super) const NAME: &str = "name";
    pub(super) const INTERFACE: &str = "interface";
    pub(super) const DEFAULT: &str = "default";
}

/// Limits of the names of namespaces and definitions.
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

/// No steps can be decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The networks annotation is malformed.
    #[error("{0}")]
    Networks(#[from] SelectionError),
    /// The network status is malformed.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Two elements of the annotation name the same interface.
    #[error("interface {0} is asked for twice")]
    Twice(String),
    /// The interface belongs to a network that is not unplugged, such as the default network.
    #[error("interface {ifname} is taken by network {network}")]
    Taken {
        /// The interface.
        ifname: String,
        /// The network that owns it.
        network: String,
    },
    /// An element does not name a valid definition.
    #[error("{0:?} can't be the namespace and name of a network-attachment-definition")]
    Name(String),
    /// The status lists more networks to remove than a pod may have.
    #[error("the network-status annotation lists {0} networks to remove, the limit is {MAX_NETWORKS}")]
    TooMany(usize),
}

/// A network to plug in, and its interface in the pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DesiredNetwork {
    /// The interface.
    pub ifname: String,
    /// The element of the annotation.
    pub element: NetworkSelection,
}

impl DesiredNetwork {
    /// `namespace/name` of the definition.
    pub(crate) fn network(&self) -> String {
        format!("{}/{}", self.element.namespace, self.element.name)
    }

    /// The attachment that it becomes.
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment {
            network: self.network(),
            ifname: self.ifname.clone(),
        }
    }
}

/// An attachment: a network, as `namespace/name`, and an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attachment {
    /// The network.
    pub network: String,
    /// The interface.
    pub ifname: String,
}

impl Attachment {
    /// Namespace and name of the definition.
    pub(crate) fn definition(&self) -> (&str, &str) {
        self.network.split_once('/').unwrap_or(("", &self.network))
    }
}

/// One step of the plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Attach a network.
    Plug(Box<DesiredNetwork>),
    /// Detach a network.
    Unplug(Attachment),
}

/// An entry of the status: the fields that matter, and its verbatim text.
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

/// Compares the networks annotation of a pod in `namespace` with its status.
///
/// Returns no steps if any element lacks an interface name, because its attachment cannot be identified. The default
/// network is never changed, nor are entries whose name is not that of a definition.
///
/// Networks are added before others are removed, except where an interface must become free for another network.
pub(crate) fn plan(networks: &str, status: &str, namespace: &str) -> Result<Vec<Step>, PlanError> {
    let desired = parse_networks(networks, namespace)?;
    let entries = entries(status)?;
    let mut named = Vec::with_capacity(desired.len());
    for element in desired {
        match element.interface.clone() {
            Some(ifname) => named.push(DesiredNetwork { ifname, element }),
            None => return Ok(Vec::new()),
        }
    }
    let mut ifnames = BTreeSet::new();
    for desired in &named {
        if !ifnames.insert(desired.ifname.as_str()) {
            return Err(PlanError::Twice(desired.ifname.clone()));
        }
        if !is_definition(&desired.network()) {
            return Err(PlanError::Name(desired.network()));
        }
    }
    let default = entries
        .iter()
        .find(|entry| entry.default)
        .map(|entry| &entry.name);
    let mut attached = BTreeSet::new();
    let mut gone = Vec::new();
    let kept: BTreeSet<_> = named.iter().map(DesiredNetwork::attachment).collect();
    for entry in &entries {
        let Some(ifname) = &entry.interface else { continue };
        let attachment = Attachment {
            network: entry.name.clone(),
            ifname: ifname.clone(),
        };
        let stays = entry.default || Some(&entry.name) == default || !is_definition(&entry.name);
        if kept.contains(&attachment) {
            attached.insert(attachment);
        } else if !stays {
            gone.push(attachment);
        } else if ifnames.contains(ifname.as_str()) {
            return Err(PlanError::Taken {
                ifname: ifname.clone(),
                network: entry.name.clone(),
            });
        }
    }
    if gone.len() > MAX_NETWORKS {
        return Err(PlanError::TooMany(gone.len()));
    }
    let (first, then): (Vec<_>, Vec<_>) = gone
        .into_iter()
        .partition(|attachment| ifnames.contains(attachment.ifname.as_str()));
    let first: Vec<_> = first.into_iter().map(Step::Unplug).collect();
    let missing = named
        .into_iter()
        .filter(|desired| !attached.contains(&desired.attachment()))
        .map(|desired| Step::Plug(Box::new(desired)));
    Ok(first
        .into_iter()
        .chain(missing)
        .chain(then.into_iter().map(Step::Unplug))
        .collect())
}

/// Whether a text is a valid `namespace/name` of a definition, by the API server's rules.
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

/// The status entry of a plugged network: its interface in the pod with all addresses.
pub(crate) fn entry(desired: &DesiredNetwork, result: &CniResult) -> NetworkStatus {
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
    let mut entries = entries_for(&desired.network(), &alone, false, None);
    let mut entry = entries.pop().unwrap_or_default();
    // The requested name identifies the entry later, whatever name the plugin reported.
    entry.interface = Some(desired.ifname.clone());
    entry
}

/// The status with a network added or replaced. `now` is the current status, which other components write too. Other
/// entries keep their order and text.
pub(crate) fn with(now: &str, new: &NetworkStatus) -> Result<String, StatusError> {
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

/// The status without a network, like [`with`].
pub(crate) fn without(now: &str, gone: &Attachment) -> Result<String, StatusError> {
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
