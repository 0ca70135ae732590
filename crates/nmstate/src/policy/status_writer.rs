//! Writes the status of policies, on behalf of all handlers: the conditions that the enactments add up to, and released
//! slots, in one write (nmstate §5.7, §5.5-12).
//!
//! ```text
//! controller ── update, delayed ──> pending updates by policy, merged ──> already written? ──> list ──> PUT
//!                                             ^                                                 │ conflict: read again
//!                                             └── requeue while the policy is not final ────────┘
//! ```
//!
//! If each handler wrote the status after each step, most writes of 200 nodes would conflict, and each would add
//! little. So each handler delays its write at random, and skips it if another handler wrote the same by then. No
//! handler is special: while a policy is not final, every handler checks it at intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::Request;
use kube_kit::queue::Queue;
use kube_kit::watch::Store;
use serde::Deserialize;
use thiserror::Error;
use tokio::time::Instant;

use super::slots::Held;
use super::status::{self, Nodes, Outcome};
use super::{selection, slots};
use crate::conditions::{Condition, Status};
use crate::jitter::{self, Jitter};
use crate::names::{self, condition};
use crate::objects::{self, Policy};
use crate::requests::{self, within_timeout};
use crate::shared::Shared;

/// Attempts at a write before it is requeued.
const ATTEMPTS: u32 = 5;
/// Share of the time of all nodes' writes over which deferrable writes are spread, in percent.
const DEFERRABLE_WINDOW: u32 = 200;
/// The same for urgent writes.
const SOON_WINDOW: u32 = 50;
/// Minimum delay of a deferrable write, so that it covers the enactments of many nodes.
const DEFERRABLE_DELAY: Duration = Duration::from_millis(500);
/// Delay of a failed write's requeue.
const REQUEUE: Duration = Duration::from_secs(10);
/// Pause after a failed write when nothing else is queued, multiplied by the attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which a policy that is not final is checked again, and the maximum jitter added to it.
const CHECK: Duration = Duration::from_secs(60);
const CHECK_JITTER: Duration = Duration::from_secs(120);

/// How soon a write is needed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Urgency {
    /// Soon: a node waits for a slot, or a user for a failure.
    Soon,
    /// The write may be delayed.
    Deferrable,
}

/// The pending writes of a policy.
#[derive(Clone, Debug, Default)]
struct Update {
    /// Slots that must be released, each with the `resourceVersion` of a release whose response was lost: that write may
    /// have been stored.
    releases: BTreeMap<Held, Option<String>>,
    /// `resourceVersion` of this node's last written enactment; `None` to check all of them.
    since: Option<u64>,
    /// Whether only the condition Progressing is needed.
    only_progressing: bool,
}

impl Update {
    /// Adds slots to release. The `resourceVersion` of an earlier attempt stays.
    fn add_releases(&mut self, releases: impl IntoIterator<Item = (Held, Option<String>)>) {
        for (slot, written) in releases {
            self.releases.entry(slot).or_insert(written);
        }
    }

    /// Whether a slot may already be released.
    fn has_lost_response(&self) -> bool {
        self.releases.values().any(Option::is_some)
    }

    /// Records that the response of a write on this `resourceVersion` was lost.
    fn response_lost(&mut self, version: &str) {
        for written in self.releases.values_mut() {
            written.get_or_insert_with(|| version.to_owned());
        }
    }

    /// Called with the current policy. If its `resourceVersion` changed since a release whose response was lost, the
    /// release may have been stored, and counts as done: releasing twice would free another node's slot, whereas waiting
    /// nodes detect a leaked slot ([`slots::LeakDetector`]). The slots of a deleted policy of the same name went with
    /// it.
    fn resolve(&mut self, policy: &Policy) {
        let (uid, version) = (policy.uid(), policy.version());
        self.releases.retain(|slot, written| {
            slot.uid == uid && written.as_ref().is_none_or(|written| *written == version)
        });
    }
}

/// A policy's status cannot be written.
#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Request(#[from] requests::Error),
    #[error("the namespace of the handlers is unknown")]
    NoNamespace,
}

