//! Node network policies of a migration: their rendering, and their state on the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::uplink::{self, Settings};
use crate::{
    names::{self, nmstate},
    objects::{list, text},
};

/// Prefix of the names of policies.
const PREFIX: &str = "mtu-migration-";
/// Maximum length of a policy's name, which enactments have as a label.
const LONGEST: usize = 63;
/// Digits of the digest that shortens a name.
const DIGITS: usize = 8;

/// Name of the policy of a node.
pub fn name(node: &str) -> String {
    let name = format!("{PREFIX}{node}");
    if name.len() <= LONGEST {
        return name;
    }
    let digest: String = Sha256::digest(node)
        .iter()
        .take(DIGITS / 2)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Node names are ASCII.
    let head: String = name.chars().take(LONGEST - DIGITS - 1).collect();
    format!("{}-{digest}", head.trim_end_matches(['.', '-']))
}

/// Result that a policy leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Goal {
    /// The uplink has this MTU in bytes.
    Mtu(u32),
    /// All interfaces have their former MTU.
    Former,
}

/// A policy to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Draft {
    /// Name of the node.
    pub node: String,
    /// Value of label `kubernetes.io/hostname` of the node.
    pub hostname: String,
    /// Result that the policy leads to.
    pub goal: Goal,
    /// Desired interfaces.
    pub settings: Settings,
    /// Interfaces before the migration.
    pub former: Settings,
    /// True if the node must not be changed.
    pub is_dry_run: bool,
    /// True if an earlier version of the policy may have changed the node.
    pub was_changed: bool,
}

impl Draft {
    /// The object, owned by the operator configuration with this UID.
    pub fn object(&self, owner: &str) -> Value {
        let goal = match self.goal {
            Goal::Mtu(mtu) => mtu.to_string(),
            Goal::Former => names::FORMER.to_owned(),
        };
        let mut annotations = json!({
            names::MTU_GOAL: goal,
            names::FORMER_MTU: json!(self.former).to_string(),
            // This annotation permits the edit: a handler that is applying the earlier spec rolls it back.
            nmstate::EDIT_IN_PROGRESS: "true",
        });
        if self.is_dry_run {
            annotations[nmstate::DRY_RUN] = json!("true");
        }
        if self.was_changed {
            annotations[names::MTU_CHANGED] = json!("true");
        }
        json!({
            "apiVersion": "nmstate.io/v1",
            "kind": "NodeNetworkConfigurationPolicy",
            "metadata": {
                "name": name(&self.node),
                "labels": { names::PART_LABEL: names::MTU_MIGRATION },
                "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": "operator.openshift.io/v1",
                    "kind": "Network",
                    "name": api::cluster_network::SINGLETON,
                    "uid": owner,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "nodeSelector": { names::HOSTNAME_LABEL: self.hostname },
                "desiredState": uplink::document(&self.settings),
            },
        })
    }
}

/// Merge patch with which the node applies a policy after its dry run.
pub fn release() -> Value {
    json!({ "metadata": { "annotations": { nmstate::DRY_RUN: null } } })
}

/// An observed policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// UID of the object.
    pub uid: String,
    /// Generation of the object, which changes with its spec.
    pub generation: i64,
    /// Result that the policy leads to. `None` if the annotation is malformed.
    pub goal: Option<Goal>,
    /// Interfaces before the migration.
    pub former: Settings,
    /// True if the node must not be changed.
    pub is_dry_run: bool,
    /// True if an earlier version of the policy may have changed the node.
    pub was_changed: bool,
}

impl Policy {
    /// True if the node may have another MTU than before the migration.
    pub fn may_have_changed(&self) -> bool {
        !self.is_dry_run || self.was_changed
    }

    /// Reads a policy. Malformed annotations count as missing.
    pub fn read(object: &Value) -> Self {
        let annotation = |key: &str| object["metadata"]["annotations"][key].as_str();
        let goal = annotation(names::MTU_GOAL).and_then(|goal| match goal {
            names::FORMER => Some(Goal::Former),
            mtu => mtu.parse().ok().map(Goal::Mtu),
        });
        let former = annotation(names::FORMER_MTU).and_then(|text| serde_json::from_str(text).ok());
        Self {
            uid: text(object, "/metadata/uid").to_owned(),
            generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
            goal,
            former: former.unwrap_or_default(),
            is_dry_run: annotation(nmstate::DRY_RUN) == Some("true"),
            was_changed: annotation(names::MTU_CHANGED) == Some("true"),
        }
    }
}

/// State that a node reported of a policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reported {
    /// No result yet.
    Pending,
    /// The dry run succeeded.
    Tried,
    /// The policy is applied.
    Applied,
    /// The dry run or the rendering of the policy failed, and nmstate retries it.
    Retrying(String),
    /// The policy failed, and the node is rolled back.
    Failed(String),
}

/// The MTU of an interface in the policy of a user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stated {
    /// Name of the policy.
    pub policy: String,
    /// Name of the interface.
    pub interface: String,
    /// MTU in bytes.
    pub mtu: u64,
}

