//! The status of a policy: the sum of its enactments (nmstate §2.3, §5.7).

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use super::{messages, slots};
use crate::conditions::{self, Condition, Status};
use crate::legacy;
use crate::names::{condition, reason};
use crate::objects::{Enactment, Policy};

/// Nodes that a policy selects and that run a handler.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Nodes {
    /// All of them.
    pub all: BTreeSet<String>,
    /// Those that are Ready.
    pub ready: BTreeSet<String>,
}

/// State of a policy on all its nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// No node has reported yet.
    Unknown,
    /// The policy selects no node.
    NotMatching,
    /// The policy failed on some nodes; others may have aborted.
    Failed {
        /// Nodes on which it failed.
        failed: usize,
        /// Nodes that aborted.
        aborted: usize,
        /// Nodes that the policy selects.
        nodes: usize,
    },
    /// Some nodes have no result yet.
    Progressing {
        /// Awaited nodes with a result.
        finished: usize,
        /// Nodes that are Ready, and nodes that became `NotReady` while they were applying the policy.
        awaited: usize,
        /// Nodes that wait for a slot.
        pending: usize,
        /// Nodes that are not awaited.
        not_ready: usize,
        /// Whether a node failed an attempt or became `NotReady`, or none is awaited: an edit may be
        /// necessary.
        stalled: bool,
    },
    /// All awaited nodes have the desired state, and at least one does.
    Success {
        /// Nodes with the desired state.
        available: usize,
        /// Nodes that the policy selects.
        nodes: usize,
        /// Nodes that are not awaited.
        not_ready: usize,
        /// Whether it was a dry run.
        tried: bool,
    },
}

/// The outcome of a policy by its enactments. Enactments of another generation are ignored.
pub(crate) fn outcome(generation: i64, enactments: &[Enactment], nodes: &Nodes, is_dry_run: bool) -> Outcome {
    let of_generation = || enactments.iter().filter(|one| one.generation == generation);
    let is = |status: Option<Status>| status == Some(Status::True);
    let is_finished = |one: &Enactment| is(one.available) || one.is_failed() || is(one.aborted);
    // A node that becomes NotReady while it applies the policy may have cut itself off, and only it knows the result.
    let applying = of_generation().filter(|one| is(one.progressing));
    let applying: BTreeSet<&String> = applying.map(|one| &one.node).collect();
    let is_awaited = |node: &String| nodes.ready.contains(node) || applying.contains(node);
    let awaited = nodes.all.iter().filter(|&node| is_awaited(node)).count();
    let not_ready = nodes.all.len().saturating_sub(awaited);
    let failed = of_generation().filter(|one| one.is_failed()).count();
    let aborted = of_generation().filter(|one| is(one.aborted)).count();
    let pending = of_generation().filter(|one| is(one.pending)).count();
    // Nodes that are not awaited must not count in place of nodes without a result.
    let is_selected = |one: &Enactment| nodes.all.contains(&one.node);
    let finished =
        of_generation().filter(|one| is_selected(one) && is_awaited(&one.node) && is_finished(one));
    let finished = finished.count();
    let available = of_generation().filter(|one| is_selected(one) && is(one.available));
    let available = available.count();
    if nodes.all.is_empty() {
        Outcome::NotMatching
    } else if failed > 0 || aborted > 0 {
        Outcome::Failed {
            failed,
            aborted,
            nodes: nodes.all.len(),
        }
    } else if finished < awaited || pending > 0 || available == 0 {
        Outcome::Progressing {
            finished,
            awaited,
            pending,
            not_ready,
            stalled: of_generation().any(Enactment::is_retrying)
                || awaited > nodes.ready.len()
                || awaited == 0,
        }
    } else {
        Outcome::Success {
            available,
            nodes: nodes.all.len(),
            not_ready,
            tried: is_dry_run,
        }
    }
}

impl Outcome {
    /// Sets all four conditions.
    pub(crate) fn set(&self, conditions: &mut Vec<Condition>, now: Timestamp) {
        use Status::{False, True, Unknown};
        // In the order of condition::OF_POLICIES.
        let (statuses, why) = match self {
            Self::Unknown => ([Unknown; 4], ""),
            Self::NotMatching => ([False, False, False, True], reason::NO_MATCHING_NODE),
            Self::Failed { .. } => ([False, True, False, False], reason::FAILED),
            Self::Progressing { .. } => ([Unknown, Unknown, True, False], reason::PROGRESSING),
            Self::Success { .. } => ([True, False, False, False], reason::SUCCESS),
        };
        let text = self.text();
        for (kind, status) in condition::OF_POLICIES.into_iter().zip(statuses) {
            let why = match self {
                // As upstream sets it.
                Self::Failed { .. } if kind == condition::PROGRESSING => reason::PROGRESSING,
                // Admission permits an edit of the policy by this reason.
                Self::Progressing { stalled: true, .. } if kind == condition::AVAILABLE => reason::STALLED,
                _ => why,
            };
            let text = if status == True { text.as_str() } else { "" };
            conditions::set(conditions, kind, status, why, text, now);
        }
    }

    fn text(&self) -> String {
        match *self {
            Self::Unknown => String::new(),
            Self::NotMatching => messages::NO_NODE.to_owned(),
            Self::Failed {
                failed,
                aborted,
                nodes,
            } => messages::degraded(failed, nodes, aborted),
            Self::Progressing {
                finished,
                awaited,
                pending,
                not_ready,
                ..
            } => messages::progressing(finished, awaited, pending, not_ready),
            Self::Success {
                available,
                nodes,
                not_ready,
                tried: false,
            } => messages::available(available, nodes, not_ready),
            Self::Success {
                available,
                nodes,
                not_ready,
                tried: true,
            } => messages::tried(available, nodes, not_ready),
        }
    }
}

/// The conditions of a policy with this outcome.
pub(crate) fn conditions(policy: &Policy, outcome: Outcome, now: Timestamp) -> Vec<Condition> {
    let mut conditions = policy.conditions();
    outcome.set(&mut conditions, now);
    let kind = condition::MAX_UNAVAILABLE_VALID;
    match slots::mistake(legacy::max_unavailable(policy.spec()).as_ref()) {
        Some(mistake) => conditions::set(
            &mut conditions,
            kind,
            Status::False,
            reason::INVALID_MAX_UNAVAILABLE,
            &messages::default_limit(&mistake),
            now,
        ),
        None => conditions.retain(|one| one.kind != kind),
    }
    conditions
}

/// Whether two lists of conditions are equal except for their times.
pub(crate) fn same(one: &[Condition], other: &[Condition]) -> bool {
    let content = |condition: &Condition| {
        (
            condition.kind.clone(),
            condition.status,
            condition.reason.clone(),
            condition.message.clone(),
        )
    };
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(one, other)| content(one) == content(other))
}

#[cfg(test)]
mod tests;
