//! Publishes events for users (kubemacpool §11, §13.6).
//!
//! ```text
//! watches, webhooks ── never wait ──> bounded queue ── sequentially, at a limited rate ──> events
//! ```
//!
//! Callers only enqueue. A burst of collisions is published at a rate that leaves the API server to others: a newer
//! notice about an address replaces an older one in the queue, and excess ones are dropped, because the gauge includes
//! them anyway.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::kubevirt;
use cni::mac::Mac;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use kube_kit::client;
use kube_kit::events::{Kind, Recorder};
use tokio::sync::Notify;

use crate::collisions::{self, Notice, Party};
use crate::{messages, names};

#[cfg(test)]
mod tests;

/// Maximum number of queued addresses with collisions.
const MAX_COLLISIONS: usize = 2048;
/// Maximum number of queued notices about the range.
const MAX_RANGE_NOTICES: usize = 64;
/// Pause after each event about a collision: at most 50 per second.
const EVENT_INTERVAL: Duration = Duration::from_millis(20);

/// Share of the range from which on it is nearly full, in percent.
pub(crate) const NEARLY_FULL: u64 = 90;
/// Share below which this ends, in percent, so that usage around one limit is reported once.
const NO_LONGER_FULL: u64 = 85;

/// A notice about the range, published on the manager's pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RangeNotice {
    /// The ConfigMap has no range; the old one stays.
    Invalid {
        /// Cause.
        error: String,
    },
    /// The range in the ConfigMap cannot be used; the old one stays.
    Refused {
        /// First address of the range.
        start: Mac,
        /// Last address of the range.
        end: Mac,
        /// Cause.
        error: String,
    },
    /// Addresses are allocated from another range.
    Updated {
        /// First address of the range.
        start: Mac,
        /// Last address of the range.
        end: Mac,
    },
    /// Few addresses are free.
    NearlyFull,
}

impl RangeNotice {
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

/// Whether a nearly full range is reported.
#[derive(Debug, Default)]
pub struct Fullness {
    reported: bool,
}

impl Fullness {
    /// Observes the number of `taken` addresses of `size`. Returns a notice once when 90 % are reached, and again only
    /// after usage fell below 85 %.
    pub fn observe(&mut self, taken: u64, size: u64) -> Option<RangeNotice> {
        // Cannot saturate: a hundred times 2^48 fits.
        let reached = |percent: u64| taken.saturating_mul(100) >= size.saturating_mul(percent);
        if reached(NEARLY_FULL) && !self.reported {
            self.reported = true;
            return Some(RangeNotice::NearlyFull);
        }
        self.reported &= reached(NO_LONGER_FULL);
        None
    }
}

/// The queue of notices. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    range: VecDeque<RangeNotice>,
    /// In the order of the first notice.
    addresses: VecDeque<Mac>,
    collisions: HashMap<Mac, Notice>,
}

#[derive(Debug, Eq, PartialEq)]
enum Next {
    Range(RangeNotice),
    Collision(Notice),
}

impl Notices {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enqueues collisions. Never waits.
    pub fn collisions(&self, notices: impl IntoIterator<Item = Notice>) {
        let mut waiting = self.waiting();
        let mut left_out = 0;
        for notice in notices {
            let mac = notice.mac;
            if waiting.collisions.len() >= MAX_COLLISIONS && !waiting.collisions.contains_key(&mac) {
                left_out += 1;
            } else if waiting.collisions.insert(mac, notice).is_none() {
                waiting.addresses.push_back(mac);
            }
        }
        drop(waiting);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "too many collisions, not publishing events about all of them"
            );
        }
        self.0.more.notify_one();
    }

    /// Enqueues a notice about the range. Never waits.
    pub fn range(&self, notice: RangeNotice) {
        let mut waiting = self.waiting();
        if waiting.range.len() >= MAX_RANGE_NOTICES {
            // The newest ones describe the current state.
            waiting.range.pop_front();
        }
        waiting.range.push_back(notice);
        drop(waiting);
        self.0.more.notify_one();
    }

    /// Publishes notices as events until the runtime ends; `namespace` is the manager's.
    pub async fn publish_all(&self, client: Client, namespace: &str) {
        let collisions = Recorder::new(client.clone(), names::COMPONENT);
        let range = Recorder::new(client.clone(), names::RANGE_REPORTER);
        loop {
            match self.next().await {
                Next::Collision(notice) => publish_collision(&collisions, &notice).await,
                Next::Range(notice) => {
                    let recorder = match notice {
                        RangeNotice::NearlyFull => &collisions,
                        _ => &range,
                    };
                    publish_range(recorder, &client, namespace, &notice).await;
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
    /// Notices about the range come first: they are few, and must not wait behind a burst of collisions.
    fn take(&mut self) -> Option<Next> {
        if let Some(notice) = self.range.pop_front() {
            return Some(Next::Range(notice));
        }
        let mac = self.addresses.pop_front()?;
        self.collisions.remove(&mac).map(Next::Collision)
    }
}

async fn publish_collision(recorder: &Recorder, notice: &Notice) {
    let parties: Vec<_> = notice.parties.iter().map(|party| &party.reference).collect();
    let message = messages::collision(notice.mac, &parties);
    tracing::warn!(mac = %notice.mac, message, "Found MAC collision");
    for party in &notice.parties {
        let object = object_reference(party);
        recorder
            .publish(&object, Kind::Warning, names::reason::COLLISION, &message)
            .await;
        tokio::time::sleep(EVENT_INTERVAL).await;
    }
}

/// The reference of an event to a party.
fn object_reference(party: &Party) -> ObjectReference {
    let (kind, version) = match party.reference.kind {
        collisions::Kind::Pod => ("Pod", "v1"),
        collisions::Kind::Instance => (kubevirt::INSTANCE, kubevirt::API_VERSION),
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

async fn publish_range(recorder: &Recorder, client: &Client, namespace: &str, notice: &RangeNotice) {
    let (reason, message) = (notice.reason(), notice.message());
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = match pods
        .list(&ListParams::default().labels(names::MANAGER_PODS))
        .await
    {
        Ok(pods) => event_pod(pods.items),
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
        tracing::warn!(reason, message, "the manager has no pod for this event");
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
    recorder.publish(&object, notice.kind(), reason, &message).await;
}

/// The pod for events about the range: the first running one, otherwise the first one.
fn event_pod(mut pods: Vec<Pod>) -> Option<Pod> {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some(collisions::RUNNING)
    };
    let first = pods.iter().position(runs).unwrap_or(0);
    (first < pods.len()).then(|| pods.swap_remove(first))
}
