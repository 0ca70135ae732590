//! The contents of a report, in the form of `-o json`.

use serde::Serialize;

use super::{components::Component, warnings::Warning};

/// The state of the add-ons.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Whether the condition Available is True, and the operator that wrote it is ready.
    pub(super) available: bool,
    /// Whether the configuration resource exists.
    pub(super) configured: bool,
    pub(super) operator: Operator,
    pub(super) conditions: Vec<Line>,
    pub(super) components: Vec<Component>,
    /// Steps that the operator waits for.
    pub(super) in_progress: Vec<Problem>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
    /// Objects that could not be read.
    pub(super) notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<Next>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operator {
    /// Empty if the operator does not exist or cannot be read.
    pub(super) namespace: String,
    pub(super) ready: i64,
    pub(super) desired: i64,
    pub(super) version: String,
    pub(super) target_version: String,
    pub(super) observed_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Line {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// Time since the last transition, in seconds.
    #[serde(rename = "seconds")]
    pub(super) age: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Problem {
    /// The affected component or condition.
    pub(super) about: String,
    pub(super) message: String,
}

/// The next step for the user.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Next {
    /// A sentence.
    pub(super) text: String,
    /// Commands; empty if the sentence is enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) commands: Vec<String>,
}

/// Whether a condition has this status.
pub(super) fn has_status(report: &Report, kind: &str, status: &str) -> bool {
    find(report, kind).is_some_and(|found| found.status == status)
}

pub(super) fn find<'a>(report: &'a Report, kind: &str) -> Option<&'a Line> {
    report.conditions.iter().find(|found| found.kind == kind)
}
