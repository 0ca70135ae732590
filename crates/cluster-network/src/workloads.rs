//! Rollout of the workloads, from their reported statuses (§11.2).

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube_kit::{conditions::whole_seconds, object::ObjectId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names;

/// Time without progress after which a rollout hangs.
const STALL_LIMIT: Duration = Duration::from_mins(10);

/// Previous observations, stored in an annotation of the `ClusterOperator` to survive restarts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct State {
    /// `DaemonSet`s with a rollout in progress.
    #[serde(deserialize_with = "null_as_default")]
    pub daemonset_states: Vec<ObservedWorkload>,
    /// Deployments with a rollout in progress.
    #[serde(deserialize_with = "null_as_default")]
    pub deployment_states: Vec<ObservedWorkload>,
    /// `StatefulSet`s with a rollout in progress.
    #[serde(deserialize_with = "null_as_default")]
    pub statefulset_states: Vec<ObservedWorkload>,
    /// True if all workloads have been available once. Older versions did not store the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_complete: Option<bool>,
}

/// A workload with a rollout in progress.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ObservedWorkload {
    /// Name of the cluster. Empty for this cluster.
    pub cluster_name: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub name: String,
    /// Last status of the workload.
    pub last_seen_status: Value,
    /// Time of the last change of the status.
    pub last_change_time: Option<Time>,
}

fn null_as_default<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<ObservedWorkload>, D::Error> {
    Option::deserialize(input).map(Option::unwrap_or_default)
}

impl State {
    /// Reads the annotation. An annotation without `install_complete` gets the availability of the network instead.
    pub fn read(annotation: Option<&str>, is_available: bool) -> Self {
        let mut state: Self = annotation
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        state.install_complete.get_or_insert(is_available);
        state
    }

    fn of(&mut self, kind: &str) -> &mut Vec<ObservedWorkload> {
        match kind {
            "DaemonSet" => &mut self.daemonset_states,
            "Deployment" => &mut self.deployment_states,
            _ => &mut self.statefulset_states,
        }
    }
}

/// Rollout of all workloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// A line for each workload with a rollout in progress. A line without a workload is about all of them.
    pub progressing: Vec<(Option<ObjectId>, String)>,
    /// Workloads whose rollout hangs, with the message of the condition.
    pub hung: Vec<(ObjectId, String)>,
    /// Workloads with the annotation of a hung rollout, whose rollout does not hang any more.
    pub moving_again: Vec<ObjectId>,
    /// True if all workloads have this version, and the rollouts of all critical workloads are complete.
    pub reached: bool,
    /// Observations to store.
    pub state: State,
    /// Time until the next rollout may hang.
    pub look_again: Option<Duration>,
    /// Critical workloads with pods that are not available.
    pub unavailable: Vec<ObjectId>,
}

impl Assessment {
    /// The message about all rollouts in progress. Empty without any.
    pub fn progress(&self) -> String {
        let lines: Vec<&str> = self.progressing.iter().map(|(_, line)| line.as_str()).collect();
        lines.join("\n")
    }

    /// Adds a cause to the lines of a workload.
    pub fn explain(&mut self, id: &ObjectId, cause: &str) {
        let progressing = self
            .progressing
            .iter_mut()
            .filter(|(of, _)| of.as_ref() == Some(id));
        let hung = self.hung.iter_mut().filter(|(of, _)| of == id);
        for line in progressing
            .map(|(_, line)| line)
            .chain(hung.map(|(_, line)| line))
        {
            line.push_str(": ");
            line.push_str(cause);
        }
    }
}

/// Kind and name of a workload in messages. The part before the first slash is the cluster, empty for this cluster.
pub fn title(workload: &Value) -> String {
    let id = ObjectId::of(workload);
    let namespace = id.namespace.as_deref().unwrap_or_default();
    format!("{} \"{}/{namespace}/{}\"", id.kind, cluster(workload), id.name)
}

/// Name of the cluster of a workload. Empty for this cluster.
fn cluster(workload: &Value) -> &str {
    workload["metadata"]["annotations"][names::CLUSTER_NAME]
        .as_str()
        .unwrap_or_default()
}

/// Assesses the rollout of all reported workloads.
///
/// `is_applied` is true if all rendered workloads exist.
pub fn assess(
    workloads: &[&Value],
    before: &State,
    version: &str,
    is_applied: bool,
    now: Timestamp,
) -> Assessment {
    let is_installed = before.install_complete == Some(true);
    let mut found = Assessment {
        reached: is_applied && !workloads.is_empty(),
        ..Assessment::default()
    };
    for workload in workloads {
        one(
            &Workload(workload),
            before,
            is_installed,
            version,
            now,
            &mut found,
        );
    }
    if workloads.is_empty() {
        found
            .progressing
            .push((None, crate::messages::DEPLOYING.to_owned()));
    }
    found.state.install_complete = Some(is_installed || (found.reached && found.progressing.is_empty()));
    found
}

