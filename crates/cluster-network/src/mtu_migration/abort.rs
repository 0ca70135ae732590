//! The end of a migration whose request is gone: finished, or back to the former MTUs.

use super::policy::{self, Draft, Goal, Progress};
use super::uplink::{self, Settings};
use super::{Action, Begun, Facts, Hostnames, Node, Plan, of_absent_nodes, overdue, unready};
use crate::messages::mtu_migration as messages;

/// True if the operator or the user has finalised the migration that is not in the configuration any more. A user does
/// so with the MTU of pods, unless the configuration had it from the start. Otherwise all nodes must have their MTU.
pub(super) fn is_finished(facts: &Facts) -> bool {
    let Some(Begun {
        target,
        configured,
        finalised,
    }) = facts.begun
    else {
        return true;
    };
    let is_changed = |node: &String| {
        let policy = facts.policies.get(&policy::name(node));
        policy.is_none_or(|(policy, progress)| {
            let is_released = policy.goal == Some(Goal::Mtu(target.machine)) && !policy.is_dry_run;
            is_released && *progress == Progress::Done
        })
    };
    finalised
        || match target.network {
            Some(mtu) if configured != Some(mtu) => facts.network_mtu == Some(mtu),
            _ => facts.nodes.keys().all(is_changed),
        }
}

/// Deletes all policies, then the mark.
pub(super) fn end(facts: &Facts) -> Plan {
    if facts.begun.is_none() {
        return Plan::default();
    }
    let mut actions: Vec<Action> = facts.policies.keys().cloned().map(Action::Delete).collect();
    if actions.is_empty() {
        actions.push(Action::Mark(None));
    }
    Plan::of_actions(actions)
}

/// The order in which nodes return.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Turn {
    /// The node applies the policy at the moment. No other node may change meanwhile.
    Applying,
    /// The new MTU may be the reason for which the node is not ready.
    NotReady,
    Ready,
}

/// The next step back to the former MTUs. No policy is deleted before all nodes have theirs: an operator that ends
/// meanwhile would take the rest for a finished migration.
pub(super) fn abort(facts: &Facts) -> Plan {
    let mut plan = Plan::of_actions(of_absent_nodes(facts));
    let hostnames = Hostnames::of(facts);
    let (mut running, mut left) = (0, 0);
    let (mut next, mut awaited) = (None, None);
    for (node, observed) in &facts.nodes {
        plan.obstacles.extend(unready(node, observed));
        let name = policy::name(node);
        let Some((policy, progress)) = facts.policies.get(&name) else {
            continue;
        };
        if !policy.may_have_changed() {
            continue;
        }
        if policy.goal == Some(Goal::Former) && !policy.is_dry_run {
            let unfinished = match progress {
                Progress::Failed(message) => {
                    plan.failures.push(messages::failed(node, false, message));
                    true
                }
                Progress::Retrying(message) => {
                    plan.obstacles.push(messages::failed(node, false, message));
                    true
                }
                Progress::Pending => {
                    plan.obstacles.extend(overdue(facts, node));
                    awaited.get_or_insert_with(|| messages::awaited(node, false));
                    true
                }
                // The next migration must not take the aborted MTU of a stale report for the former one.
                Progress::Done => {
                    let stale = not_shown(node, observed, &policy.former);
                    let is_stale = stale.is_some();
                    plan.obstacles.extend(stale);
                    is_stale
                }
            };
            running += usize::from(unfinished);
            left += usize::from(unfinished);
            continue;
        }
        left += 1;
        if policy.former.is_empty() {
            plan.failures.push(messages::former_unknown(node, &name));
            continue;
        }
        match hostnames.of_node(node, observed) {
            Ok(hostname) => {
                let is_awaited = matches!(progress, Progress::Pending | Progress::Retrying(_));
                let turn = if is_awaited && !policy.is_dry_run {
                    Turn::Applying
                } else if observed.is_ready {
                    Turn::Ready
                } else {
                    Turn::NotReady
                };
                if next.as_ref().is_none_or(|(before, _)| turn < *before) {
                    next = Some((turn, back(node, hostname, &policy.former)));
                }
            }
            Err(text) => plan.failures.push(text),
        }
    }
    if left == 0 {
        let Plan { actions, .. } = end(facts);
        return Plan::of_actions(actions);
    }
    plan.set_progress(messages::aborting(left), awaited);
    let are_ready = facts.nodes.values().all(|node| node.is_ready);
    let next = next.filter(|(turn, _)| are_ready || *turn != Turn::Ready);
    if running == 0 {
        plan.actions.extend(next.map(|(_, draft)| Action::Write(draft)));
    }
    plan
}

/// The difference between the former MTUs and the report.
fn not_shown(node: &str, observed: &Node, former: &Settings) -> Option<String> {
    let links = observed.links.as_ref()?.as_ref().ok()?;
    let (interface, mtu) = uplink::differing(links, former)?;
    Some(messages::not_shown(node, interface, mtu))
}

/// The policy that gives a node its former MTUs.
fn back(node: &str, hostname: &str, former: &Settings) -> Draft {
    Draft {
        node: node.to_owned(),
        hostname: hostname.to_owned(),
        goal: Goal::Former,
        settings: former.clone(),
        former: former.clone(),
        is_dry_run: false,
        was_changed: false,
    }
}
