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

mod abort;
pub mod controller;
pub mod policy;
pub mod uplink;

use crate::{
    messages::mtu_migration as messages,
    names,
    operator_config::{MAX_MTU, min_mtu},
};
use abort::{abort, end, is_finished};
use policy::{Draft, Goal, Policy, Progress, Stated};
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
    /// The configured MTU of pods when the migration began, if the migration sets it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub configured: Option<u32>,
    /// True after the operator removed the migration from its configuration. Nodes then keep the new MTU, even if an
    /// enactment fails later.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub finalised: bool,
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
    /// Interfaces that carry the default route, or the reason for which the report does not show them. `None` without
    /// a report.
    pub links: Option<Result<Links, String>>,
    /// MTUs that policies of users set on this node.
    pub stated: Vec<Stated>,
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
    Mark(Option<Begun>),
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
    /// Reasons for which a node delays the migration. They may end without a user.
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

    fn add(&mut self, problem: Problem) {
        match problem {
            Problem::Obstacle(text) => self.obstacles.push(text),
            Problem::Failure(text) => self.failures.push(text),
        }
    }

    /// Records the stage of the migration. Without a failure, the first obstacle explains a delay, and otherwise the
    /// result that is awaited.
    fn set_progress(&mut self, stage: String, awaited: Option<String>) {
        let reason = self.obstacles.first().cloned().or(awaited);
        self.progress = Some(match reason.filter(|_| self.failures.is_empty()) {
            Some(reason) => messages::delayed(&stage, &reason),
            None => stage,
        });
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
    if facts.begun.is_some_and(|begun| begun.finalised) {
        // The policies hold the MTUs from before the finalised migration.
        return end(facts);
    }
    if facts.begun.is_none_or(|begun| begun.target != target) {
        let configured = target.network.and(facts.network_mtu);
        let begun = Begun {
            target,
            configured,
            finalised: false,
        };
        return Plan::of_actions(vec![Action::Mark(Some(begun))]);
    }
    let goal = Goal::Mtu(target.machine);
    let mut plan = Plan::of_actions(of_absent_nodes(facts));
    if facts.nodes.is_empty() {
        plan.obstacles.push(messages::NO_NODE.to_owned());
        return plan;
    }
    let hostnames = Hostnames::of(facts);
    let (mut passed, mut running, mut done, mut failed) = (Vec::new(), 0, 0, 0);
    let mut awaited = None;
    for (node, observed) in &facts.nodes {
        plan.obstacles.extend(unready(node, observed));
        let name = policy::name(node);
        match facts.policies.get(&name) {
            Some((policy, progress)) if policy.goal == Some(goal) => match (progress, policy.is_dry_run) {
                (Progress::Failed(message), is_dry_run) => {
                    failed += usize::from(!is_dry_run);
                    plan.failures.push(messages::failed(node, is_dry_run, message));
                }
                (Progress::Done, true) => match redraft(&hostnames, node, observed, policy, target.machine) {
                    Ok(Some(draft)) => plan.actions.push(Action::Write(draft)),
                    Ok(None) => passed.push(name),
                    Err(problem) => {
                        passed.push(name);
                        plan.add(problem);
                    }
                },
                (Progress::Done, false) => match unfinished(node, observed, target.machine) {
                    Some(problem) => {
                        running += 1;
                        plan.add(problem);
                    }
                    None => done += 1,
                },
                (Progress::Retrying(message), is_dry_run) => {
                    running += usize::from(!is_dry_run);
                    plan.obstacles.push(messages::failed(node, is_dry_run, message));
                }
                (Progress::Pending, is_dry_run) => {
                    running += usize::from(!is_dry_run);
                    plan.obstacles.extend(overdue(facts, node));
                    awaited.get_or_insert_with(|| messages::awaited(node, is_dry_run));
                }
            },
            other => {
                let before = other.map(|(policy, _)| policy);
                match draft(&hostnames, node, observed, before, target.machine) {
                    Ok(draft) => plan.actions.push(Action::Write(draft)),
                    Err(problem) => plan.add(problem),
                }
            }
        }
    }
    let all = facts.nodes.len();
    let tried = passed.len() + running + done + failed;
    let stage = if tried < all {
        messages::dry_run(tried, all)
    } else if done < all && mode == Mode::DryRun {
        messages::dry_run_passed(all)
    } else if !facts.is_network_ready {
        messages::AWAITS_NETWORK.to_owned()
    } else {
        messages::changed(done, all, target.machine)
    };
    plan.set_progress(stage, awaited);
    let is_tried = tried == all && plan.failures.is_empty() && plan.obstacles.is_empty();
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

/// An obstacle, if the node is not ready: another change could take one more node off the network.
fn unready(node: &str, observed: &Node) -> Option<String> {
    (!observed.is_ready).then(|| messages::not_ready(node))
}

/// An obstacle, if the node should have reported a result.
fn overdue(facts: &Facts, node: &str) -> Option<String> {
    let policy = policy::name(node);
    facts
        .overdue
        .contains(&policy)
        .then(|| messages::overdue(node, &policy))
}

/// Reason for which a node delays the migration.
enum Problem {
    /// The state may end without a user.
    Obstacle(String),
    /// A user has to act.
    Failure(String),
}

/// Nodes by their label `kubernetes.io/hostname`.
struct Hostnames<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Hostnames<'a> {
    fn of(facts: &'a Facts) -> Self {
        let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, observed) in &facts.nodes {
            if let Some(hostname) = &observed.hostname {
                nodes.entry(hostname).or_default().push(node);
            }
        }
        Self(nodes)
    }

    /// The label that selects this node alone, or the reason for which there is none.
    fn of_node<'n>(&self, node: &str, observed: &'n Node) -> Result<&'n str, String> {
        let Some(hostname) = &observed.hostname else {
            return Err(messages::no_hostname(node));
        };
        let nodes = self.0.get(hostname.as_str()).into_iter().flatten();
        match nodes.copied().find(|other| *other != node) {
            Some(other) => Err(messages::shared_hostname(node, other, hostname)),
            None => Ok(hostname),
        }
    }
}

