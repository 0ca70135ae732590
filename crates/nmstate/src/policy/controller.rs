//! Applies policies on this node, one after the other (nmstate §5.4, §5.5).
//!
//! What is killed at any point is taken up by the next handler of the node: it gives back what slots the enactments of
//! the node stand for, and applies every policy again. A slot that was counted and not yet written down in the enactment
//! is found by those who wait for it ([`slots::Sightings`]).

mod edge;
mod once;
mod pass;
mod turn;

pub use once::once;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{PartialObjectMeta, Request};
use kube_kit::queue::Queue;
use kube_kit::watch::{self, Change, DeserializeGuard, Options, Store, Watch};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ask::patiently;
use super::cleanup;
use super::objects::{self, Policy};
use super::settler::Settler;
use super::slots::Sightings;
use super::spread::{self, Spread};
use crate::apply::Pipeline;
use crate::conditions::Status;
use crate::handler::Shared;
use crate::legacy;
use crate::names::{self, condition};
use crate::render::{NodeFacts, Rendered};

/// Share of the time of all nodes' writes in which those that wait look whether they may take a slot that was given
/// back, in percent.
const WAKE: u32 = 100;
/// How long at least it is believed how many slots there are.
const STALE: Duration = Duration::from_secs(1);
/// How often enactments without a policy are looked for, and how much later by chance.
const ORPHANS: Duration = Duration::from_hours(5);

/// What makes another pass over a policy: not its labels, nor its status.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Wanted {
    uid: String,
    generation: i64,
    is_dry_run: bool,
}

impl Wanted {
    fn of(policy: &Policy) -> Self {
        Self {
            uid: policy.uid(),
            generation: policy.generation(),
            is_dry_run: policy.is_dry_run(),
        }
    }
}

/// What is remembered of a policy between its passes.
#[derive(Debug, Default)]
struct Memory {
    wanted: Option<Wanted>,
    /// Whether there is nothing left to do.
    is_done: bool,
    /// Attempts that came to nothing, one after the other.
    failures: u32,
    /// Whether this node holds a slot of this generation.
    holds: bool,
    /// What the policy is on this node, while it waits for a slot.
    rendered: Option<Rendered>,
    /// Whether this node has an enactment of it.
    has_enactment: bool,
    /// How many nodes may be at it.
    look: Option<Look>,
    sightings: Sightings,
}

/// How many nodes may be at a policy, when that was looked at. It changes with the number of enactments.
#[derive(Clone, Copy, Debug)]
struct Look {
    generation: i64,
    limit: i64,
    at: Instant,
}

/// How a pass over a policy ended.
#[derive(Debug)]
enum Next {
    /// Until something changes.
    Done,
    /// There is to be another one after the back-off.
    Again,
}

/// The node that this is, of what is known of nodes.
#[derive(Clone, Debug)]
struct ThisNode {
    uid: String,
    facts: NodeFacts,
}

/// Applies policies on this node.
struct Controller {
    shared: Shared,
    pipeline: Arc<Pipeline>,
    policies: Store<String, Policy>,
    /// Wakes those who wait for what others write of policies.
    told: Notify,
    node: Store<String, ThisNode>,
    /// Names of enactments of this node, with the names of their policies.
    enactments: Store<String, String>,
    queue: Queue<String>,
    /// Policies whose pass is wanted by more than somebody's slot that was given back.
    wanted: Mutex<BTreeSet<String>>,
    /// Enactments that this handler deleted and was not told of yet.
    deleted: Mutex<BTreeSet<String>>,
    settler: Settler,
    spread: Spread,
    /// Policies that wait for a slot, and what was found when that was last looked at.
    waiting: Mutex<BTreeMap<String, Look>>,
}

/// What tells of changes of policies, of this node, and of its enactments.
type Watches = (
    Watch<String, Policy>,
    Watch<String, ThisNode>,
    Watch<String, String>,
);

/// Applies policies on this node until it is dropped.
pub async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
    let (controller, (policies, node, enactments)) = begin(shared, pipeline).await;
    let settler = controller.settler.clone();
    tokio::join!(
        controller.follow_policies(policies),
        controller.follow_node(node),
        controller.follow_enactments(enactments),
        controller.work(),
        settler.run(),
    );
}

