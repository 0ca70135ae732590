//! What all enactments of a policy together make of it (nmstate §2.3, §5.7).

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use super::messages;
use super::objects::Enactment;
use crate::conditions::{self, Condition, Status};
use crate::names::{condition, reason};

/// Nodes that a policy is for and that have a handler.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Nodes {
    /// All of them.
    pub all: BTreeSet<String>,
    /// Those that are ready.
    pub ready: BTreeSet<String>,
}

/// How a policy is going.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Nothing is known yet.
    Unknown,
    /// It is for no node.
    NotMatching,
    /// It failed on some nodes, or was not tried there because of that.
    Failed {
        /// Nodes on which it failed.
        failed: usize,
        /// Nodes on which it was not tried.
        aborted: usize,
        /// Nodes that it is for.
        nodes: usize,
    },
    /// Some nodes are not done with it.
    Progressing {
        /// Ready nodes that are done with it.
        finished: usize,
        /// Ready nodes that it is for.
        ready: usize,
        /// Nodes that wait for others.
        pending: usize,
        /// Nodes that are not waited for.
        not_ready: usize,
    },
    /// All ready nodes have what it wants.
    Success {
        /// Nodes that have it.
        available: usize,
        /// Nodes that it is for.
        nodes: usize,
        /// Nodes that are not waited for.
        not_ready: usize,
        /// Whether it was only tried.
        tried: bool,
    },
}

/// How a policy is going by its enactments; those of another generation tell nothing about this one.
pub fn outcome(generation: i64, enactments: &[Enactment], nodes: &Nodes, is_dry_run: bool) -> Outcome {
    let of_generation = || enactments.iter().filter(|one| one.generation == generation);
    let is = |status: Option<Status>| status == Some(Status::True);
    let is_finished = |one: &Enactment| is(one.available) || one.is_failed() || is(one.aborted);
    let not_ready = nodes.all.len().saturating_sub(nodes.ready.len());
    let failed = of_generation().filter(|one| one.is_failed()).count();
    let aborted = of_generation().filter(|one| is(one.aborted)).count();
    let pending = of_generation().filter(|one| is(one.pending)).count();
    // Nodes that nobody waits for must not stand in for others that are not done.
    let finished = of_generation().filter(|one| nodes.ready.contains(&one.node) && is_finished(one));
    let finished = finished.count();
    let ready = nodes.ready.len();
    if nodes.all.is_empty() {
        Outcome::NotMatching
    } else if failed > 0 || aborted > 0 {
        Outcome::Failed {
            failed,
            aborted,
            nodes: nodes.all.len(),
        }
    } else if finished < ready || pending > 0 {
        Outcome::Progressing {
            finished,
            ready,
            pending,
            not_ready,
        }
    } else {
        let available = of_generation().filter(|one| nodes.all.contains(&one.node) && is(one.available));
        Outcome::Success {
            available: available.count(),
            nodes: nodes.all.len(),
            not_ready,
            tried: is_dry_run,
        }
    }
}

impl Outcome {
    /// Sets all four conditions.
    pub fn set(&self, conditions: &mut Vec<Condition>, now: Timestamp) {
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
                // As the established handler says it.
                Self::Failed { .. } if kind == condition::PROGRESSING => reason::PROGRESSING,
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
                ready,
                pending,
                not_ready,
            } => messages::progressing(finished, ready, pending, not_ready),
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

/// Whether two lists of conditions say the same, whenever they were set.
pub fn same(one: &[Condition], other: &[Condition]) -> bool {
    let said = |condition: &Condition| {
        (
            condition.kind.clone(),
            condition.status,
            condition.reason.clone(),
            condition.message.clone(),
        )
    };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| said(one) == said(other))
}

#[cfg(test)]
mod tests;
