//! Writes what policies have come to, for all handlers at once: the status that the enactments add up to, and slots
//! given back, in one write (nmstate §5.7, §5.5-12).
//!
//! ```text
//! controller ── wish, with a moment ──> wishes of one policy, joined ──> is it told already? ──> list ──> PUT
//!                                             ^                                                    │ conflict: read again
//!                                             └─ again after a while, as long as nodes are not done ┘
//! ```
//!
//! Each handler could write the status whenever it has done something; with 200 nodes most of these writes would meet,
//! and each would say little new. So each waits for a moment of its own, and whoever sees by then that another handler
//! has told everything leaves it at that. Nothing hangs on who writes: as long as a policy is not settled, everybody
//! looks again now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::core::Request;
use kube_kit::queue::Queue;
use kube_kit::watch::Store;
use serde::Deserialize;
use thiserror::Error;
use tokio::time::Instant;

use super::ask::{self, patiently};
use super::objects::{self, Policy};
use super::spread::{self, Spread};
use super::status::{self, Nodes, Outcome};
use super::{selection, slots};
use crate::conditions::{Condition, Status};
use crate::handler::Shared;
use crate::names::{self, condition};

/// How often a write is tried before it is left for later.
const ATTEMPTS: u32 = 5;
/// Share of the time of all nodes' writes in which a status that nobody waits for is written, in percent.
const CALM: u32 = 200;
/// The same where somebody waits for it.
const BRISK: u32 = 50;
/// What a status that nobody waits for is put off, so that one write of many can stand for all that were there by then.
const CALMLY: Duration = Duration::from_millis(500);
/// Pause before a write that did not succeed is tried anew.
const LATER: Duration = Duration::from_secs(10);
/// The same where nothing else is to be done meanwhile, for each failed attempt.
const SOON: Duration = Duration::from_secs(1);
/// How long an unsettled policy goes without another look, and how much longer at most.
const LOOK: Duration = Duration::from_secs(60);
const LOOK_LATER: Duration = Duration::from_secs(120);

/// How much a write is waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Urgency {
    /// Somebody waits: a node for a slot, or a user for bad news.
    Brisk,
    /// Nobody does.
    Calm,
}

/// What is to be written of a policy.
#[derive(Clone, Debug, Default)]
struct Wish {
    /// Generations in which a slot is to be given back. Each with the version of the policy on which that was written
    /// without an answer, so that it may have been stored.
    owed: BTreeMap<i64, Option<String>>,
    /// The version in which this node's enactment was last written; nothing when a look at all of them is wanted.
    since: Option<u64>,
    /// Whether it is only wanted that the policy says that it is being applied.
    only_begun: bool,
}

impl Wish {
    /// Slots of these generations are to be given back too. What is known of one that is owed already stays.
    fn owe(&mut self, owed: impl IntoIterator<Item = (i64, Option<String>)>) {
        for (generation, written) in owed {
            self.owed.entry(generation).or_insert(written);
        }
    }

    /// Whether a slot may have been given back already.
    fn is_in_doubt(&self) -> bool {
        self.owed.values().any(Option::is_some)
    }

    /// A write on this version of the policy got no answer.
    fn doubt(&mut self, version: &str) {
        for written in self.owed.values_mut() {
            written.get_or_insert_with(|| version.to_owned());
        }
    }

    /// The policy is in this version now. Where that is another one than a write without an answer began with, the write
    /// may be in it. Given back twice, it would be another node's slot; one too few given back is found by those who wait
    /// ([`slots::Sightings`]).
    fn resolve(&mut self, version: &str) {
        self.owed
            .retain(|_, written| written.as_ref().is_none_or(|written| written == version));
    }
}

