//! Recent warnings about objects of the add-ons.

use api::{names::NETWORK_ADDONS_KIND, network_addons::Condition};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{Observed, pods::text};
use operator::{messages, names};

/// Maximum age of reported warnings in seconds.
const RECENT: i64 = 60 * 60;
/// Maximum number of reported warnings.
const WARNINGS: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Warning {
    /// Age in seconds.
    #[serde(rename = "seconds")]
    pub(super) age: i64,
    pub(super) object: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Whether a condition currently has the same message.
pub(super) fn is_reported(warning: &Warning, conditions: &[Condition]) -> bool {
    let says_it = |found: &Condition| warning.message == messages::operator_failed(&found.message);
    conditions.iter().any(says_it)
}

/// The newest warnings about objects of the add-ons, without duplicates.
pub(super) fn warnings(observed: &Observed, now: Timestamp) -> Vec<Warning> {
    let mut names: Vec<String> = observed
        .workloads
        .iter()
        .map(|object| text(object, "/metadata/name"))
        .collect();
    names.push(names::OPERATOR.to_owned());
    let is_ours = |event: &Value| {
        let name = text(event, "/involvedObject/name");
        // Names of pods and ReplicaSets start with the name of their workload, also after its deletion.
        let after = |workload: &String| {
            name.strip_prefix(workload.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        text(event, "/involvedObject/kind") == NETWORK_ADDONS_KIND || names.iter().any(after)
    };
    let mut found: Vec<Warning> = observed
        .events
        .iter()
        .filter(|event| is_ours(event))
        .filter_map(|event| {
            let times = [
                "/series/lastObservedTime",
                "/lastTimestamp",
                "/eventTime",
                "/firstTimestamp",
                "/metadata/creationTimestamp",
            ];
            let last: Timestamp = times
                .iter()
                .find_map(|pointer| text(event, pointer).parse().ok())?;
            let kind = text(event, "/involvedObject/kind").to_lowercase();
            Some(Warning {
                age: (now.as_second() - last.as_second()).max(0),
                object: format!("{kind}/{}", text(event, "/involvedObject/name")),
                reason: text(event, "/reason"),
                message: text(event, "/message"),
            })
        })
        .filter(|warning| warning.age <= RECENT)
        .collect();
    found.sort_by_key(|warning| warning.age);
    let mut newest: Vec<Warning> = Vec::new();
    for warning in found {
        let is_known = |known: &Warning| (&known.object, &known.reason) == (&warning.object, &warning.reason);
        if !newest.iter().any(is_known) {
            newest.push(warning);
        }
    }
    newest.truncate(WARNINGS);
    newest
}
