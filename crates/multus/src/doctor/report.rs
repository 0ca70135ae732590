//! The result of `weft doctor`. The JSON shape is documented in `docs/command-line.md` and stays stable: programs read it,
//! and `kubectl weft doctor` reads it from the nodes.

use serde::{Deserialize, Serialize};

/// The state of one node's attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Name of the node.
    pub node: String,
    /// Every attachment in the caches, sorted by pod and interface.
    pub attachments: Vec<Row>,
    /// The problems; empty on a healthy node.
    pub findings: Vec<Finding>,
    /// The result of `--repair`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
    /// Limits of this check.
    pub notes: Vec<String>,
}

/// An attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// The pod, `NAMESPACE/NAME`; empty when the runtime did not name it.
    pub pod: String,
    /// Interface in the pod.
    pub interface: String,
    /// Name of the network.
    pub network: String,
    /// ID of the sandbox.
    pub sandbox: String,
    /// The network's plugins in order.
    pub plugins: Vec<String>,
    /// The result of CHECK.
    pub check: Check,
    /// Why CHECK was not called.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The result of CHECK for an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Check {
    /// Every plugin reports the attachment as ADD made it.
    Ok,
    /// A plugin reports drift.
    Failed,
    /// CHECK was not called.
    #[default]
    NotChecked,
    /// The sandbox is gone.
    LeftOver,
}

/// The kind of a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// An attachment is not as ADD made it.
    #[default]
    Drifted,
    /// State of a sandbox that is gone.
    LeftOver,
    /// A cache file cannot be read.
    Unreadable,
}

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The kind of problem.
    pub kind: Kind,
    /// The pod, `NAMESPACE/NAME`; empty when unknown.
    pub pod: String,
    /// Interface in the pod; empty when unknown.
    pub interface: String,
    /// Name of the network; empty when unknown.
    pub network: String,
    /// ID of the sandbox; empty when unknown.
    pub sandbox: String,
    /// The plugin; empty when the problem concerns no single plugin.
    pub plugin: String,
    /// The problem; for drift the plugin's error.
    pub problem: String,
    /// Advice for the user.
    pub advice: String,
}

/// The result of `--repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repair {
    /// The removed leftovers.
    pub removed: Vec<String>,
    /// The leftovers that could not be removed, and the errors.
    pub failed: Vec<String>,
    /// The reason why nothing was attempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
