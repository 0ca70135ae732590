//! Applies policies on this node, one after the other (nmstate §5.4, §5.5).
//!
//! What is killed at any point is taken up by the next handler of the node: it gives back what slots the enactments of
//! the node stand for, and applies every policy again. A slot that was counted and not yet written down in the enactment
//! is found by those who wait for it ([`slots::Sightings`]).

mod absence;
mod edge;
mod once;
mod pass;
mod turn;

pub use once::once;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{PartialObjectMeta, Request};
use kube_kit::queue::Queue;
use kube_kit::watch::{self, Change, DeserializeGuard, Options, Store, Watch};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::absence::Absence;
use super::ask::patiently;
use super::cleanup;
use super::objects::{self, Policy};
use super::settler::Settler;
use super::slots::{self, Sightings};
use super::spread::{self, Spread};
use crate::apply::Pipeline;
use crate::conditions::Status;
use crate::handler::Shared;
use crate::legacy;
use crate::names::{self, condition};
use crate::render::{NodeFacts, Rendered};
use crate::settings::Settings;
use crate::variables;

/// Share of the time of all nodes' writes in which those that wait look whether they may take a slot that was given
/// back, in percent.
const WAKE: u32 = 100;
/// How long at least it is believed that there are fewer slots than are counted.
const STALE: Duration = Duration::from_secs(1);
/// Shortest time between two requests for a report.
const REPORTS: Duration = Duration::from_secs(1);
/// How much longer it is at most as long as other policies are to be applied.
const SEVERAL: Duration = Duration::from_secs(4);
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
    /// Attempts that failed, one after the other. To wait for a slot is none.
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
    absence: Absence,
}

impl Memory {
    /// How long after a pass there is another one, unless something changes before.
    fn pause_after(&mut self, next: &Next, settings: &Settings) -> Option<Duration> {
        match next {
            Next::Done => {
                self.failures = 0;
                None
            }
            Next::Wait => Some(self.sightings.pause()),
            Next::Again => {
                self.failures = self.failures.saturating_add(1);
                Some(settings.backoff(self.failures))
            }
        }
    }
}

/// How many nodes may be at a policy, when that was looked at. It changes with the number of enactments.
#[derive(Clone, Copy, Debug)]
struct Look {
    generation: i64,
    limit: i64,
    at: Instant,
    /// Version of the policy that was looked at.
    version: Option<u64>,
}

/// How a pass over a policy ended.
#[derive(Debug)]
enum Next {
    /// Until something changes.
    Done,
    /// Until a slot is given back, which wakes the waiting policies.
    Wait,
    /// There is to be another one after the back-off.
    Again,
}

/// The node that this is, of what is known of nodes.
#[derive(Clone, Debug)]
pub(super) struct ThisNode {
    pub(super) uid: String,
    pub(super) facts: NodeFacts,
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
    /// Policies that this handler wrote, of which the watch may not tell.
    written: Queue<String>,
    /// Asks for a report of what was applied.
    reports: Notify,
    /// Whether there are policies to see to.
    busy: Busy,
    /// Policies whose pass is wanted by more than somebody's slot that was given back.
    wanted: Mutex<BTreeSet<String>>,
    /// Policies that a predecessor was killed in the middle of, with its slot.
    taken_over: Mutex<BTreeSet<String>>,
    /// Enactments that this handler deleted and was not told of yet.
    deleted: Mutex<BTreeSet<String>>,
    /// Policies that failed while NetworkManager was away.
    stranded: Mutex<BTreeSet<String>>,
    settler: Settler,
    spread: Spread,
    /// Policies that wait for a slot, and what was found when that was last looked at.
    waiting: Mutex<BTreeMap<String, Look>>,
}

/// Whether there is something to do, for those who wait until there is nothing.
type Busy = tokio::sync::watch::Sender<bool>;

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
        controller.follow_network_manager(),
        controller.work(),
        at_most_every(REPORTS, &controller.reports, async || {
            controller.ask_for_report().await;
            until_idle(&controller.busy, SEVERAL).await;
        }),
        settler.run(),
    );
}