/// The reported uplink of a node.
fn reported<'a>(node: &str, observed: &'a Node) -> Result<&'a Links, Problem> {
    match &observed.links {
        None => Err(Problem::Obstacle(messages::no_report(node))),
        Some(Err(text)) => Err(Problem::Obstacle(messages::no_settings(node, text))),
        // A lease may just be renewed.
        Some(Ok(links)) if links.is_empty() => {
            let text = messages::no_settings(node, messages::NO_DEFAULT_ROUTE);
            Err(Problem::Obstacle(text))
        }
        Some(Ok(links)) => Ok(links),
    }
}

/// The policy that a node needs: its hostname, its uplink and the settings of the uplink.
fn desired<'a>(
    hostnames: &Hostnames<'_>,
    node: &str,
    observed: &'a Node,
    mtu: u32,
) -> Result<(&'a str, &'a Links, Settings), Problem> {
    let links = reported(node, observed)?;
    let hostname = hostnames.of_node(node, observed).map_err(Problem::Failure)?;
    let failure = |text: String| Problem::Failure(messages::no_settings(node, &text));
    let settings = uplink::settings(links, mtu).map_err(failure)?;
    match conflict(observed, &settings) {
        Some(text) => Err(failure(text)),
        None => Ok((hostname, links, settings)),
    }
}

/// The policy of a user that would undo these settings: nodes apply it again whenever their handler starts.
fn conflict(observed: &Node, settings: &Settings) -> Option<String> {
    let differs = |it: &&Stated| {
        let setting = settings.get(&it.interface);
        setting.is_some_and(|setting| u64::from(setting.mtu) != it.mtu)
    };
    let stated = observed.stated.iter().find(differs)?;
    Some(messages::other_policy(
        &stated.policy,
        stated.mtu,
        &stated.interface,
    ))
}

/// The reason for which a node with an applied policy is not done. The report follows the policy after some seconds, and
/// the interfaces may be down meanwhile.
fn unfinished(node: &str, observed: &Node, mtu: u32) -> Option<Problem> {
    let links = match reported(node, observed) {
        Ok(links) => links,
        Err(problem) => return Some(problem),
    };
    let settings = match uplink::settings(links, mtu) {
        Ok(settings) => settings,
        Err(text) => return Some(Problem::Obstacle(messages::no_settings(node, &text))),
    };
    if let Some((interface, mtu)) = uplink::differing(links, &settings) {
        return Some(Problem::Obstacle(messages::not_shown(node, interface, mtu)));
    }
    conflict(observed, &settings).map(|text| Problem::Failure(messages::no_settings(node, &text)))
}

/// The policy of a node, which begins with a dry run. If an earlier version may have changed the node, its former MTUs
/// stay.
fn draft(
    hostnames: &Hostnames<'_>,
    node: &str,
    observed: &Node,
    before: Option<&Policy>,
    mtu: u32,
) -> Result<Draft, Problem> {
    let (hostname, links, settings) = desired(hostnames, node, observed, mtu)?;
    let mut former = uplink::former(links, &settings);
    let changed = before.filter(|before| before.may_have_changed());
    if let Some(before) = changed {
        if before.former.is_empty() {
            // The reported MTUs are those of the change.
            former.clear();
        }
        former.extend(before.former.clone());
    }
    Ok(Draft {
        node: node.to_owned(),
        hostname: hostname.to_owned(),
        goal: Goal::Mtu(mtu),
        settings,
        former,
        is_dry_run: true,
        was_changed: changed.is_some(),
    })
}

/// The new policy of a node whose uplink or former MTU changed after its dry run, which may be days ago.
fn redraft(
    hostnames: &Hostnames<'_>,
    node: &str,
    observed: &Node,
    policy: &Policy,
    mtu: u32,
) -> Result<Option<Draft>, Problem> {
    let draft = draft(hostnames, node, observed, Some(policy), mtu)?;
    Ok((draft.former != policy.former).then_some(draft))
}

/// Deletes the policies of nodes that do not exist any more.
fn of_absent_nodes(facts: &Facts) -> Vec<Action> {
    let names: BTreeSet<String> = facts.nodes.keys().map(|node| policy::name(node)).collect();
    let absent = facts.policies.keys().filter(|name| !names.contains(*name));
    absent.cloned().map(Action::Delete).collect()
}

#[cfg(test)]
mod tests;
