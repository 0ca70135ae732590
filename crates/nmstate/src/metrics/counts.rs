//! The counted parts of an object, and the counts over all objects.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::wire::{
    Condition, NodeNetworkConfigurationEnactment, NodeNetworkConfigurationPolicy, NodeNetworkState, Route,
};
use crate::names::condition;

/// The counted parts of all objects; `None` for a kind that is not listed yet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Snapshot {
    /// Reports by node.
    pub reports: Option<Vec<(String, ReportCounts)>>,
    /// Policies.
    pub policies: Option<Vec<PolicyCounts>>,
    /// Enactments.
    pub enactments: Option<Vec<EnactmentCounts>>,
}

/// The counts of a node's report.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct ReportCounts {
    /// Interfaces by their type.
    pub interfaces: BTreeMap<Box<str>, u32>,
    /// Routes by IP stack, and by `static` or `dynamic`.
    pub routes: BTreeMap<(&'static str, &'static str), u32>,
}

impl ReportCounts {
    /// Counts a report.
    pub(crate) fn of(state: &NodeNetworkState) -> Self {
        let mut report = Self::default();
        let current = state
            .status
            .as_ref()
            .and_then(|status| status.current_state.as_ref());
        let Some(current) = current else { return report };
        for interface in current.interfaces.iter().flatten() {
            let Some(kind) = interface.kind.as_deref().filter(|kind| !kind.is_empty()) else {
                continue;
            };
            match report.interfaces.get_mut(kind) {
                Some(count) => *count += 1,
                None => {
                    report.interfaces.insert(kind.into(), 1);
                }
            }
        }
        let Some(routes) = &current.routes else {
            return report;
        };
        let configured = routes.config.iter().flatten().map(Route::destination);
        let configured: HashSet<_> = configured.collect();
        for route in routes.running.iter().flatten() {
            let destination = route.destination();
            let stack = if destination.contains(':') { "ipv6" } else { "ipv4" };
            let kind = if configured.contains(destination) {
                "static"
            } else {
                "dynamic"
            };
            *report.routes.entry((stack, kind)).or_default() += 1;
        }
        report
    }
}

/// The counted part of a policy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PolicyCounts {
    /// Its active condition.
    pub status: Option<&'static str>,
}

impl PolicyCounts {
    /// Reads the conditions.
    pub(crate) fn of(policy: &NodeNetworkConfigurationPolicy) -> Self {
        let conditions = policy
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        Self {
            status: active(conditions, &condition::OF_POLICIES),
        }
    }
}

/// The counted parts of an enactment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct EnactmentCounts {
    /// Node of the label.
    pub node: Box<str>,
    /// Its active condition.
    pub status: Option<&'static str>,
    /// Features that it uses.
    pub features: Vec<Box<str>>,
}

impl EnactmentCounts {
    /// Reads labels, conditions and features.
    pub(crate) fn of(enactment: NodeNetworkConfigurationEnactment) -> Self {
        let node = enactment.node().unwrap_or_default().into();
        let status = enactment.status.unwrap_or_default();
        Self {
            node,
            status: active(status.conditions.as_deref(), &condition::OF_ENACTMENTS),
            features: status.features.unwrap_or_default(),
        }
    }
}

/// The type of the first condition that is true, if it is a known one.
fn active(conditions: Option<&[Condition]>, known: &[&'static str]) -> Option<&'static str> {
    let mut conditions = conditions.unwrap_or_default().iter();
    let first = conditions.find(|condition| condition.status.as_deref() == Some("True"))?;
    let kind = first.kind.as_deref()?;
    known.iter().find(|known| **known == kind).copied()
}

/// Features of all enactments.
pub(crate) fn features(enactments: &[EnactmentCounts]) -> BTreeSet<&str> {
    let features = enactments.iter().flat_map(|enactment| &enactment.features);
    features.map(|name| &**name).collect()
}

/// Number of policies by status, with zeros.
pub(crate) fn policies(policies: &[PolicyCounts]) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::from(condition::OF_POLICIES.map(|status| (status, 0)));
    for status in policies.iter().filter_map(|policy| policy.status) {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

/// Number of enactments by node and status, with zeros.
pub(crate) fn enactments(enactments: &[EnactmentCounts]) -> BTreeMap<(&str, &'static str), u32> {
    let mut counts = BTreeMap::new();
    for enactment in enactments.iter().filter(|enactment| !enactment.node.is_empty()) {
        for status in condition::OF_ENACTMENTS {
            let is = u32::from(enactment.status == Some(status));
            *counts.entry((&*enactment.node, status)).or_default() += is;
        }
    }
    counts
}
