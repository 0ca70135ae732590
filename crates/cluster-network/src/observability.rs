//! Decides about the installation of network observability, once, by OLM (§18.6).
//!
//! ```text
//! policy, feature gate, topology, condition ──> wish: nothing, or
//!     the kind, its ClusterExtension, its ClusterServiceVersions ──> step:
//!
//!         Install ──> Wait ──> Collect ──> condition True: nothing ever after
//!             └─────────┴─────────┴──────> Fail: OLM or the API server says no
//! ```

use std::time::Duration;

use serde_json::Value;

use crate::messages::observability as messages;
use crate::names;
use crate::objects::{list, text};

pub mod controller;

/// Type of the condition: True after the installation was complete once.
pub const CONDITION: &str = "NetworkObservabilityDeployed";

/// Policy: install, also on a single node.
const INSTALL: &str = "InstallAndEnable";
/// Policy: leave everything as it is.
const NO_ACTION: &str = "NoAction";
/// Topology of a single node, which has no resources to spare.
const SINGLE: &str = "SingleReplica";
/// Reason of OLM while nothing is wrong, and nothing is installed yet.
const ABSENT: &str = "Absent";
/// Reason of OLM after an error.
const RETRYING: &str = "Retrying";

/// Time after which an incomplete installation counts as failed.
const PATIENCE: Duration = Duration::from_mins(10);
/// Limits of the pause between two checks of an installation.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(5));

/// What the operator configuration says about the installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// True if the operator leaves the network alone.
    pub is_unmanaged: bool,
    /// True if the status was written once. The status of a new configuration comes from the
    /// `ClusterOperator`.
    pub has_status: bool,
    /// Status of the condition. `None` without the condition.
    pub deployed: Option<bool>,
}

impl Record {
    /// Reads an operator configuration.
    pub fn of(operator: &Value) -> Self {
        let condition = |kind: &str| {
            let mut all = list(operator, "/status/conditions");
            all.find(|it| text(it, "/type") == kind)
        };
        Self {
            is_unmanaged: text(operator, "/spec/managementState") == names::UNMANAGED,
            has_status: condition("Degraded").is_some(),
            deployed: condition(CONDITION).map(|it| text(it, "/status") == "True"),
        }
    }
}

/// The topology of the control plane in an `Infrastructure`.
pub fn topology(infrastructure: &Value) -> String {
    text(infrastructure, "/status/controlPlaneTopology").to_owned()
}

/// True if network observability has to be installed. A complete installation is never repeated: users may
/// have removed any of its objects.
///
/// `topology` is `None` without an `Infrastructure`.
///
/// # Errors
/// If the policy is unknown.
pub fn wish(policy: &str, has_gate: bool, topology: Option<&str>, record: &Record) -> Result<bool, String> {
    if !has_gate || record.deployed == Some(true) {
        return Ok(false);
    }
    match policy {
        INSTALL => Ok(true),
        NO_ACTION => Ok(false),
        "" => Ok(topology.is_some_and(|topology| topology != SINGLE)),
        unknown => Err(messages::unknown_policy(unknown)),
    }
}

/// State of the installation, as reported in the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The installation is complete.
    Complete,
    /// Another program has to act.
    InProgress(String),
    /// The installation cannot continue.
    Failed(String),
    /// The configuration requests no installation any more, which is not complete.
    NotRequested,
}

impl State {
    /// Status, reason and message of the condition.
    pub fn condition(&self) -> (&'static str, &'static str, &str) {
        match self {
            Self::Complete => ("True", "DeploymentComplete", messages::COMPLETE),
            Self::InProgress(text) => ("False", "DeploymentInProgress", text),
            Self::Failed(text) => ("False", "DeploymentFailed", text),
            Self::NotRequested => ("False", "NotRequested", messages::NOT_REQUESTED),
        }
    }
}

/// What OLM reports about one installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Olm {
    /// It is complete.
    Installed,
    /// It is not complete. The text names the awaited object.
    Pending(String),
    /// It failed. The text is that of the condition.
    Failed(String),
}

