//! What a node tells, before anything is made of it.

use crate::request::PodRef;
use cni::cache::Entry;
use plugins::traces::Trace;
use std::collections::BTreeSet;
use std::time::SystemTime;

/// All that was found on a node.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) node: String,
    /// The sandboxes that the runtimes know, or why they are not known.
    pub(super) runtime: Result<BTreeSet<String>, String>,
    pub(super) attachments: Vec<Attachment>,
    /// Sandboxes of which multus has a scratch file alone.
    pub(super) prepared: Vec<Prepared>,
    pub(super) traces: Vec<Trace>,
    /// Cache files that can't be read.
    pub(super) broken: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) now: SystemTime,
}

/// The program whose cache holds an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Keeper {
    /// The container runtime.
    Runtime,
    /// The multus daemon.
    Multus,
}

/// An attachment in a cache.
#[derive(Debug, Clone)]
pub(super) struct Attachment {
    pub(super) keeper: Keeper,
    pub(super) pod: PodRef,
    pub(super) sandbox: String,
    pub(super) interface: String,
    pub(super) network: String,
    pub(super) plugins: Vec<String>,
    pub(super) netns: Netns,
    pub(super) checked: Checked,
}

impl Attachment {
    /// An attachment whose CHECK was not called.
    pub(super) fn of(keeper: Keeper, entry: &Entry, plugins: Vec<String>, netns: Netns) -> Self {
        Self {
            keeper,
            pod: PodRef::named_in(&entry.args),
            sandbox: entry.container_id.clone(),
            interface: entry.ifname.clone(),
            network: entry.network.clone(),
            plugins,
            netns,
            checked: Checked::NotAsked(String::new()),
        }
    }
}

/// The network namespace of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Netns {
    /// Something is at its path.
    There,
    /// Nothing is at its path.
    Gone,
    /// The cache names no path.
    Unknown,
}

/// The answer to CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Checked {
    Good,
    /// The plugins that failed, and their errors.
    Failed(Vec<(String, String)>),
    /// CHECK was not called, and why.
    NotAsked(String),
}

/// A sandbox that is being attached, or whose ADD was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) sandbox: String,
    pub(super) written: SystemTime,
}
