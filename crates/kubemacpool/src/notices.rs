//! Tells users by events what they should know of (kubemacpool §11, §13.6).
//!
//! ```text
//! watches, webhooks ── never wait ──> queue, bounded ── one after the other, slowly ──> events
//! ```
//!
//! Whoever has something to tell puts it down and goes on. A burst of collisions is told at a pace that leaves the API
//! server to others: news of an address take the place of older ones that still wait, and what is too much is left out,
//! as the gauge has it anyway.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use kube_kit::client;
use kube_kit::events::{Kind, Recorder};
use tokio::sync::Notify;

use crate::collisions::{self, Notice, Party};
use crate::mac::Mac;
use crate::{messages, names};

#[cfg(test)]
mod tests;

/// Addresses whose collisions may wait to be told.
const ADDRESSES: usize = 2048;
/// News of the range that may wait to be told.
const NEWS: usize = 64;
/// Pause after each event about a collision: 50 a second at most.
const PACE: Duration = Duration::from_millis(20);

/// From which part of the range on it is nearly full, in percent.
pub(crate) const NEARLY_FULL: u64 = 90;
/// Below which part it is not any more, in percent: who hovers around a limit is told once.
const ROOMY: u64 = 85;

/// News of the range, told on the manager's pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RangeNews {
    /// The ConfigMap does not say a range; the old one stays.
    Invalid {
        /// What is wrong.
        error: String,
    },
    /// The range that the ConfigMap says can't be used; the old one stays.
    Refused {
        /// Its first address.
        start: Mac,
        /// Its last address.
        end: Mac,
        /// What is wrong.
        error: String,
    },
    /// Addresses are handed out of another range.
    Updated {
        /// Its first address.
        start: Mac,
        /// Its last address.
        end: Mac,
    },
    /// Little is left to hand out.
    NearlyFull,
}

impl RangeNews {
    fn kind(&self) -> Kind {
        match self {
            Self::Updated { .. } => Kind::Normal,
            Self::Invalid { .. } | Self::Refused { .. } | Self::NearlyFull => Kind::Warning,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => names::reason::INVALID_RANGE,
            Self::Refused { .. } => names::reason::UPDATE_FAILED,
            Self::Updated { .. } => names::reason::RANGE_UPDATED,
            Self::NearlyFull => names::reason::NEARLY_FULL,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Invalid { error } => messages::range_ignored(error),
            Self::Refused { start, end, error } => messages::range_refused(*start, *end, error),
            Self::Updated { start, end } => messages::range_updated(*start, *end),
            Self::NearlyFull => messages::range_nearly_full(NEARLY_FULL),
        }
    }
}

/// Whether users know that the range is nearly full.
#[derive(Debug, Default)]
pub struct Fullness {
    told: bool,
}

impl Fullness {
    /// So many of `size` addresses are taken now: gives what there is to tell of it, once when 90 % are reached, and
    /// again only after it were less than 85 % in between.
    pub fn observe(&mut self, taken: u64, size: u64) -> Option<RangeNews> {
        // Of all that 48 bits can count, a hundredfold still fits.
        let reached = |percent: u64| taken.saturating_mul(100) >= size.saturating_mul(percent);
        if reached(NEARLY_FULL) && !self.told {
            self.told = true;
            return Some(RangeNews::NearlyFull);
        }
        self.told &= reached(ROOMY);
        None
    }
}

/// What is to be told. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    range: VecDeque<RangeNews>,
    /// In the order in which they came up.
    addresses: VecDeque<Mac>,
    collisions: HashMap<Mac, Notice>,
}

#[derive(Debug, Eq, PartialEq)]
enum Next {
    Range(RangeNews),
    Collision(Notice),
}