/// Writes the status of policies. Clones share one queue.
#[derive(Clone)]
pub(crate) struct StatusWriter {
    shared: Shared,
    policies: Store<String, Policy>,
    jitter: Jitter,
    queue: Queue<String>,
    /// Policies whose status was written, for the controller.
    written: Queue<String>,
    /// Updates that are not written yet, by policy.
    updates: Arc<Mutex<BTreeMap<String, Update>>>,
}

impl StatusWriter {
    /// Creates a writer that works once [`StatusWriter::run`] does.
    pub(crate) fn new(
        shared: Shared,
        policies: Store<String, Policy>,
        jitter: Jitter,
        written: Queue<String>,
    ) -> Self {
        Self {
            shared,
            policies,
            jitter,
            queue: Queue::new(),
            written,
            updates: Arc::default(),
        }
    }

    /// Updates a policy's status after this node's enactment was written in version `written`; `None` if the enactment
    /// is gone or its version is unknown. `release` is a slot to release.
    pub(crate) fn update(&self, policy: &str, written: Option<u64>, release: Option<Held>, urgency: Urgency) {
        let delay = match urgency {
            Urgency::Soon => self.jitter.delay(SOON_WINDOW),
            Urgency::Deferrable => DEFERRABLE_DELAY + self.jitter.delay(DEFERRABLE_WINDOW),
        };
        let mut updates = self.updates();
        let update = updates.entry(policy.to_owned()).or_default();
        update.add_releases(release.map(|slot| (slot, None)));
        update.since = written;
        update.only_progressing = false;
        drop(updates);
        self.queue.add_after(policy.to_owned(), delay);
    }

    /// Sets the condition Progressing, unless the policy has a result already.
    pub(crate) fn set_progressing(&self, policy: &str) {
        let mut updates = self.updates();
        let only_progressing = !updates.contains_key(policy);
        let update = updates.entry(policy.to_owned()).or_default();
        update.only_progressing |= only_progressing;
        drop(updates);
        self.queue
            .add_after(policy.to_owned(), self.jitter.delay(SOON_WINDOW));
    }

    /// Stores the answer to a write of this handler, which precedes the watch event.
    pub(crate) fn store_written(&self, policy: &Policy) {
        self.policies
            .put(policy.name(), &policy.version(), policy.clone());
        self.written.add(policy.name());
    }

    /// Drops the updates of a deleted policy.
    pub(crate) fn forget(&self, policy: &str) {
        self.updates().remove(policy);
    }

