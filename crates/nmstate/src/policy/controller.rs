//! Applies policies on this node, one after the other (nmstate §5.4, §5.5).
//!
//! After a kill at any point, the next handler of the node continues: it releases the slots of the node's enactments,
//! and applies every policy again. A slot that was counted before its enactment was written is detected by waiting
//! nodes ([`slots::LeakDetector`]).

mod events;
mod once;
mod outage;
mod pass;
mod report;
mod slot;
mod writes;

pub use once::once;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{PartialObjectMeta, Request};
use kube_kit::queue::Queue;
use kube_kit::watch::{self, DeserializeGuard, Options, Store, Watch};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::outage::Outage;
use super::cleanup;
use super::slots::{self, LeakDetector};
use super::status_writer::StatusWriter;
use crate::apply::Pipeline;
use crate::conditions::Status;
use crate::jitter::Jitter;
use crate::legacy;
use crate::names::{self, condition};
use crate::objects::{self, Policy};
use crate::render::{NodeFacts, Rendered};
use crate::requests::within_timeout;
use crate::settings::Settings;
use crate::shared::Shared;

/// Share of the time of all nodes' writes over which waiting nodes spread their attempts at a released slot, in
/// percent.
const WAKE_WINDOW: u32 = 100;
/// Minimum time for which the observed limit is trusted although more slots are counted.
const LIMIT_AGE: Duration = Duration::from_secs(1);
/// Minimum time between two requests for a report.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum further delay of a request for a report while other policies are to be applied.
const REPORT_DELAY: Duration = Duration::from_secs(4);
/// Interval of the search for enactments without a policy; up to a tenth is added at random.
const ORPHAN_INTERVAL: Duration = Duration::from_hours(5);

/// The parts of a policy whose change requires another pass. Labels and status are not among them.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Revision {
    uid: String,
    generation: i64,
    is_dry_run: bool,
}

impl Revision {
    fn of(policy: &Policy) -> Self {
        Self {
            uid: policy.uid(),
            generation: policy.generation(),
            is_dry_run: policy.is_dry_run(),
        }
    }
}

/// The controller's state of a policy between its passes.
#[derive(Debug, Default)]
struct Tracked {
    revision: Option<Revision>,
    /// Whether the controller waits for a change.
    is_done: bool,
    /// Failed attempts in a row. Waiting for a slot does not count.
    failures: u32,
    /// Whether this node holds a slot of this generation.
    holds: bool,
    /// The rendered policy, while this node waits for a slot.
    rendered: Option<Rendered>,
    /// Whether this node has an enactment of the policy.
    has_enactment: bool,
    /// The last observed limit of slots.
    observation: Option<Observation>,
    leaks: LeakDetector,
    outage: Outage,
}

impl Tracked {
    /// Delay of the next pass; `None` to wait for a change.
    fn delay_after(&mut self, next: &Next, settings: &Settings) -> Option<Duration> {
        match next {
            Next::Done => {
                self.failures = 0;
                None
            }
            Next::AwaitSlot => Some(self.leaks.interval()),
            Next::Requeue => {
                self.failures = self.failures.saturating_add(1);
                Some(settings.backoff(self.failures))
            }
        }
    }
}

/// The number of slots of a policy when the API server was last read. It changes with the number of enactments.
#[derive(Clone, Copy, Debug)]
struct Observation {
    generation: i64,
    limit: i64,
    at: Instant,
    /// `resourceVersion` of the policy that was read.
    version: Option<u64>,
}

/// Result of a pass over a policy.
#[derive(Debug)]
enum Next {
    /// Wait for a change.
    Done,
    /// Wait until a slot is released.
    AwaitSlot,
    /// Requeue with back-off.
    Requeue,
}