/// Acts on each request, with a pause after each time: requests during the pause become one.
async fn at_most_every(pause: Duration, asked: &Notify, act: impl AsyncFn()) {
    loop {
        asked.notified().await;
        act().await;
        tokio::time::sleep(pause).await;
    }
}

/// Waits until there are no policies to see to, but no longer than this: each report is read, and written, in the time of
/// the next policy.
async fn until_idle(busy: &Busy, longest: Duration) {
    let mut busy = busy.subscribe();
    // When the time is over it goes on all the same.
    let _ = tokio::time::timeout(longest, busy.wait_for(|is_busy| !is_busy)).await;
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
    let taken_over = match node.store().get(&shared.node) {
        Some(node) => cleanup::release(&client, &node).await,
        None => BTreeSet::new(),
    };
    let written = Queue::new();
    let settler = Settler::new(shared.clone(), policies.store(), spread.clone(), written.clone());
    let controller = Controller {
        policies: policies.store(),
        told: Notify::new(),
        node: node.store(),
        enactments: enactments.store(),
        queue: Queue::new(),
        written,
        reports: Notify::new(),
        busy: Busy::new(false),
        taken_over: Mutex::new(taken_over),
        wanted: Mutex::default(),
        deleted: Mutex::default(),
        stranded: Mutex::default(),
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
        loop {
            let change = tokio::select! {
                change = policies.next() => match change {
                    Some(change) => change,
                    None => return,
                },
                // The answer to a write of our own is known before the watch tells of it, and then the watch tells nothing
                // of what is older: neither of an edit that was written over, nor of a slot that was given back.
                name = self.written.next() => {
                    self.written.succeeded(&name);
                    Change::Applied(name)
                }
            };
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
            let facts = self.node.with(&self.shared.node, |node| node.facts.clone());
            // The first ones are those that the first pass finds.
            if matches!(change, Change::Synced) && known.is_none() {
                known = Some(facts);
                continue;
            }
            let Some(before) = &mut known else {
                continue;
            };
            match (before.as_ref(), &facts) {
                (Some(before), Some(now)) if before.labels == now.labels => {
                    self.enqueue_affected(before, now);
                }
                (_, Some(_)) => self.enqueue_all(),
                (_, None) => {}
            }
            *before = facts;
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
        self.enqueue(|_| true);
    }

    /// Wants a pass over the policies that refer to an annotation of the node that changed. There are others, of kubelets
    /// and drivers, that change all the time.
    fn enqueue_affected(&self, before: &NodeFacts, now: &NodeFacts) {
        if before.annotations == now.annotations {
            return;
        }
        self.enqueue(|policy| {
            let mut keys = variables::annotations(policy.spec()).into_iter();
            keys.any(|key| before.annotations.get(key) != now.annotations.get(key))
        });
    }

    fn enqueue(&self, is_wanted: impl Fn(&Policy) -> bool) {
        let policies = self.policies.values();
        let mut wanted: Vec<(i64, String)> = policies
            .iter()
            .filter(|&policy| is_wanted(policy))
            .map(order)
            .collect();
        wanted.sort();
        for (_, name) in wanted {
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
        let counted = counts.get(&look.generation.to_string()).copied();
        // As long as enactments are being made, there may be more slots than there were.
        let is_fresh = look.at.elapsed() < STALE + self.spread.span(WAKE);
        // A degraded policy may not be tried on further nodes.
        policy.is(condition::DEGRADED) != Status::True
            && slots::is_full(counted.unwrap_or_default(), look.limit, is_fresh)
    }

    /// Whether a policy was written after the look, so that there may be a slot. The write woke this node only if it waited
    /// already.
    fn has_moved_on(&self, policy: &str, look: Look) -> bool {
        let has_moved_on = |policy: &Policy| {
            objects::comparable(&policy.version()) > look.version && !self.is_full(policy, look)
        };
        self.policies.with(&policy.to_owned(), has_moved_on) == Some(true)
    }

    /// The next policy to see to. While there is none, the controller is not busy.
    async fn next(&self) -> String {
        let name = if let Some(name) = self.queue.next().now_or_never() {
            name
        } else {
            self.busy.send_replace(false);
            self.queue.next().await
        };
        self.busy.send_replace(true);
        name
    }

    async fn work(&self) {
        let mut memories = BTreeMap::<String, Memory>::new();
        loop {
            let name = self.next().await;
            let memory = memories.entry(name.clone()).or_default();
            if self.wanted().remove(&name) {
                memory.is_done = false;
                // The node may be another one to the policy by now.
                memory.rendered = None;
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
            if let Some(pause) = memory.pause_after(&next, &self.shared.settings) {
                self.queue.add_after(name, pause);
                continue;
            }
            memory.is_done = true;
            if !self.policies.contains(&name) {
                memories.remove(&name);
            }
        }
    }

    /// Whether a policy is still what it was, as far as the watch knows.
    fn is_wanted(&self, policy: &str, wanted: &Wanted) -> bool {
        let now = self.policies.with(&policy.to_owned(), Wanted::of);
        now.as_ref() == Some(wanted)
    }

    /// Ends when a policy is edited or deleted.
    async fn superseded(&self, policy: &str, wanted: &Wanted) {
        loop {
            // Begun before the look, so that no change is missed.
            let told = self.told.notified();
            if !self.is_wanted(policy, wanted) {
                return;
            }
            told.await;
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

    // nmstate#105
    #[test]
    fn to_wait_for_a_slot_is_no_failure() {
        let settings = Settings {
            initial_backoff: Duration::ZERO,
            max_backoff: Duration::from_secs(30),
            ..Settings::default()
        };
        let mut memory = Memory::default();
        for _ in 0..100 {
            let pause = memory.pause_after(&Next::Wait, &settings).expect("another pass");
            assert!(
                pause >= Duration::from_secs(1),
                "whoever waits is woken, and does not ask"
            );
        }
        let settings = Settings {
            initial_backoff: Duration::from_secs(1),
            ..settings
        };
        let mut again = || memory.pause_after(&Next::Again, &settings);
        assert_eq!(again(), Some(Duration::from_secs(1)));
        assert_eq!(again(), Some(Duration::from_secs(2)));
        assert_eq!(memory.pause_after(&Next::Done, &settings), None);
        assert_eq!(
            memory.pause_after(&Next::Again, &settings),
            Some(Duration::from_secs(1))
        );
    }

    // nmstate#105
    #[tokio::test(start_paused = true)]
    async fn many_policies_that_were_applied_are_reported_together() {
        let asked = Notify::new();
        let acts = std::cell::Cell::new(0);
        let acting = at_most_every(REPORTS, &asked, async || acts.set(acts.get() + 1));
        let asking = async {
            for _ in 0..30 {
                asked.notify_one();
                tokio::time::sleep(REPORTS / 10).await;
            }
            tokio::time::sleep(2 * REPORTS).await;
        };
        tokio::select! {
            () = acting => {}
            () = asking => {}
        }
        assert!((3..=5).contains(&acts.get()), "{}", acts.get());
    }

    // nmstate#122
    #[tokio::test(start_paused = true)]
    async fn reports_wait_for_further_policies_but_not_for_long() {
        let (asked, busy) = (Notify::new(), Busy::new(true));
        let began = Instant::now();
        let acts = Mutex::new(Vec::new());
        let acting = at_most_every(REPORTS, &asked, async || {
            kube_kit::lock(&acts).push(began.elapsed().as_secs());
            until_idle(&busy, SEVERAL).await;
        });
        let asking = async {
            // A policy each second.
            for _ in 0..12 {
                asked.notify_one();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            busy.send_replace(false);
            asked.notify_one();
            tokio::time::sleep(Duration::from_secs(20)).await;
        };
        tokio::select! {
            () = acting => {}
            () = asking => {}
        }
        // At once, every 5 s, and soon after the last one.
        assert_eq!(*kube_kit::lock(&acts), [0, 5, 10, 13]);
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