/// Learns what there is, and puts in order what a former handler of this node left.
async fn begin(shared: Shared, pipeline: Arc<Pipeline>) -> (Controller, Watches) {
    let client = shared.client.clone();
    let policies = watch::start(
        Api::<DeserializeGuard<DynamicObject>>::all_with(client.clone(), &objects::policy_resource()),
        &Options::all(),
        |metadata| metadata.name.clone().unwrap_or_default(),
        Policy::new,
    );
    let node = watch::start_metadata(
        Api::all_with(client.clone(), &kube::core::ApiResource::erase::<Node>(&())),
        &Options::all().named(&shared.node),
        |metadata| metadata.name.clone().unwrap_or_default(),
        this_node,
    );
    let enactments = watch::start_metadata(
        Api::all_with(client.clone(), &objects::enactment_resource()),
        &Options::all().labels(format!("{}={}", names::NODE_LABEL, shared.node)),
        |metadata| metadata.name.clone().unwrap_or_default(),
        |object| {
            let labels = object.metadata.labels.unwrap_or_default();
            labels.get(names::POLICY_LABEL).cloned().unwrap_or_default()
        },
    );
    let spread = Spread::default();
    policies.store().synced().await;
    node.store().synced().await;
    enactments.store().synced().await;
    learn_size(&client, &spread).await;
    cleanup::release(&client, &shared.node).await;
    let settler = Settler::new(shared.clone(), policies.store(), spread.clone());
    let controller = Controller {
        policies: policies.store(),
        told: Notify::new(),
        node: node.store(),
        enactments: enactments.store(),
        queue: Queue::new(),
        wanted: Mutex::default(),
        deleted: Mutex::default(),
        settler,
        spread,
        waiting: Mutex::default(),
        shared,
        pipeline,
    };
    (controller, (policies, node, enactments))
}

fn this_node(object: PartialObjectMeta<DynamicObject>) -> ThisNode {
    let metadata = object.metadata;
    ThisNode {
        uid: metadata.uid.unwrap_or_default(),
        facts: NodeFacts {
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        },
    }
}

/// Learns how many nodes there are, by asking for one of them.
async fn learn_size(client: &kube::Client, spread: &Spread) {
    let nodes = Request::new(<Node as kube::Resource>::url_path(&(), None));
    let began = Instant::now();
    let answer = match nodes.list(&ListParams::default().limit(1)) {
        Ok(request) => patiently(client.request::<Value>(request)).await,
        Err(_) => return,
    };
    // As good a guess of a write as any, until there was one.
    spread.took(began.elapsed());
    match answer {
        Ok(list) => {
            let more = list["metadata"]["remainingItemCount"]
                .as_u64()
                .unwrap_or_default();
            spread.learn(usize::try_from(more).unwrap_or(usize::MAX).saturating_add(1));
        }
        Err(error) => tracing::warn!(%error, "cannot count the nodes"),
    }
}

impl Controller {
    async fn follow_policies(&self, mut policies: Watch<String, Policy>) {
        let mut known = BTreeMap::<String, Wanted>::new();
        let mut first = true;
        while let Some(change) = policies.next().await {
            self.told.notify_waiters();
            match change {
                Change::Applied(name) => {
                    let Some(policy) = self.policies.get(&name) else {
                        continue;
                    };
                    let wanted = Wanted::of(&policy);
                    if known.get(&name) == Some(&wanted) {
                        self.wake(&policy);
                        continue;
                    }
                    known.insert(name.clone(), wanted);
                    // The first ones are put in order when all of them are known.
                    if !first {
                        self.want(name);
                    }
                }
                Change::Deleted(name) => {
                    known.remove(&name);
                    self.want(name);
                }
                Change::Invalid(name, error) => {
                    tracing::warn!(policy = name, error, "malformed policy, left aside");
                }
                Change::Synced if first => {
                    first = false;
                    self.enqueue_all();
                }
                Change::Synced => {}
            }
        }
    }

    async fn follow_node(&self, mut node: Watch<String, ThisNode>) {
        let mut known = None;
        while let Some(change) = node.next().await {
            let labels = self
                .node
                .with(&self.shared.node, |node| node.facts.labels.clone());
            // The first labels are those that the first pass finds.
            if matches!(change, Change::Synced) && known.is_none() {
                known = Some(labels);
                continue;
            }
            if known.as_ref().is_some_and(|known| *known != labels) {
                if labels.is_some() {
                    self.enqueue_all();
                }
                known = Some(labels);
            }
        }
    }