impl Olm {
    /// Reads a `ClusterExtension`.
    pub fn of_extension(extension: &Value) -> Self {
        if extension.pointer("/metadata/deletionTimestamp").is_some() {
            return Self::Pending(messages::DELETING.to_owned());
        }
        let condition = |kind: &str| {
            let mut all = list(extension, "/status/conditions");
            all.find(|it| text(it, "/type") == kind).unwrap_or(&Value::Null)
        };
        let (installed, progressing) = (condition("Installed"), condition("Progressing"));
        let (reason, progress) = (text(installed, "/reason"), text(progressing, "/message"));
        match text(installed, "/status") {
            "True" => Self::Installed,
            "False" if reason != ABSENT => {
                let has_error =
                    text(progressing, "/reason") == RETRYING || text(progressing, "/status") == "False";
                let progress = if has_error { progress } else { "" };
                Self::Failed(messages::extension_failed(
                    reason,
                    text(installed, "/message"),
                    progress,
                ))
            }
            _ => Self::Pending(messages::extension_awaited(progress)),
        }
    }

    /// Reads a `ClusterServiceVersion`. `None` for that of another operator.
    pub fn of_version(version: &Value) -> Option<Self> {
        let name = text(version, "/metadata/name");
        if !name.starts_with(names::OBSERVABILITY) {
            return None;
        }
        Some(match text(version, "/status/phase") {
            "Succeeded" => Self::Installed,
            "Failed" => Self::Failed(messages::version_failed(
                text(version, "/status/reason"),
                text(version, "/status/message"),
            )),
            _ => Self::Pending(messages::version_awaited(
                text(version, "/metadata/namespace"),
                name,
            )),
        })
    }
}

/// The observed installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// True if the kind `FlowCollector` is defined.
    pub is_defined: bool,
    /// The `ClusterExtension`, if it exists.
    pub extension: Option<Olm>,
    /// The `ClusterServiceVersion`s: several while OLM replaces one by another.
    pub versions: Vec<Olm>,
}

/// Next step of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing exists: request the operator of network observability from OLM.
    Install,
    /// OLM has to act. The text names the awaited object.
    Wait(String),
    /// The operator is installed: create the `FlowCollector`, unless it exists.
    Collect,
    /// The installation cannot continue. The text is that of the condition.
    Fail(String),
}

impl Observed {
    /// The next step. An existing installation is used, whoever made it, and never repaired.
    pub fn step(&self) -> Step {
        let versions = || self.versions.iter();
        let is_version = versions().any(|it| *it == Olm::Installed);
        let of_version = versions().filter(|_| !is_version);
        if let Some(text) = self.extension.iter().chain(of_version).find_map(|it| match it {
            Olm::Failed(text) => Some(text),
            _ => None,
        }) {
            return Step::Fail(text.clone());
        }
        let olm = if self.extension == Some(Olm::Installed) {
            Some("OLMv1")
        } else {
            is_version.then_some("OLMv0")
        };
        let pending = self.extension.iter().chain(versions()).find_map(|it| match it {
            Olm::Pending(text) => Some(text),
            _ => None,
        });
        match (olm, pending) {
            (Some(_), _) if self.is_defined => Step::Collect,
            (Some(olm), _) => Step::Fail(messages::no_definition(olm)),
            (None, Some(text)) => Step::Wait(text.clone()),
            (None, None) if self.is_defined => Step::Fail(messages::not_checked(messages::UNKNOWN_ORIGIN)),
            (None, None) => Step::Install,
        }
    }
}

/// State of an installation that has been awaited for this time.
fn awaited(text: String, elapsed: Duration) -> State {
    if elapsed >= PATIENCE {
        State::Failed(messages::overdue(&text))
    } else {
        State::InProgress(text)
    }
}

/// Pause until the next check of an installation that has been awaited for this time. The pause is a quarter of
/// that time.
fn pause(elapsed: Duration) -> Duration {
    (elapsed / 4).clamp(PAUSES.0, PAUSES.1)
}

#[cfg(test)]
mod tests;