    /// Writes updates until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            let name = self.queue.next().await;
            let update = self.updates().remove(&name);
            let is_check = update.is_none();
            let mut update = update.unwrap_or_default();
            let done = self.write(&name, &mut update, is_check).await;
            self.queue.succeeded(&name);
            match done {
                Ok(true) => {}
                Ok(false) => {
                    let interval = CHECK + jitter::up_to(CHECK_JITTER);
                    self.queue.add_after(name, interval);
                }
                Err(error) => {
                    tracing::warn!(policy = name, %error, "cannot write the policy's status, retrying");
                    self.keep(&name, update);
                    self.queue.add_after(name, REQUEUE);
                }
            }
        }
    }

    /// Writes all updates now, without [`StatusWriter::run`]. `false` if a write failed; its update is kept.
    pub(crate) async fn flush(&self) -> bool {
        let updates = std::mem::take(&mut *self.updates());
        let mut all_written = true;
        for (name, mut update) in updates {
            let mut attempt = 1;
            while let Err(error) = self.write(&name, &mut update, false).await {
                tracing::warn!(policy = name, attempt, %error, "cannot write the policy's status");
                if attempt >= ATTEMPTS {
                    self.keep(&name, update);
                    all_written = false;
                    break;
                }
                attempt += 1;
                tokio::time::sleep(RETRY_PAUSE * attempt).await;
            }
        }
        all_written
    }

    /// Keeps a failed update, merged with later ones.
    fn keep(&self, policy: &str, update: Update) {
        let mut updates = self.updates();
        let later = updates.entry(policy.to_owned()).or_default();
        // Lost responses are kept, so the failed update comes first.
        let since = std::mem::replace(&mut later.releases, update.releases);
        later.add_releases(since);
        later.only_progressing = false;
    }

    /// Writes an update. Returns whether the policy is final. `is_check` is set for an interval check without an
    /// update.
    async fn write(&self, name: &str, update: &mut Update, is_check: bool) -> Result<bool, Error> {
        let known = if update.has_lost_response() {
            // The watch may be older than the write whose response was lost.
            requests::read_policy(&self.shared.client, name).await?
        } else {
            self.policies.get(&name.to_owned())
        };
        let Some(mut policy) = known else {
            return Ok(true);
        };
        update.resolve(&policy);
        if is_written(update, &policy) || (is_check && was_checked(&policy, Timestamp::now())) {
            return Ok(is_final(&policy));
        }
        let enactments = within_timeout(objects::enactments_of(&self.shared.client, name)).await?;
        let (nodes, failed) = match self.nodes().await {
            Ok(nodes) => (Some(nodes), None),
            // Slots are released all the same.
            Err(error) => {
                tracing::warn!(policy = name, %error, "cannot list the nodes of the policy");
                // Without a namespace, no other attempt can succeed.
                (None, matches!(error, Error::Request(_)).then_some(error))
            }
        };
        let done = |is_final: bool| failed.map_or(Ok(is_final), Err);
        let mut began = Instant::now();
        for attempt in 1..=ATTEMPTS {
            if attempt > 1 {
                tokio::time::sleep(self.jitter.delay(SOON_WINDOW * attempt)).await;
                began = Instant::now();
                match requests::read_policy(&self.shared.client, name).await? {
                    Some(fresh) => policy = fresh,
                    None => return Ok(true),
                }
                update.resolve(&policy);
                if is_written(update, &policy) || (is_check && was_checked(&policy, Timestamp::now())) {
                    return Ok(is_final(&policy));
                }
            }
            let outcome = nodes.as_ref().map(|nodes| {
                let nodes = of_policy(nodes, &policy);
                self.jitter.raise_nodes(nodes.all.len());
                status::outcome(
                    policy.generation(),
                    &policy.own(&enactments.items),
                    &nodes,
                    policy.is_dry_run(),
                )
            });
            // Another handler may have written newer conditions.
            let outcome = outcome.filter(|_| !includes(&policy, enactments.version()));
            let (conditions, counts) = due(&policy, outcome, update, is_check);
            if conditions.is_none() && counts.is_none() {
                return done(outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Progressing { .. })));
            }
            let with_version = conditions.as_deref();
            let with_version = with_version.map(|conditions| (conditions, enactments.version()));
            let object = policy.with_status(with_version, counts.as_ref());
            let written = requests::write_status(&objects::policies(&self.shared.client), &object).await;
            self.jitter.record_write(began.elapsed());
            match written {
                Ok(object) => {
                    let written = Policy::new(object);
                    self.store_written(&written);
                    update.releases.clear();
                    return done(is_final(&written));
                }
                Err(error) if error.is(404) => return Ok(true),
                Err(error) => {
                    if counts.is_some() && !error.is_refusal() {
                        update.response_lost(&policy.version());
                    }
                    if attempt >= ATTEMPTS {
                        return Err(error.into());
                    }
                    tracing::debug!(policy = name, %error, "retrying to write the status");
                }
            }
        }
        Ok(false)
    }

    /// Nodes that run a handler.
    async fn nodes(&self) -> Result<Vec<ListedNode>, Error> {
        let (client, namespace) = (&self.shared.client, &self.shared.settings.namespace);
        if namespace.is_empty() {
            return Err(Error::NoNamespace);
        }
        let (key, value) = names::HANDLER_PODS;
        let of_handlers = ListParams::default().labels(&format!("{key}={value}"));
        let pods = Request::new(<Pod as kube::Resource>::url_path(&(), Some(namespace)));
        let pods = objects::list::<ListedPod>(client, &pods, &of_handlers);
        let nodes = Request::new(<Node as kube::Resource>::url_path(&(), None));
        let all = ListParams::default();
        let nodes = objects::list::<ListedNode>(client, &nodes, &all);
        let (pods, nodes) = within_timeout(async { tokio::try_join!(pods, nodes) }).await?;
        let with_handler: BTreeSet<String> = pods.items.into_iter().map(|pod| pod.spec.node_name).collect();
        let mut nodes = nodes.items;
        nodes.retain(|node| with_handler.contains(&node.metadata.name));
        Ok(nodes)
    }

    fn updates(&self) -> MutexGuard<'_, BTreeMap<String, Update>> {
        kube_kit::lock(&self.updates)
    }
}

