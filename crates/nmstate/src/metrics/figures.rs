//! What counts of an object, and what is told of all of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::wire::{
    Condition, NodeNetworkConfigurationEnactment, NodeNetworkConfigurationPolicy, NodeNetworkState, Route,
};
use crate::names::condition;

/// What is known; nothing of a kind whose objects have not been listed yet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Figures {
    /// Reports by node.
    pub reports: Option<Vec<(String, Report)>>,
    /// Policies.
    pub policies: Option<Vec<Policy>>,
    /// Enactments.
    pub enactments: Option<Vec<Enactment>>,
}

/// What counts of a node's state.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Report {
    /// Interfaces by their type.
    pub interfaces: BTreeMap<Box<str>, u32>,
    /// Routes by IP stack and by whether somebody configured them.
    pub routes: BTreeMap<(&'static str, &'static str), u32>,
}

impl Report {
    /// Counts.
    pub fn of(state: &NodeNetworkState) -> Self {
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

/// What counts of a policy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// What it is, if that can be said.
    pub status: Option<&'static str>,
}

impl Policy {
    /// Looks at its conditions.
    pub fn of(policy: &NodeNetworkConfigurationPolicy) -> Self {
        let conditions = policy
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        Self {
            status: active(conditions, &condition::OF_POLICIES),
        }
    }
}

/// What counts of an enactment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Enactment {
    /// Its node, as a label says.
    pub node: Box<str>,
    /// What it is, if that can be said.
    pub status: Option<&'static str>,
    /// What it makes use of.
    pub features: Vec<Box<str>>,
}

impl Enactment {
    /// Looks at its labels, conditions and features.
    pub fn of(enactment: NodeNetworkConfigurationEnactment) -> Self {
        let node = enactment.node().unwrap_or_default().into();
        let status = enactment.status.unwrap_or_default();
        Self {
            node,
            status: active(status.conditions.as_deref(), &condition::OF_ENACTMENTS),
            features: status.features.unwrap_or_default(),
        }
    }
}

/// The type of the first condition that is true, if it is one of the known.
fn active(conditions: Option<&[Condition]>, known: &[&'static str]) -> Option<&'static str> {
    let mut conditions = conditions.unwrap_or_default().iter();
    let first = conditions.find(|condition| condition.status.as_deref() == Some("True"))?;
    let kind = first.kind.as_deref()?;
    known.iter().find(|known| **known == kind).copied()
}

/// Features that any enactment makes use of.
pub fn features(enactments: &[Enactment]) -> BTreeSet<&str> {
    let features = enactments.iter().flat_map(|enactment| &enactment.features);
    features.map(|name| &**name).collect()
}

/// How many policies are what; what none of them is too.
pub fn policies(policies: &[Policy]) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::from(condition::OF_POLICIES.map(|status| (status, 0)));
    for status in policies.iter().filter_map(|policy| policy.status) {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

/// How many enactments of a node are what; what none of them is too.
pub fn enactments(enactments: &[Enactment]) -> BTreeMap<(&str, &'static str), u32> {
    let mut counts = BTreeMap::new();
    for enactment in enactments.iter().filter(|enactment| !enactment.node.is_empty()) {
        for status in condition::OF_ENACTMENTS {
            let is = u32::from(enactment.status == Some(status));
            *counts.entry((&*enactment.node, status)).or_default() += is;
        }
    }
    counts
}