/// An observed enactment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Enactment {
    /// Name of its node.
    pub node: String,
    /// Name of its policy.
    pub policy: String,
    /// MTUs in the desired state of the policy, by the name of the interface.
    pub mtus: BTreeMap<String, u64>,
    /// UID of its policy. Empty if not reported.
    pub policy_uid: String,
    /// Generation of its policy.
    pub generation: i64,
    /// State that the node reported.
    pub reported: Reported,
}

impl Enactment {
    /// Reads an enactment.
    pub fn read(object: &Value) -> Self {
        let conditions: Vec<&Value> = list(object, "/status/conditions").collect();
        let is_true = |kind: &str| {
            let mut conditions = conditions.iter();
            conditions
                .find(|it| it["type"] == kind && it["status"] == "True")
                .copied()
        };
        let failed = |condition: &Value| {
            let message = text(condition, "/message").to_owned();
            if condition["reason"] == nmstate::RETRYING {
                Reported::Retrying(message)
            } else {
                Reported::Failed(message)
            }
        };
        let reported = if let Some(available) = is_true(nmstate::AVAILABLE) {
            if available["reason"] == nmstate::TRIED {
                Reported::Tried
            } else {
                Reported::Applied
            }
        } else if is_true(nmstate::PROGRESSING).is_some() {
            Reported::Pending
        } else if let Some(condition) = is_true(nmstate::FAILING).or(is_true(nmstate::ABORTED)) {
            failed(condition)
        } else {
            Reported::Pending
        };
        let label = |key: &str| {
            object["metadata"]["labels"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let interfaces = list(object, "/status/desiredState/interfaces");
        Self {
            node: label(nmstate::NODE_LABEL),
            policy: label(nmstate::POLICY_LABEL),
            mtus: interfaces
                .filter_map(|it| Some((it["name"].as_str()?.to_owned(), it["mtu"].as_u64()?)))
                .collect(),
            policy_uid: text(object, "/status/policyUID").to_owned(),
            generation: object["status"]["policyGeneration"].as_i64().unwrap_or_default(),
            reported,
        }
    }

    /// The MTUs that the policy gives its node. A dry run gives none, and neither does the policy of the migration.
    pub fn stated(&self) -> impl Iterator<Item = Stated> {
        let counts = self.reported != Reported::Tried && self.policy != name(&self.node);
        let mtus = self.mtus.iter().filter(move |_| counts);
        mtus.map(|(interface, mtu)| Stated {
            policy: self.policy.clone(),
            interface: interface.clone(),
            mtu: *mtu,
        })
    }
}

/// Progress of a policy on its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Progress {
    /// The node has no result yet.
    Pending,
    /// The dry run, or the policy, succeeded.
    Done,
    /// The dry run or the rendering of the policy failed, and nmstate retries it.
    Retrying(String),
    /// The dry run, or the policy, failed.
    Failed(String),
}

/// The progress of a policy, from its enactment. An enactment of another generation, or of a deleted policy with the
/// same name, does not count.
pub fn progress(policy: &Policy, enactment: Option<&Enactment>) -> Progress {
    let is_current = |it: &&Enactment| {
        it.generation == policy.generation && (it.policy_uid.is_empty() || it.policy_uid == policy.uid)
    };
    match (
        enactment.filter(is_current).map(|it| &it.reported),
        policy.is_dry_run,
    ) {
        (Some(Reported::Tried), true) | (Some(Reported::Applied), false) => Progress::Done,
        (Some(Reported::Failed(message)), _) => Progress::Failed(message.clone()),
        (Some(Reported::Retrying(message)), _) => Progress::Retrying(message.clone()),
        _ => Progress::Pending,
    }
}

/// Time after which a node should have reported the result of a policy. A change and its rollback take up to 12
/// minutes (nmstate §5.6).
pub const OVERDUE: Duration = Duration::from_mins(15);

/// Policies without a result, and the time at which this process first observed that.
#[derive(Debug, Default)]
pub struct Awaited(BTreeMap<String, (Policy, Instant)>);

impl Awaited {
    /// Notes the observed policies. Returns the names of overdue ones, and the time at which the next one is overdue.
    pub fn note<'a>(
        &mut self,
        policies: impl IntoIterator<Item = (&'a String, &'a (Policy, Progress))>,
        now: Instant,
    ) -> (BTreeSet<String>, Option<Instant>) {
        let mut before = std::mem::take(&mut self.0);
        for (name, (policy, progress)) in policies {
            if *progress == Progress::Pending {
                let known = before.remove(name).filter(|(known, _)| known == policy);
                let entry = known.unwrap_or_else(|| (policy.clone(), now));
                self.0.insert(name.clone(), entry);
            }
        }
        let due = |since: &Instant| *since + OVERDUE;
        let is_overdue = |(_, (_, since)): &(&String, &(Policy, Instant))| due(since) <= now;
        let overdue = self.0.iter().filter(is_overdue);
        let overdue = overdue.map(|(name, _)| name.clone()).collect();
        let pending = self.0.values().map(|(_, since)| due(since));
        (overdue, pending.filter(|due| *due > now).min())
    }
}

#[cfg(test)]
mod tests;