/// Whether the policy's status already includes the update.
fn is_written(update: &Update, policy: &Policy) -> bool {
    if update.only_progressing {
        return policy.is(condition::AVAILABLE) != Status::Unknown
            || policy.is(condition::PROGRESSING) == Status::True;
    }
    let counts = policy.counts();
    let releases = update.releases.keys().any(|slot| {
        counts
            .get(&slot.generation.to_string())
            .is_some_and(|count| *count > 0)
    });
    !releases && update.since.is_some_and(|since| includes(policy, Some(since)))
}

/// Whether the conditions of a policy include its enactments up to this version. Conditions of another generation
/// include none.
fn includes(policy: &Policy, version: Option<u64>) -> bool {
    policy.observed_generation() == Some(policy.generation())
        && policy
            .observed()
            .zip(version)
            .is_some_and(|(observed, version)| observed >= version)
}

/// The nodes that a policy selects.
fn of_policy(nodes: &[ListedNode], policy: &Policy) -> Nodes {
    let selector = policy.node_selector();
    let mut selected = Nodes::default();
    for node in nodes {
        if !selection::unmatched(&selector, &node.metadata.labels).is_empty() {
            continue;
        }
        let mut conditions = node.status.conditions.iter();
        if conditions.any(|condition| condition.kind == "Ready" && condition.status == "True") {
            selected.ready.insert(node.metadata.name.clone());
        }
        selected.all.insert(node.metadata.name.clone());
    }
    selected
}

/// Whether any handler checked or wrote the policy within [`CHECK`], so that one check per interval suffices for all
/// nodes. A clock that is far ahead prevents no check.
fn was_checked(policy: &Policy, now: Timestamp) -> bool {
    let conditions = policy.conditions();
    let heartbeats = conditions
        .iter()
        .filter_map(|one| one.last_heartbeat_time.as_ref());
    heartbeats
        .max()
        .is_some_and(|heartbeat| now.duration_since(heartbeat.0).unsigned_abs() < CHECK)
}

/// The parts of a policy's status to write: conditions and counts, each if it differs. A check always writes the
/// conditions, so that other handlers see their heartbeat.
fn due(
    policy: &Policy,
    outcome: Option<Outcome>,
    update: &Update,
    is_check: bool,
) -> (Option<Vec<Condition>>, Option<objects::Counts>) {
    let before = policy.conditions();
    let mut counts = policy.counts();
    let had = counts.clone();
    for slot in update.releases.keys() {
        slots::release(&mut counts, slot.generation);
    }
    if matches!(outcome, Some(Outcome::Success { .. })) {
        counts.clear();
    }
    let conditions = outcome.map(|outcome| status::conditions(policy, outcome, Timestamp::now()));
    let counts = (counts != had).then_some(counts);
    let is_changed = |conditions: &Vec<_>| !status::same(conditions, &before);
    // A write of the counts includes the conditions at no cost.
    let conditions = conditions.filter(|conditions| is_check || counts.is_some() || is_changed(conditions));
    (conditions, counts)
}

/// Whether a policy has a final result.
fn is_final(policy: &Policy) -> bool {
    let is = |kind| policy.is(kind) == Status::True;
    is(condition::AVAILABLE) || is(condition::DEGRADED) || is(condition::IGNORED)
}

#[derive(Default, Deserialize)]
struct ListedPod {
    #[serde(default)]
    spec: ListedPodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedPodSpec {
    node_name: String,
}

#[derive(Deserialize)]
struct ListedNode {
    metadata: ListedMetadata,
    #[serde(default)]
    status: ListedNodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedMetadata {
    name: String,
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedNodeStatus {
    conditions: Vec<ListedCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[cfg(test)]
mod tests;
