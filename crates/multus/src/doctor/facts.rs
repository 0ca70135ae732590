//! The observed state of a node.

use crate::sandbox::PodRef;
use cni::cache::Entry;
use plugins::traces::Trace;
use std::collections::BTreeSet;
use std::time::SystemTime;

/// All observations on a node.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) node: String,
    /// The sandboxes of the runtimes, or the error.
    pub(super) runtime: Result<BTreeSet<String>, String>,
    pub(super) attachments: Vec<CachedAttachment>,
    /// Sandboxes with a scratch file but no cached result.
    pub(super) prepared: Vec<Prepared>,
    pub(super) traces: Vec<Trace>,
    /// Errors of unreadable cache files.
    pub(super) broken: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) now: SystemTime,
}

/// The owner of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CacheOwner {
    Runtime,
    Multus,
}

/// An attachment in a cache.
#[derive(Debug, Clone)]
pub(super) struct CachedAttachment {
    pub(super) owner: CacheOwner,
    pub(super) pod: PodRef,
    pub(super) sandbox: String,
    pub(super) interface: String,
    pub(super) network: String,
    pub(super) plugins: Vec<String>,
    pub(super) netns: Netns,
    pub(super) checked: Checked,
}

impl CachedAttachment {
    /// An attachment whose CHECK was not called.
    pub(super) fn of(owner: CacheOwner, entry: &Entry, plugins: Vec<String>, netns: Netns) -> Self {
        Self {
            owner,
            pod: PodRef::named_in(&entry.args),
            sandbox: entry.container_id.clone(),
            interface: entry.ifname.clone(),
            network: entry.network.clone(),
            plugins,
            netns,
            checked: Checked::Skipped(String::new()),
        }
    }
}

/// The network namespace of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Netns {
    /// The path exists.
    There,
    /// The path does not exist.
    Gone,
    /// The cache has no path.
    Unknown,
}

/// The result of CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Checked {
    Good,
    /// The plugins that failed, and their errors.
    Failed(Vec<(String, String)>),
    /// CHECK was not called, for this reason.
    Skipped(String),
}

/// A sandbox whose ADD is running, or was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) sandbox: String,
    pub(super) written: SystemTime,
}
