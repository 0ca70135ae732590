//! The protocol between plugin and daemon: one JSON line in each direction per connection.
//!
//! Both are always of the same version.

use std::path::PathBuf;

use cni::config::ValidAttachment;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum length of a line, in bytes. The longest valid line lists a node's attachments.
pub const MAX_LINE: u64 = 1 << 20;

/// A request of the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Returns or creates the lease of an attachment. Answered by [`Answer::Lease`].
    Allocate(Allocation),
    /// Releases the lease of an attachment, if any.
    Release(Attachment),
    /// Releases the leases of a network's other attachments.
    Gc(Valid),
    /// Checks that the daemon runs.
    Status,
}

/// The owner of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The container's id.
    pub container: String,
    /// The network's name.
    pub network: String,
    /// The interface in the container.
    pub ifname: String,
}

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// The lease's owner.
    pub attachment: Attachment,
    /// Absolute path of the network namespace, as seen by the runtime.
    pub netns: PathBuf,
    /// Options to send.
    pub provide: Vec<Provided>,
    /// Codes of the requested options.
    pub request: Vec<u8>,
    /// Metric of all routes. 0: the kernel's default.
    pub priority: u32,
}

/// An option to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// The option's code.
    pub code: u8,
    /// The option's value, at most 255 bytes.
    pub value: String,
}

/// The valid attachments of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Valid {
    /// The network's name.
    pub network: String,
    /// The attachments.
    pub attachments: Vec<ValidAttachment>,
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Success.
    Done,
    /// A lease, as a CNI result of the latest version.
    Lease(Value),
    /// Failure with its error text.
    Failed(String),
}