/// The parts of this node's object that the handler uses.
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
    /// Notified at each change of a policy.
    policy_changed: Notify,
    node: Store<String, ThisNode>,
    /// Names of enactments of this node, with the names of their policies.
    enactments: Store<String, String>,
    queue: Queue<String>,
    /// Policies that this handler wrote: the watch may send no event for them.
    written: Queue<String>,
    /// Requests a report after a policy was applied.
    reports: Notify,
    /// Whether a policy is queued or being applied.
    busy: Busy,
    /// Policies whose pass has another cause than a released slot.
    requested: Mutex<BTreeSet<String>>,
    /// Policies that the previous handler was applying when it was killed; they keep its slot.
    taken_over: Mutex<BTreeSet<String>>,
    /// Enactments that this handler deleted, until the watch reports it.
    deleted: Mutex<BTreeSet<String>>,
    /// Policies that failed during an outage of NetworkManager.
    stranded: Mutex<BTreeSet<String>>,
    /// Events that are being published.
    events: Mutex<JoinSet<()>>,
    status_writer: StatusWriter,
    jitter: Jitter,
    /// Policies that wait for a slot, each with the limit that was last observed.
    waiting: Mutex<BTreeMap<String, Observation>>,
}

/// Whether the controller has work; [`until_idle`] waits for `false`.
type Busy = tokio::sync::watch::Sender<bool>;

/// Watches of policies, of this node, and of its enactments.
type Watches = (
    Watch<String, Policy>,
    Watch<String, ThisNode>,
    Watch<String, String>,
);

/// Applies policies on this node until it is dropped.
pub async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
    let (controller, (policies, node, enactments)) = begin(shared, pipeline).await;
    let status_writer = controller.status_writer.clone();
    tokio::join!(
        controller.follow_policies(policies),
        controller.follow_node(node),
        controller.follow_enactments(enactments),
        controller.follow_outages(),
        controller.work(),
        at_most_every(REPORT_INTERVAL, &controller.reports, async || {
            controller.request_report().await;
            until_idle(&controller.busy, REPORT_DELAY).await;
        }),
        status_writer.run(),
    );
}

/// Runs `act` for requests, at most once per `pause`: requests during the pause become one.
async fn at_most_every(pause: Duration, requested: &Notify, act: impl AsyncFn()) {
    loop {
        requested.notified().await;
        act().await;
        tokio::time::sleep(pause).await;
    }
}

/// Waits until the controller is idle, at most for `longest`: reading and writing a report delays the next policy.
async fn until_idle(busy: &Busy, longest: Duration) {
    let mut busy = busy.subscribe();
    // A timeout ends the wait as well.
    let _ = tokio::time::timeout(longest, busy.wait_for(|is_busy| !is_busy)).await;
}