impl Notices {
    /// Nothing is to be told.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts down collisions. Never waits.
    pub fn collisions(&self, notices: impl IntoIterator<Item = Notice>) {
        let mut waiting = self.waiting();
        let mut left_out = 0;
        for notice in notices {
            let mac = notice.mac;
            if waiting.collisions.len() >= ADDRESSES && !waiting.collisions.contains_key(&mac) {
                left_out += 1;
            } else if waiting.collisions.insert(mac, notice).is_none() {
                waiting.addresses.push_back(mac);
            }
        }
        drop(waiting);
        if left_out > 0 {
            tracing::warn!(left_out, "too many collisions to tell each of them by events");
        }
        self.0.more.notify_one();
    }

    /// Puts down news of the range. Never waits.
    pub fn range(&self, news: RangeNews) {
        let mut waiting = self.waiting();
        if waiting.range.len() >= NEWS {
            // The newest say how things are.
            waiting.range.pop_front();
        }
        waiting.range.push_back(news);
        drop(waiting);
        self.0.more.notify_one();
    }

    /// Publishes what is put down as events, for ever; `namespace` is the manager's.
    pub async fn carry(&self, client: Client, namespace: &str) {
        let collisions = Recorder::new(client.clone(), names::COMPONENT);
        let range = Recorder::new(client.clone(), names::RANGE_REPORTER);
        loop {
            match self.next().await {
                Next::Collision(notice) => tell_collision(&collisions, &notice).await,
                Next::Range(news) => {
                    let recorder = match news {
                        RangeNews::NearlyFull => &collisions,
                        _ => &range,
                    };
                    tell_range(recorder, &client, namespace, &news).await;
                }
            }
        }
    }

    async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.waiting().take() {
                return next;
            }
            self.0.more.notified().await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        kube_kit::lock(&self.0.waiting)
    }
}

impl Waiting {
    /// News of the range are few, and nobody should miss them behind a burst of collisions.
    fn take(&mut self) -> Option<Next> {
        if let Some(news) = self.range.pop_front() {
            return Some(Next::Range(news));
        }
        let mac = self.addresses.pop_front()?;
        self.collisions.remove(&mac).map(Next::Collision)
    }
}

async fn tell_collision(recorder: &Recorder, notice: &Notice) {
    let parties: Vec<_> = notice.parties.iter().map(|party| &party.reference).collect();
    let message = messages::collision(notice.mac, &parties);
    tracing::warn!(mac = %notice.mac, message, "Found MAC collision");
    for party in &notice.parties {
        let object = involved(party);
        recorder
            .publish(&object, Kind::Warning, names::reason::COLLISION, &message)
            .await;
        tokio::time::sleep(PACE).await;
    }
}

/// A party as events name it.
fn involved(party: &Party) -> ObjectReference {
    let (kind, version) = match party.reference.kind {
        collisions::Kind::Pod => ("Pod", "v1"),
        collisions::Kind::Instance => (names::INSTANCE_KIND, names::INSTANCE_VERSION),
    };
    ObjectReference {
        api_version: Some(version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(party.reference.namespace.to_string()),
        name: Some(party.reference.name.to_string()),
        uid: Some(party.uid.to_string()),
        ..ObjectReference::default()
    }
}

async fn tell_range(recorder: &Recorder, client: &Client, namespace: &str, news: &RangeNews) {
    let (reason, message) = (news.reason(), news.message());
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = match pods
        .list(&ListParams::default().labels(names::MANAGER_PODS))
        .await
    {
        Ok(pods) => speaker(pods.items),
        Err(error) => {
            let error = client::message(&error);
            tracing::warn!(
                error,
                reason,
                message,
                "cannot find the manager's pod for an event"
            );
            return;
        }
    };
    let Some(pod) = pod else {
        tracing::warn!(reason, message, "no pod of the manager to tell this on");
        return;
    };
    let object = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
        ..ObjectReference::default()
    };
    recorder.publish(&object, news.kind(), reason, &message).await;
}

/// The pod that events about the range are told on: the first that runs, else the first.
fn speaker(mut pods: Vec<Pod>) -> Option<Pod> {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some(collisions::RUNNING)
    };
    let first = pods.iter().position(runs).unwrap_or(0);
    (first < pods.len()).then(|| pods.swap_remove(first))
}
