//! Migration of the MTU by node network policies, on clusters without machine configurations (§6.2).
//!
//! ```text
//! Network: spec.migration ──> dry run on all nodes ──> one node after the other ──> finalise: migration is null
//!      │                             ▲                          ▲
//!      └── ovnkube.conf has both MTUs, and all nodes read it ───┘
//!
//! spec.migration is null before that ──> one node after the other gets its former MTU ──> no policies
//! ```
//!
//! Each step follows from the observed objects alone, so that an operator can end at any point.

use std::collections::{BTreeMap, BTreeSet};

use api::cluster_network::operator::NetworkSpec;
use serde::{Deserialize, Serialize};

pub mod controller;
pub mod policy;
pub mod uplink;

use crate::{
    messages::mtu_migration as messages,
    names,
    operator_config::{MAX_MTU, min_mtu},
};
use policy::{Draft, Goal, Policy, Progress};
use uplink::{Links, Settings};

/// MTUs after the migration, in bytes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Target {
    /// MTU of the nodes' uplinks.
    pub machine: u32,
    /// MTU of pods, if the migration sets it: OVN-Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub network: Option<u32>,
}

/// A begun migration, as marked in the operator configuration while its policies exist.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Begun {
    /// MTUs after the migration.
    #[serde(flatten)]
    pub target: Target,
    /// True if the operator has finalised it: whatever nodes report later, they keep the new MTU.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub finalised: bool,
}

impl Begun {
    /// The mark of a migration that is not finalised.
    pub fn of(target: Target) -> Self {
        Self {
            target,
            finalised: false,
        }
    }
}

/// How far the operator goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Only dry runs.
    DryRun,
    /// Dry runs, then the change.
    Apply,
}

/// Desired migration in the operator configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Request {
    /// The operator must not change anything.
    Unmanaged,
    /// The configuration has no migration of the MTU.
    None,
    /// Another agent changes the MTU of the nodes.
    Elsewhere,
    /// The operator cannot perform the migration.
    Invalid(String),
    /// The operator performs the migration.
    Wanted {
        /// MTUs after the migration.
        target: Target,
        /// How far the operator goes.
        mode: Mode,
        /// The MTU of pods before the migration.
        network_from: Option<u32>,
        /// True if the main loop has applied the migration, which is therefore safe.
        is_accepted: bool,
    },
}

/// The desired migration. `recorded` is the applied configuration.
pub fn request(spec: &NetworkSpec, recorded: Option<&NetworkSpec>) -> Request {
    if spec.management_state == names::UNMANAGED {
        return Request::Unmanaged;
    }
    let Some((migration, mtu)) = spec
        .migration
        .as_ref()
        .and_then(|migration| Some((migration, migration.mtu.as_ref()?)))
    else {
        return Request::None;
    };
    let mode = match migration.node_policies.as_str() {
        names::DRY_RUN => Mode::DryRun,
        names::APPLY => Mode::Apply,
        _ => return Request::Elsewhere,
    };
    let kind = &spec.default_network.kind;
    let is_ovn = kind.eq_ignore_ascii_case(names::OVN_KUBERNETES);
    if !is_ovn && !kind.eq_ignore_ascii_case(names::WEFT) {
        return Request::Invalid(messages::unsupported_network(kind));
    }
    let network = mtu.network.as_ref().filter(|_| is_ovn);
    let range = min_mtu(&spec.cluster_network)..=MAX_MTU;
    let Some(machine) = mtu.machine.as_ref().and_then(|machine| machine.to) else {
        return Request::Invalid(messages::NO_MACHINE_MTU.to_owned());
    };
    if !range.contains(&machine) {
        return Request::Invalid(messages::out_of_range(machine, *range.start(), *range.end()));
    }
    let recorded = recorded.and_then(|recorded| recorded.migration.as_ref()?.mtu.as_ref());
    Request::Wanted {
        target: Target {
            machine,
            network: network.and_then(|network| network.to),
        },
        mode,
        network_from: network.and_then(|network| network.from),
        is_accepted: recorded == Some(mtu),
    }
}

/// A node that runs Linux.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// Label `kubernetes.io/hostname`.
    pub hostname: Option<String>,
    /// True if the kubelet reports the node as ready.
    pub is_ready: bool,
    /// Interfaces that carry the default route. `None` without a report.
    pub links: Option<Links>,
}