/// Why a policy's status could not be written.
#[derive(Debug, Error)]
enum Error {
    #[error(transparent)]
    Asked(#[from] ask::Error),
    #[error("nobody says in which namespace the handlers are")]
    NoNamespace,
}

/// Writes what policies have come to. Clones share it.
#[derive(Clone)]
pub struct Settler {
    shared: Shared,
    policies: Store<String, Policy>,
    spread: Spread,
    queue: Queue<String>,
    /// Policies whose status was written, for the controller.
    written: Queue<String>,
    /// By policy: what is to be written of it.
    wishes: Arc<Mutex<BTreeMap<String, Wish>>>,
}

impl Settler {
    /// One that works once [`Settler::run`] does.
    pub fn new(
        shared: Shared,
        policies: Store<String, Policy>,
        spread: Spread,
        written: Queue<String>,
    ) -> Self {
        Self {
            shared,
            policies,
            spread,
            queue: Queue::new(),
            written,
            wishes: Arc::default(),
        }
    }

    /// This node's enactment was written, in this version: the policy's status is to follow. Without a version it is gone,
    /// or nothing is known of it. `release` gives a slot of that generation back.
    pub fn settle(&self, policy: &str, written: Option<u64>, release: Option<i64>, urgency: Urgency) {
        let delay = match urgency {
            Urgency::Brisk => self.spread.moment(BRISK),
            Urgency::Calm => CALMLY + self.spread.moment(CALM),
        };
        let mut wishes = self.wishes();
        let wish = wishes.entry(policy.to_owned()).or_default();
        wish.owe(release.map(|generation| (generation, None)));
        wish.since = written;
        wish.only_begun = false;
        drop(wishes);
        self.queue.add_after(policy.to_owned(), delay);
    }

    /// The policy is to say that it is being applied, unless it says something already.
    pub fn begin(&self, policy: &str) {
        let mut wishes = self.wishes();
        let only_begun = !wishes.contains_key(policy);
        let wish = wishes.entry(policy.to_owned()).or_default();
        wish.only_begun |= only_begun;
        drop(wishes);
        self.queue.add_after(policy.to_owned(), self.spread.moment(BRISK));
    }

    /// What this handler wrote is known before the watch tells of it.
    pub fn wrote(&self, policy: &Policy) {
        self.policies
            .put(policy.name(), &policy.version(), policy.clone());
        self.written.add(policy.name());
    }

    /// A policy is gone.
    pub fn forget(&self, policy: &str) {
        self.wishes().remove(policy);
    }

    /// Writes what is wished for, for ever.
    pub async fn run(&self) {
        loop {
            let name = self.queue.next().await;
            let wish = self.wishes().remove(&name);
            let is_look = wish.is_none();
            let mut wish = wish.unwrap_or_default();
            let done = self.carry_out(&name, &mut wish, is_look).await;
            self.queue.succeeded(&name);
            match done {
                Ok(true) => {}
                Ok(false) => {
                    let look = LOOK + spread::within(LOOK_LATER);
                    self.queue.add_after(name, look);
                }
                Err(error) => {
                    tracing::warn!(policy = name, %error, "cannot write the policy's status, trying again");
                    self.put_back(&name, wish);
                    self.queue.add_after(name, LATER);
                }
            }
        }
    }

    /// Writes now what is wished for: for those who don't [`Settler::run`]. `false` when something could not be written;
    /// that is still wished for then.
    pub async fn finish(&self) -> bool {
        let wishes = std::mem::take(&mut *self.wishes());
        let mut is_all_told = true;
        for (name, mut wish) in wishes {
            let mut attempt = 1;
            while let Err(error) = self.carry_out(&name, &mut wish, false).await {
                tracing::warn!(policy = name, attempt, %error, "cannot write the policy's status");
                if attempt >= ATTEMPTS {
                    self.put_back(&name, wish);
                    is_all_told = false;
                    break;
                }
                attempt += 1;
                tokio::time::sleep(SOON * attempt).await;
            }
        }
        is_all_told
    }

    /// What could not be written is still wished for, with what was wished for meanwhile.
    fn put_back(&self, policy: &str, wish: Wish) {
        let mut wishes = self.wishes();
        let later = wishes.entry(policy.to_owned()).or_default();
        // Doubts are kept, so what was owed before comes first.
        let since = std::mem::replace(&mut later.owed, wish.owed);
        later.owe(since);
        later.only_begun = false;
    }