    /// Deletes enactments whose policies are gone: those that are told of, and now and then all.
    async fn follow_enactments(&self, mut enactments: Watch<String, String>) {
        let mut all_at = Instant::now();
        loop {
            let due = tokio::select! {
                change = enactments.next() => match change {
                    Some(Change::Applied(name)) => vec![name],
                    Some(Change::Deleted(name)) => {
                        self.miss(&name);
                        continue;
                    }
                    Some(_) => continue,
                    None => return,
                },
                () = tokio::time::sleep_until(all_at) => {
                    all_at += ORPHANS + spread::within(ORPHANS / 10);
                    self.enactments.keys()
                }
            };
            for name in due {
                let Some(policy) = self.enactments.get(&name) else {
                    continue;
                };
                // A policy may be newer than what is known of policies, so only what is not known is asked for.
                if policy.is_empty() || self.policies.contains(&policy) {
                    continue;
                }
                if let Err(error) = cleanup::delete_orphan(&self.shared.client, &name, &policy).await {
                    tracing::warn!(enactment = name, %error, "cannot delete an enactment without a policy");
                }
            }
        }
    }

    /// An enactment is gone. Unless this handler deleted it, the policy has to be seen to again: nobody else would tell
    /// how it goes here.
    fn miss(&self, enactment: &str) {
        if self.deleted().remove(enactment) {
            return;
        }
        let prefix = format!("{}.", self.shared.node);
        if let Some(policy) = enactment.strip_prefix(&prefix)
            && self.policies.contains(&policy.to_owned())
        {
            self.want(policy.to_owned());
        }
    }

    /// Wants a pass over all policies, in the order in which they are applied.
    fn enqueue_all(&self) {
        let mut all: Vec<(i64, String)> = self.policies.values().iter().map(order).collect();
        all.sort();
        for (_, name) in all {
            self.want(name);
        }
    }

    fn want(&self, name: String) {
        self.wanted().insert(name.clone());
        self.queue.add(name);
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.wanted)
    }

    fn deleted(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.deleted)
    }

    /// A policy's status changed: perhaps a slot was given back.
    fn wake(&self, policy: &Policy) {
        let name = policy.name();
        let look = self.waiting().get(&name).copied();
        if look.is_some_and(|look| !self.is_full(policy, look)) {
            self.queue.add_after(name, self.spread.moment(WAKE));
        }
    }

    /// Whether it is clear without asking that all slots of a policy are taken still.
    fn is_full(&self, policy: &Policy, look: Look) -> bool {
        let counts = policy.counts();
        let taken = counts.get(&look.generation.to_string()).copied();
        taken.is_some_and(|taken| taken >= look.limit)
            // Perhaps nobody is to be tried any more.
            && policy.is(condition::DEGRADED) != Status::True
            // As long as enactments are being made, there may be more slots than there were.
            && look.at.elapsed() < STALE + self.spread.span(WAKE)
    }

    async fn work(&self) {
        let mut memories = BTreeMap::<String, Memory>::new();
        loop {
            let name = self.queue.next().await;
            let memory = memories.entry(name.clone()).or_default();
            if self.wanted().remove(&name) {
                memory.is_done = false;
            }
            if memory.is_done {
                // Somebody gave a slot back while this node already had one.
                self.queue.succeeded(&name);
                continue;
            }
            let next = match self.pass(&name, memory).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(policy = name, %error, "cannot go on with the policy, trying again");
                    Next::Again
                }
            };
            self.queue.succeeded(&name);
            match next {
                Next::Done => {
                    memory.failures = 0;
                    memory.is_done = true;
                    if self.policies.contains(&name) {
                        continue;
                    }
                    memories.remove(&name);
                }
                Next::Again => {
                    memory.failures = memory.failures.saturating_add(1);
                    let pause = self.shared.settings.backoff(memory.failures);
                    self.queue.add_after(name, pause);
                }
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Look>> {
        kube_kit::lock(&self.waiting)
    }
}

/// Where a policy stands among those of a node: by priority, then by name.
fn order(policy: &Policy) -> (i64, String) {
    (legacy::priority(policy.spec()), policy.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(name: &str, priority: Option<i64>) -> Policy {
        let object = json!({ "metadata": { "name": name }, "spec": { "priority": priority } });
        Policy::new(serde_json::from_value(object).expect("an object"))
    }

    // nmstate#32
    #[test]
    fn policies_are_applied_in_the_order_of_their_priorities_and_names() {
        let mut policies = [
            policy("b", None),
            policy("a", Some(1)),
            policy("c", Some(-1)),
            policy("a2", None),
        ];
        policies.sort_by_key(order);
        let names: Vec<String> = policies.iter().map(Policy::name).collect();
        assert_eq!(names, ["c", "a2", "b", "a"]);
    }
}