/// The observed state.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The desired migration.
    pub request: Request,
    /// The begun migration.
    pub begun: Option<Begun>,
    /// The configured MTU of pods, in bytes.
    pub network_mtu: Option<u32>,
    /// True if all nodes of OVN-Kubernetes use both MTUs of the migration.
    pub is_network_ready: bool,
    /// Nodes that run Linux, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Policies of a migration and their progress, by name.
    pub policies: BTreeMap<String, (Policy, Progress)>,
    /// Names of policies without a result in time.
    pub overdue: BTreeSet<String>,
}

/// A change of the API objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Marks in the operator configuration that a migration has begun, or that it has ended.
    Mark(Option<Target>),
    /// Creates or replaces a policy.
    Write(Draft),
    /// Ends the dry run of the policy with this name, so that the node applies it.
    Release(String),
    /// Deletes the policy with this name. The node keeps its configuration.
    Delete(String),
    /// Removes the migration from the operator configuration, sets this MTU of pods, and marks the end.
    Finalise(Option<u32>),
}

/// Plan of one reconciliation.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Changes, in this order.
    pub actions: Vec<Action>,
    /// Failures on nodes, which end the migration until a user acts.
    pub failures: Vec<String>,
    /// States of nodes that hold up the migration, and that may pass.
    pub obstacles: Vec<String>,
    /// State of the migration.
    pub progress: Option<String>,
}

impl Plan {
    fn of_actions(actions: Vec<Action>) -> Self {
        Self {
            actions,
            ..Self::default()
        }
    }
}

/// Makes the plan.
pub fn plan(facts: &Facts) -> Plan {
    match &facts.request {
        Request::Unmanaged => Plan::default(),
        Request::Invalid(message) => Plan {
            failures: vec![message.clone()],
            ..Plan::default()
        },
        // Another agent continues: the nodes stay as they are.
        Request::Elsewhere => end(facts),
        Request::None if is_finished(facts) => end(facts),
        Request::None => abort(facts),
        Request::Wanted {
            target,
            mode,
            is_accepted,
            ..
        } => {
            if *is_accepted {
                migrate(facts, *target, *mode)
            } else {
                // The main loop reports the reason.
                Plan::default()
            }
        }
    }
}

/// The next step to the MTUs of the migration.
fn migrate(facts: &Facts, target: Target, mode: Mode) -> Plan {
    if facts.begun != Some(Begun::of(target)) {
        return Plan::of_actions(vec![Action::Mark(Some(target))]);
    }
    let goal = Goal::Mtu(target.machine);
    let mut plan = Plan::of_actions(of_absent_nodes(facts));
    if facts.nodes.is_empty() {
        plan.obstacles.push(messages::NO_NODE.to_owned());
        return plan;
    }
    let (mut passed, mut running, mut done, mut failed) = (Vec::new(), 0, 0, 0);
    for (node, observed) in &facts.nodes {
        let name = policy::name(node);
        match facts.policies.get(&name) {
            Some((policy, progress)) if policy.goal == Some(goal) => match (progress, policy.is_dry_run) {
                (Progress::Failed(message), is_dry_run) => {
                    failed += usize::from(!is_dry_run);
                    plan.failures.push(messages::failed(node, is_dry_run, message));
                }
                (Progress::Done, true) => passed.push(name),
                (Progress::Done, false) => done += 1,
                (Progress::Pending, is_dry_run) => {
                    running += usize::from(!is_dry_run);
                    plan.obstacles.extend(delay(facts, node, observed));
                }
            },
            other => match draft(node, observed, other.map(|(policy, _)| policy), target.machine) {
                Ok(draft) => plan.actions.push(Action::Write(draft)),
                Err(Problem::Obstacle(text)) => plan.obstacles.push(text),
                Err(Problem::Failure(text)) => plan.failures.push(text),
            },
        }
    }
    let all = facts.nodes.len();
    let tried = passed.len() + running + done + failed;
    let is_tried = tried == all && plan.failures.is_empty();
    plan.progress = Some(if tried < all {
        messages::dry_run(tried, all)
    } else if done < all && mode == Mode::DryRun {
        messages::dry_run_passed(all)
    } else if !facts.is_network_ready {
        messages::AWAITS_NETWORK.to_owned()
    } else {
        messages::changed(done, all, target.machine)
    });
    if !is_tried || !facts.is_network_ready || mode == Mode::DryRun {
        return plan;
    }
    if done == all {
        plan.actions.push(Action::Finalise(target.network));
    } else if running == 0 {
        plan.actions
            .extend(passed.into_iter().next().map(Action::Release));
    }
    plan
}

