//! What plugin and daemon say to each other: one line of JSON each way, on a connection of its own.
//!
//! Both ends are replaced together.

use std::path::PathBuf;

use cni::config::ValidAttachment;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line either way, in bytes. The longest honest one lists the attachments of a node.
pub const MAX_LINE: u64 = 1 << 20;

/// What the plugin asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The lease of an attachment; a new one if it has none. Answered by [`Answer::Lease`].
    Allocate(Allocation),
    /// To give the lease of an attachment back, if it has one.
    Release(Attachment),
    /// To give the leases of a network's other attachments back.
    Gc(Valid),
    /// Whether the daemon is there.
    Status,
}

/// Whose lease it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The container's id.
    pub container: String,
    /// The network's name.
    pub network: String,
    /// The interface in the container.
    pub ifname: String,
}

/// A lease to obtain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Whose it is.
    pub attachment: Attachment,
    /// Absolute path of the network namespace, as the runtime sees it.
    pub netns: PathBuf,
    /// Options to send.
    pub provide: Vec<Provided>,
    /// Codes of the options to ask for.
    pub request: Vec<u8>,
    /// Metric of all routes; 0 for the kernel's.
    pub priority: u32,
}

/// An option that the client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// Its code.
    pub code: u8,
    /// Its value, 255 bytes at most.
    pub value: String,
}

/// The attachments of a network that are in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Valid {
    /// The network's name.
    pub network: String,
    /// The attachments.
    pub attachments: Vec<ValidAttachment>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is done.
    Done,
    /// A lease, as a CNI result of the latest version.
    Lease(Value),
    /// It failed; why.
    Failed(String),
}