fn one(
    workload: &Workload<'_>,
    before: &State,
    is_installed: bool,
    version: &str,
    now: Timestamp,
    found: &mut Assessment,
) {
    let id = ObjectId::of(workload.0);
    let is_critical = !workload.has_annotation(names::NON_CRITICAL);
    let line = workload.line(is_critical, is_installed);
    if workload.annotation(names::VERSION_ANNOTATION) != Some(version) {
        found.reached = false;
    }
    if is_critical && workload.counts().unavailable > 0 {
        found.unavailable.push(id.clone());
    }
    let mut is_hung = false;
    if let Some(line) = line {
        if is_critical {
            found.reached = false;
            let observed = workload.observed(before, &id, now);
            let since = observed.last_change_time.as_ref().map_or(now, |Time(at)| *at);
            let still = Duration::try_from(now.duration_since(since)).unwrap_or_default();
            is_hung = still >= STALL_LIMIT;
            if is_hung {
                let text = format!(
                    "{} rollout is not making progress - last change {since}",
                    workload.title()
                );
                found.hung.push((id.clone(), text));
            } else {
                let left = STALL_LIMIT.saturating_sub(still);
                found.look_again = Some(found.look_again.map_or(left, |other| other.min(left)));
            }
            found.state.of(workload.kind()).push(observed);
        }
        found.progressing.push((Some(id.clone()), line));
    }
    if !is_hung && workload.has_annotation(names::ROLLOUT_HUNG) {
        found.moving_again.push(id);
    }
}

struct Workload<'a>(&'a Value);

/// Numbers of pods of a workload.
struct Counts {
    current: i64,
    updated: i64,
    unavailable: i64,
    available: i64,
    ready: i64,
}

impl Workload<'_> {
    fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.0["metadata"]["annotations"][key].as_str()
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.annotation(key).is_some()
    }

    fn title(&self) -> String {
        title(self.0)
    }

    fn number(&self, key: &str) -> i64 {
        self.0["status"][key].as_i64().unwrap_or_default()
    }

    fn counts(&self) -> Counts {
        if self.kind() == "DaemonSet" {
            return Counts {
                current: self.number("currentNumberScheduled"),
                updated: self.number("updatedNumberScheduled"),
                unavailable: self.number("numberUnavailable"),
                available: self.number("numberAvailable"),
                ready: self.number("numberReady"),
            };
        }
        let (replicas, ready) = (self.number("replicas"), self.number("readyReplicas"));
        let unavailable = match self.kind() {
            "Deployment" => self.number("unavailableReplicas"),
            // A StatefulSet does not report unavailable pods.
            _ if ready > 0 && ready < replicas => replicas - ready,
            _ => 0,
        };
        Counts {
            current: replicas,
            updated: self.number("updatedReplicas"),
            unavailable,
            available: self.number("availableReplicas"),
            ready,
        }
    }

    /// The line of a rollout in progress. `None` for a complete rollout.
    fn line(&self, is_critical: bool, is_installed: bool) -> Option<String> {
        let title = self.title();
        let Counts {
            current,
            updated,
            unavailable,
            available,
            ready,
        } = self.counts();
        let nothing_ready = if self.kind() == "Deployment" {
            unavailable > 0
        } else {
            ready == 0
        };
        if !is_critical && nothing_ready && !is_installed {
            return Some(format!("{title} is waiting for other operators to become ready"));
        }
        let generation = self.0["metadata"]["generation"].as_i64().unwrap_or_default();
        let observed = self.number("observedGeneration");
        if generation > observed {
            return Some(format!(
                "{title} update is being processed (generation {generation}, observed generation {observed})"
            ));
        }
        if updated < current {
            return Some(format!(
                "{title} update is rolling out ({updated} out of {current} updated)"
            ));
        }
        if is_installed {
            return None;
        }
        if unavailable > 0 {
            return Some(format!("{title} is not available (awaiting {unavailable} nodes)"));
        }
        (available == 0).then(|| format!("{title} is not yet scheduled on any nodes"))
    }

    /// The observation to store: the status, and the time since which it is unchanged.
    fn observed(&self, before: &State, id: &ObjectId, now: Timestamp) -> ObservedWorkload {
        let mut before = before.clone();
        let known = before.of(self.kind()).iter().find(|observed| {
            observed.cluster_name == cluster(self.0)
                && Some(&observed.namespace) == id.namespace.as_ref()
                && observed.name == id.name
                && observed.last_seen_status == self.0["status"]
        });
        ObservedWorkload {
            cluster_name: cluster(self.0).to_owned(),
            namespace: id.namespace.clone().unwrap_or_default(),
            name: id.name.clone(),
            last_seen_status: self.0["status"].clone(),
            last_change_time: known
                .and_then(|observed| observed.last_change_time.clone())
                .or_else(|| Some(whole_seconds(now))),
        }
    }
}

#[cfg(test)]
mod tests;