/// The reason for which a node has no result, if it should have one.
fn delay(facts: &Facts, node: &str, observed: &Node) -> Option<String> {
    if !observed.is_ready {
        return Some(messages::not_ready(node));
    }
    let is_overdue = facts.overdue.contains(&policy::name(node));
    is_overdue.then(|| messages::overdue(node))
}

/// Reason for which a node gets no policy.
enum Problem {
    /// The state may pass.
    Obstacle(String),
    /// A user has to act.
    Failure(String),
}

/// The policy of a node, which begins with a dry run. A policy of another migration keeps the former MTUs.
fn draft(node: &str, observed: &Node, before: Option<&Policy>, mtu: u32) -> Result<Draft, Problem> {
    let Some(links) = &observed.links else {
        return Err(Problem::Obstacle(messages::no_report(node)));
    };
    let Some(hostname) = &observed.hostname else {
        return Err(Problem::Failure(messages::no_hostname(node)));
    };
    if links.is_empty() {
        // A lease may just be renewed.
        let text = messages::no_settings(node, messages::NO_DEFAULT_ROUTE);
        return Err(Problem::Obstacle(text));
    }
    let settings = uplink::settings(links, mtu)
        .map_err(|message| Problem::Failure(messages::no_settings(node, &message)))?;
    let mut former = uplink::former(links, &settings);
    if let Some(before) = before {
        former.extend(before.former.clone());
    }
    Ok(Draft {
        node: node.to_owned(),
        hostname: hostname.clone(),
        goal: Goal::Mtu(mtu),
        settings,
        former,
        is_dry_run: true,
    })
}

/// Deletes the policies of nodes that do not exist any more.
fn of_absent_nodes(facts: &Facts) -> Vec<Action> {
    let names: BTreeSet<String> = facts.nodes.keys().map(|node| policy::name(node)).collect();
    let absent = facts.policies.keys().filter(|name| !names.contains(*name));
    absent.cloned().map(Action::Delete).collect()
}

/// True if the operator or the user has finalised the migration that is not in the configuration any more. A user does
/// so with the MTU of pods, or, if the migration concerns nodes alone, after all nodes have theirs.
fn is_finished(facts: &Facts) -> bool {
    let Some(Begun { target, finalised }) = facts.begun else {
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
            Some(mtu) => facts.network_mtu == Some(mtu),
            None => facts.nodes.keys().all(is_changed),
        }
}

/// Deletes all policies, then the mark.
fn end(facts: &Facts) -> Plan {
    if facts.begun.is_none() {
        return Plan::default();
    }
    let mut actions: Vec<Action> = facts.policies.keys().cloned().map(Action::Delete).collect();
    if actions.is_empty() {
        actions.push(Action::Mark(None));
    }
    Plan::of_actions(actions)
}

/// The next step back to the former MTUs. No policy is deleted before all nodes have theirs: an operator that ends
/// meanwhile would take the rest for a finished migration.
fn abort(facts: &Facts) -> Plan {
    let mut plan = Plan::of_actions(of_absent_nodes(facts));
    let (mut running, mut left, mut next) = (0, 0, None);
    for (node, observed) in &facts.nodes {
        let Some((policy, progress)) = facts.policies.get(&policy::name(node)) else {
            continue;
        };
        match (policy.goal, progress) {
            _ if policy.is_dry_run || policy.former.is_empty() => {}
            (Some(Goal::Former), Progress::Done) => {}
            (Some(Goal::Former), progress) => {
                left += 1;
                match progress {
                    Progress::Failed(message) => plan.failures.push(messages::failed(node, false, message)),
                    _ => plan.obstacles.extend(delay(facts, node, observed)),
                }
                running += 1;
            }
            _ => {
                left += 1;
                match &observed.hostname {
                    Some(hostname) if next.is_none() => next = Some(back(node, hostname, &policy.former)),
                    Some(_) => {}
                    None => plan.failures.push(messages::no_hostname(node)),
                }
            }
        }
    }
    if left == 0 {
        let Plan { actions, .. } = end(facts);
        return Plan::of_actions(actions);
    }
    plan.progress = Some(messages::aborting(left));
    if running == 0 {
        plan.actions.extend(next.map(Action::Write));
    }
    plan
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
    }
}

#[cfg(test)]
mod tests;