    /// Whether the policy is settled. A look is for what nobody wished for.
    async fn carry_out(&self, name: &str, wish: &mut Wish, is_look: bool) -> Result<bool, Error> {
        let known = if wish.is_in_doubt() {
            // The watch may be behind what the write began with.
            ask::policy(&self.shared.client, name).await?
        } else {
            self.policies.get(&name.to_owned())
        };
        let Some(mut policy) = known else {
            return Ok(true);
        };
        wish.resolve(&policy.version());
        if is_told(wish, &policy) || (is_look && was_looked_at(&policy, Timestamp::now())) {
            return Ok(is_settled(&policy));
        }
        let enactments = patiently(objects::enactments_of(&self.shared.client, name)).await?;
        let nodes = match self.nodes().await {
            Ok(nodes) => Some(nodes),
            // Slots must be given back all the same.
            Err(error) => {
                tracing::warn!(policy = name, %error, "cannot tell which nodes the policy is for");
                None
            }
        };
        let mut began = Instant::now();
        for attempt in 1..=ATTEMPTS {
            if attempt > 1 {
                tokio::time::sleep(self.spread.moment(BRISK * attempt)).await;
                began = Instant::now();
                match ask::policy(&self.shared.client, name).await? {
                    Some(fresh) => policy = fresh,
                    None => return Ok(true),
                }
                wish.resolve(&policy.version());
                if is_told(wish, &policy) || (is_look && was_looked_at(&policy, Timestamp::now())) {
                    return Ok(is_settled(&policy));
                }
            }
            let outcome = nodes.as_ref().map(|nodes| {
                let nodes = of_policy(nodes, &policy);
                self.spread.learn_at_least(nodes.all.len());
                status::outcome(
                    policy.generation(),
                    &enactments.items,
                    &nodes,
                    policy.is_dry_run(),
                )
            });
            // Another handler may know more by now.
            let outcome = outcome.filter(|_| !knows_more(&policy, enactments.version()));
            let (conditions, counts) = due(&policy, outcome, wish, is_look);
            if conditions.is_none() && counts.is_none() {
                return Ok(outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Progressing { .. })));
            }
            let told = conditions.as_deref();
            let told = told.map(|conditions| (conditions, enactments.version()));
            let object = policy.with_status(told, counts.as_ref());
            let api = objects::policies(&self.shared.client);
            let written = patiently(api.replace_status(name, &PostParams::default(), &object)).await;
            self.spread.took(began.elapsed());
            match written {
                Ok(object) => {
                    let written = Policy::new(object);
                    self.wrote(&written);
                    return Ok(is_settled(&written));
                }
                Err(error) if error.is(404) => return Ok(true),
                Err(error) => {
                    if counts.is_some() && !error.is_refusal() {
                        wish.doubt(&policy.version());
                    }
                    if attempt >= ATTEMPTS {
                        return Err(error.into());
                    }
                    tracing::debug!(policy = name, %error, "writing the status again");
                }
            }
        }
        Ok(false)
    }

    /// Nodes that run a handler.
    async fn nodes(&self) -> Result<Vec<SeenNode>, Error> {
        let (client, namespace) = (&self.shared.client, &self.shared.settings.namespace);
        if namespace.is_empty() {
            return Err(Error::NoNamespace);
        }
        let (key, value) = names::HANDLER_PODS;
        let of_handlers = ListParams::default().labels(&format!("{key}={value}"));
        let pods = Request::new(<Pod as kube::Resource>::url_path(&(), Some(namespace)));
        let pods = objects::list::<SeenPod>(client, &pods, &of_handlers);
        let nodes = Request::new(<Node as kube::Resource>::url_path(&(), None));
        let all = ListParams::default();
        let nodes = objects::list::<SeenNode>(client, &nodes, &all);
        let (pods, nodes) = patiently(async { tokio::try_join!(pods, nodes) }).await?;
        let with_handler: BTreeSet<String> = pods.items.into_iter().map(|pod| pod.spec.node_name).collect();
        let mut nodes = nodes.items;
        nodes.retain(|node| with_handler.contains(&node.metadata.name));
        Ok(nodes)
    }

    fn wishes(&self) -> MutexGuard<'_, BTreeMap<String, Wish>> {
        kube_kit::lock(&self.wishes)
    }
}

