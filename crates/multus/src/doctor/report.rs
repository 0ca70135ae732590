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
    /// Limits of this look.
    pub notes: Vec<String>,
}

/// One attachment.
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
    /// The result.
    pub check: Check,
    /// Why CHECK was not called.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The result of CHECK for an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Check {
    /// Every plugin says that the attachment is as ADD made it.
    Ok,
    /// A plugin says that it differs.
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
    /// A cache file can't be read.
    Unreadable,
}

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The pod, `NAMESPACE/NAME`; empty when it is not known.
    pub pod: String,
    /// Interface in the pod; empty when it is not known.
    pub interface: String,
    /// Name of the network; empty when it is not known.
    pub network: String,
    /// ID of the sandbox; empty when it is not known.
    pub sandbox: String,
    /// The plugin; empty when the problem is of no single plugin.
    pub plugin: String,
    /// The problem: for a drifted attachment the plugin's error.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

/// The result of `--repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repair {
    /// What was removed.
    pub removed: Vec<String>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
    /// Why nothing was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