/// Starts the watches, and cleans up after the previous handler of this node.
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
    let jitter = Jitter::default();
    policies.store().synced().await;
    node.store().synced().await;
    enactments.store().synced().await;
    count_nodes(&client, &jitter).await;
    let taken_over = match node.store().get(&shared.node) {
        Some(node) => cleanup::release(&client, &node.uid, &node.facts).await,
        None => BTreeSet::new(),
    };
    let written = Queue::new();
    let status_writer = StatusWriter::new(shared.clone(), policies.store(), jitter.clone(), written.clone());
    let controller = Controller {
        policies: policies.store(),
        policy_changed: Notify::new(),
        node: node.store(),
        enactments: enactments.store(),
        queue: Queue::new(),
        written,
        reports: Notify::new(),
        busy: Busy::new(false),
        taken_over: Mutex::new(taken_over),
        requested: Mutex::default(),
        deleted: Mutex::default(),
        stranded: Mutex::default(),
        events: Mutex::default(),
        status_writer,
        jitter,
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

/// Reads the number of nodes: it lists one node, and the API server adds the number of the others.
async fn count_nodes(client: &kube::Client, jitter: &Jitter) {
    let nodes = Request::new(<Node as kube::Resource>::url_path(&(), None));
    let began = Instant::now();
    let answer = match nodes.list(&ListParams::default().limit(1)) {
        Ok(request) => within_timeout(client.request::<Value>(request)).await,
        Err(_) => return,
    };
    // The first estimate of a write's duration.
    jitter.record_write(began.elapsed());
    match answer {
        Ok(list) => {
            let more = list["metadata"]["remainingItemCount"]
                .as_u64()
                .unwrap_or_default();
            jitter.set_nodes(usize::try_from(more).unwrap_or(usize::MAX).saturating_add(1));
        }
        Err(error) => tracing::warn!(%error, "cannot count the nodes"),
    }
}

impl Controller {
    fn requested(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.requested)
    }

    fn deleted(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.deleted)
    }

    /// Enqueues a waiting policy after a change of its status, which may have released a slot.
    fn wake(&self, policy: &Policy) {
        let name = policy.name();
        let observation = self.waiting().get(&name).copied();
        if observation.is_some_and(|observation| !self.is_full(policy, observation)) {
            self.queue.add_after(name, self.jitter.delay(WAKE_WINDOW));
        }
    }

    /// Whether the cached policy shows that all slots are still taken.
    fn is_full(&self, policy: &Policy, observation: Observation) -> bool {
        let counts = policy.counts();
        let counted = counts.get(&observation.generation.to_string()).copied();
        // While enactments are being created, the limit may have grown.
        let is_fresh = observation.at.elapsed() < LIMIT_AGE + self.jitter.window(WAKE_WINDOW);
        // A degraded policy may not be applied on further nodes.
        policy.is(condition::DEGRADED) != Status::True
            && slots::is_full(counted.unwrap_or_default(), observation.limit, is_fresh)
    }

    /// Whether the policy was written after the observation, so that a slot may be free. The write woke this node only
    /// if it was already waiting.
    fn may_have_slot(&self, policy: &str, observation: Observation) -> bool {
        let may_have_slot = |policy: &Policy| {
            objects::comparable(&policy.version()) > observation.version && !self.is_full(policy, observation)
        };
        self.policies.with(&policy.to_owned(), may_have_slot) == Some(true)
    }

    /// The next policy to handle. The controller is idle while there is none.
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
        let mut tracked_policies = BTreeMap::<String, Tracked>::new();
        loop {
            let name = self.next().await;
            let tracked = tracked_policies.entry(name.clone()).or_default();
            if self.requested().remove(&name) {
                tracked.is_done = false;
                // The policy may render differently on the changed node.
                tracked.rendered = None;
            }
            if tracked.is_done {
                // A slot was released while this node already held one.
                self.queue.succeeded(&name);
                continue;
            }
            let next = match self.pass(&name, tracked).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(policy = name, %error, "cannot continue with the policy, retrying");
                    Next::Requeue
                }
            };
            self.queue.succeeded(&name);
            if let Some(pause) = tracked.delay_after(&next, &self.shared.settings) {
                self.queue.add_after(name, pause);
                continue;
            }
            tracked.is_done = true;
            if !self.policies.contains(&name) {
                tracked_policies.remove(&name);
            }
        }
    }

    /// Whether the watch still reports this revision of the policy.
    fn is_current(&self, policy: &str, revision: &Revision) -> bool {
        let now = self.policies.with(&policy.to_owned(), Revision::of);
        now.as_ref() == Some(revision)
    }

    /// Returns once the policy is edited or deleted.
    async fn superseded(&self, policy: &str, revision: &Revision) {
        loop {
            // Created before the check, so that no change is missed.
            let changed = self.policy_changed.notified();
            if !self.is_current(policy, revision) {
                return;
            }
            changed.await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Observation>> {
        kube_kit::lock(&self.waiting)
    }
}

/// Sort key of a node's policies: priority, then name.
fn order(policy: &Policy) -> (i64, String) {
    (legacy::priority(policy.spec()), policy.name())
}

#[cfg(test)]
mod tests;