/// Whether the policy says all that is wished for.
fn is_told(wish: &Wish, policy: &Policy) -> bool {
    if wish.only_begun {
        return policy.is(condition::AVAILABLE) != Status::Unknown
            || policy.is(condition::PROGRESSING) == Status::True;
    }
    let counts = policy.counts();
    let owes = wish.owed.keys().any(|generation| {
        counts
            .get(&generation.to_string())
            .is_some_and(|count| *count > 0)
    });
    !owes && wish.since.is_some_and(|since| knows_more(policy, Some(since)))
}

/// Whether the conditions of a policy are as of this version of its enactments, or of a later one. Those of another
/// generation know nothing.
fn knows_more(policy: &Policy, version: Option<u64>) -> bool {
    policy.observed_generation() == Some(policy.generation())
        && policy
            .observed()
            .zip(version)
            .is_some_and(|(observed, version)| observed >= version)
}

/// Those of all nodes that a policy is for.
fn of_policy(nodes: &[SeenNode], policy: &Policy) -> Nodes {
    let selector = policy.node_selector();
    let mut seen = Nodes::default();
    for node in nodes {
        if !selection::unmatched(&selector, &node.metadata.labels).is_empty() {
            continue;
        }
        let mut conditions = node.status.conditions.iter();
        if conditions.any(|condition| condition.kind == "Ready" && condition.status == "True") {
            seen.ready.insert(node.metadata.name.clone());
        }
        seen.all.insert(node.metadata.name.clone());
    }
    seen
}

/// Whether some handler looked at a policy, or told something of it, not long ago. So one look a while is enough, however
/// many nodes there are. Clocks that are far ahead keep nobody from looking.
fn was_looked_at(policy: &Policy, now: Timestamp) -> bool {
    let conditions = policy.conditions();
    let told = conditions
        .iter()
        .filter_map(|one| one.last_heartbeat_time.as_ref());
    told.max()
        .is_some_and(|told| now.duration_since(told.0).unsigned_abs() < LOOK)
}

/// What of a policy's status is to be written: conditions and counts, each where it differs; after a look the conditions
/// in any case, which tells others that it was looked at.
fn due(
    policy: &Policy,
    outcome: Option<Outcome>,
    wish: &Wish,
    is_look: bool,
) -> (Option<Vec<Condition>>, Option<slots::Counts>) {
    let before = policy.conditions();
    let mut counts = policy.counts();
    let had = counts.clone();
    for generation in wish.owed.keys() {
        slots::release(&mut counts, *generation);
    }
    if matches!(outcome, Some(Outcome::Success { .. })) {
        counts.clear();
    }
    let conditions = outcome.map(|outcome| status::conditions(policy, outcome, Timestamp::now()));
    let counts = (counts != had).then_some(counts);
    let told = |conditions: &Vec<_>| !status::same(conditions, &before);
    // What is written for the counts alone says the rest too: it costs nothing.
    let conditions = conditions.filter(|conditions| is_look || counts.is_some() || told(conditions));
    (conditions, counts)
}

/// Whether nobody waits for anything.
fn is_settled(policy: &Policy) -> bool {
    let is = |kind| policy.is(kind) == Status::True;
    is(condition::AVAILABLE) || is(condition::DEGRADED) || is(condition::IGNORED)
}

#[derive(Default, Deserialize)]
struct SeenPod {
    #[serde(default)]
    spec: SeenPodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SeenPodSpec {
    node_name: String,
}

#[derive(Deserialize)]
struct SeenNode {
    metadata: SeenMetadata,
    #[serde(default)]
    status: SeenNodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenMetadata {
    name: String,
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenNodeStatus {
    conditions: Vec<SeenCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[cfg(test)]
mod tests;
