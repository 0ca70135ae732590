//! Events that `kubectl describe` shows: an identical one is counted, not repeated.

use crate::client;
use crate::lock;
use crate::path;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::core::{Request, params};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of remembered events, whose repetitions are counted.
const REMEMBERED: usize = 256;

/// Burst of events about one object, and the time until another one is allowed, as in upstream's client library: a
/// failing controller must not flood the API server.
const BURST: f64 = 25.0;
const EARN: Duration = Duration::from_mins(5);

/// Deadline of a request; events are best effort.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts to create an event, and the pause between them.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Expected.
    Normal,
    /// Needs attention.
    Warning,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        })
    }
}

/// Publishes core/v1 events of one component. Clones share the remembered events.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    is_limited: bool,
    component: Arc<str>,
    host: Arc<str>,
    memory: Arc<Mutex<Memory>>,
}

impl Recorder {
    /// A recorder for a component (`source.component` of its events).
    pub fn new(client: Client, component: &str) -> Self {
        Self::on_host(client, component, "")
    }

    /// Like [`Recorder::new`], with the node of the component (`source.host`).
    pub fn on_host(client: Client, component: &str, host: &str) -> Self {
        Self {
            client,
            is_limited: true,
            component: component.into(),
            host: host.into(),
            memory: Arc::default(),
        }
    }

    /// Publishes every event, for callers with limits of their own. Otherwise a recorder drops events above 25 about one
    /// object, and allows another one every 5 minutes.
    #[must_use]
    pub fn without_limit(self) -> Self {
        Self {
            is_limited: false,
            ..self
        }
    }

    /// Publishes an event about an object, in its namespace, or in `default` for a cluster-scoped object. Returns
    /// whether the API server has stored it; a failure is logged.
    pub async fn publish(
        &self,
        regarding: &ObjectReference,
        kind: Kind,
        reason: &str,
        message: &str,
    ) -> bool {
        let key = Key {
            object: (
                regarding.kind.clone().unwrap_or_default(),
                regarding.namespace.clone().unwrap_or_default(),
                regarding.name.clone().unwrap_or_default(),
                regarding.uid.clone().unwrap_or_default(),
            ),
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let decision = self.decide(&key, Instant::now());
        let sent = match decision {
            Decision::Drop => {
                tracing::debug!(
                    reason,
                    message,
                    "too many events about this object, event dropped"
                );
                return false;
            }
            Decision::Count { name, count } => match self.count(regarding, &name, count).await {
                // The API server deletes events after an hour: create a new one.
                Err(Failure::Gone) => self.create(&key, regarding).await,
                other => other,
            },
            Decision::Create => self.create(&key, regarding).await,
        };
        if let Err(Failure::Unclear(error) | Failure::Refused(error)) = &sent {
            tracing::warn!(reason, message, error, "cannot publish the event");
        }
        sent.is_ok()
    }

    fn decide(&self, key: &Key, now: Instant) -> Decision {
        let mut memory = lock(&self.memory);
        if self.is_limited && !memory.has_budget(key, now) {
            return Decision::Drop;
        }
        memory.decide(key, now)
    }

    async fn create(&self, key: &Key, regarding: &ObjectReference) -> Result<(), Failure> {
        let now = Timestamp::now();
        let name = event_name(&key.object.2, now);
        let event = event(key, regarding, &name, now, &self.component, &self.host);
        let requests = requests(regarding)?;
        let create = || requests.create(&params::PostParams::default(), event.to_string().into_bytes());
        let mut sent = self.send(create()).await;
        for _ in 1..ATTEMPTS {
            if !matches!(sent, Err(Failure::Unclear(_))) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            sent = match self.send(create()).await {
                // An earlier attempt stored it.
                Err(Failure::Exists) => Ok(()),
                other => other,
            };
        }
        sent?;
        lock(&self.memory).remember(key.clone(), name, Instant::now());
        Ok(())
    }

    async fn count(&self, regarding: &ObjectReference, name: &str, count: u32) -> Result<(), Failure> {
        let patch = json!({"count": count, "lastTimestamp": seconds(Timestamp::now())});
        let patch = params::Patch::Merge(&patch);
        self.send(requests(regarding)?.patch(name, &params::PatchParams::default(), &patch))
            .await
    }

    async fn send(
        &self,
        request: Result<axum::http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(), Failure> {
        let request = request.map_err(|error| Failure::Refused(error.to_string()))?;
        let Ok(answer) = tokio::time::timeout(TIMEOUT, self.client.request::<Value>(request)).await else {
            return Err(Failure::Unclear("no answer from the API server".to_owned()));
        };
        let Err(error) = answer else { return Ok(()) };
        let text = client::message(&error);
        Err(match error {
            kube::Error::Api(status) => match status.code {
                404 => Failure::Gone,
                409 => Failure::Exists,
                429 | 500.. => Failure::Unclear(text),
                _ => Failure::Refused(text),
            },
            _ => Failure::Unclear(text),
        })
    }
}

enum Failure {
    /// The event or its namespace does not exist.
    Gone,
    /// The event exists.
    Exists,
    /// The event may have been stored, and another attempt may store it.
    Unclear(String),
    /// Another attempt would fail as well.
    Refused(String),
}

/// The namespace of events about an object.
fn namespace(regarding: &ObjectReference) -> &str {
    regarding
        .namespace
        .as_deref()
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or("default")
}

fn requests(regarding: &ObjectReference) -> Result<Request, Failure> {
    let namespace =
        path::segment(namespace(regarding)).map_err(|error| Failure::Refused(error.to_string()))?;
    Ok(Request::new(format!("/api/v1/namespaces/{namespace}/events")))
}

/// Unique by time, with a bounded length.
fn event_name(object: &str, now: Timestamp) -> String {
    let prefix: String = object.chars().take(200).collect();
    format!("{prefix}.{:x}", now.as_nanosecond())
}

fn event(
    key: &Key,
    regarding: &ObjectReference,
    name: &str,
    now: Timestamp,
    component: &str,
    host: &str,
) -> Value {
    let mut source = json!({"component": component});
    if !host.is_empty() {
        source["host"] = json!(host);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace(regarding)},
        "involvedObject": regarding,
        "type": key.kind.to_string(),
        "reason": key.reason,
        "message": bounded(&key.message),
        "source": source,
        "reportingComponent": component,
        "reportingInstance": host,
        "firstTimestamp": seconds(now),
        "lastTimestamp": seconds(now),
        "count": 1,
    })
}

/// The API server refuses messages of more than 1024 bytes.
fn bounded(message: &str) -> &str {
    const LIMIT: usize = 1024;
    let mut end = message.len().min(LIMIT);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Kind, namespace, name and uid.
    object: (String, String, String, String),
    kind: Kind,
    reason: String,
    message: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Create,
    Count { name: String, count: u32 },
    Drop,
}

/// Recently published events.
#[derive(Debug, Default)]
struct Memory {
    events: HashMap<Key, Published>,
    budgets: HashMap<(String, String, String, String), Budget>,
}

#[derive(Debug)]
struct Published {
    name: String,
    count: u32,
    last: Instant,
}

#[derive(Debug)]
struct Budget {
    left: f64,
    at: Instant,
}

impl Memory {
    /// Spends a part of the object's budget. Returns false if nothing is left.
    fn has_budget(&mut self, key: &Key, now: Instant) -> bool {
        if self.budgets.len() >= REMEMBERED && !self.budgets.contains_key(&key.object) {
            let oldest = self
                .budgets
                .iter()
                .min_by_key(|(_, budget)| budget.at)
                .map(|(object, _)| object.clone());
            if let Some(oldest) = oldest {
                self.budgets.remove(&oldest);
            }
        }
        let budget = self
            .budgets
            .entry(key.object.clone())
            .or_insert(Budget { left: BURST, at: now });
        budget.left = budget.now(now);
        budget.at = now;
        let is_left = budget.left >= 1.0;
        if is_left {
            budget.left -= 1.0;
        }
        is_left
    }

    /// Decides how to publish an event that happens now.
    fn decide(&mut self, key: &Key, now: Instant) -> Decision {
        match self.events.get_mut(key) {
            Some(published) => {
                published.count = published.count.saturating_add(1);
                published.last = now;
                Decision::Count {
                    name: published.name.clone(),
                    count: published.count,
                }
            }
            None => Decision::Create,
        }
    }

    fn remember(&mut self, key: Key, name: String, now: Instant) {
        if self.events.len() >= REMEMBERED {
            let oldest = self
                .events
                .iter()
                .min_by_key(|(_, published)| published.last)
                .map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.events.remove(&oldest);
            }
        }
        self.events.insert(
            key,
            Published {
                name,
                count: 1,
                last: now,
            },
        );
    }
}

impl Budget {
    fn now(&self, now: Instant) -> f64 {
        let earned = now.duration_since(self.at).as_secs_f64() / EARN.as_secs_f64();
        (self.left + earned).min(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use std::convert::Infallible;

    fn key(message: &str) -> Key {
        let object = (
            "K".to_owned(),
            String::new(),
            "cluster".to_owned(),
            "u".to_owned(),
        );
        Key {
            object,
            kind: Kind::Warning,
            reason: "R".to_owned(),
            message: message.to_owned(),
        }
    }

    fn recorder() -> Recorder {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let client = Client::try_from(kube::Config::new(url)).expect("a client");
        Recorder::new(client, "test")
    }

    #[tokio::test(start_paused = true)]
    async fn decide_counts_identical_events() {
        let mut memory = Memory::default();
        assert_eq!(memory.decide(&key("a"), Instant::now()), Decision::Create);
        memory.remember(key("a"), "cluster.1".to_owned(), Instant::now());
        assert_eq!(memory.decide(&key("b"), Instant::now()), Decision::Create);
        for count in [2, 3] {
            let name = "cluster.1".to_owned();
            assert_eq!(
                memory.decide(&key("a"), Instant::now()),
                Decision::Count { name, count }
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_an_object_are_limited_unless_the_caller_limits_them() {
        let recorder = recorder();
        let is_dropped = |recorder: &Recorder| recorder.decide(&key("a"), Instant::now()) == Decision::Drop;
        for _ in 0..25 {
            assert!(!is_dropped(&recorder));
        }
        assert!(is_dropped(&recorder));
        tokio::time::advance(EARN).await;
        assert!(!is_dropped(&recorder));
        assert!(is_dropped(&recorder));
        let unlimited = recorder.without_limit();
        for _ in 0..600 {
            assert!(!is_dropped(&unlimited));
        }
    }

    /// A recorder whose API server stores the event, but answers with these statuses, and then that the event exists.
    /// Returns also the names in the requests.
    fn answering(codes: &[u16]) -> (Recorder, Arc<Mutex<Vec<Value>>>) {
        let names = Arc::<Mutex<Vec<Value>>>::default();
        let (stored, codes) = (Arc::clone(&names), codes.to_vec());
        let service = tower::service_fn(move |request: axum::http::Request<Body>| {
            let (stored, codes) = (Arc::clone(&stored), codes.clone());
            async move {
                let body = request.into_body().collect_bytes().await.expect("a body");
                let event: Value = serde_json::from_slice(&body).expect("an event");
                let name = event["metadata"]["name"].clone();
                let mut stored = lock(&stored);
                let code = codes.get(stored.len()).copied().unwrap_or(409);
                stored.push(name);
                let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": "", "message": ""});
                let body = Body::from(answer.to_string().into_bytes());
                let answer = axum::http::Response::builder().status(code).body(body);
                Ok::<_, Infallible>(answer.expect("an answer"))
            }
        });
        (Recorder::new(Client::new(service, "default"), "test"), names)
    }

    #[tokio::test(start_paused = true)]
    async fn event_without_a_clear_answer_is_created_once() {
        let regarding = ObjectReference::default();
        for (codes, expected, attempts) in [
            (vec![500], true, 2),
            (vec![503, 429], true, 3),
            (vec![500, 500, 500], false, 3),
            (vec![403], false, 1),
        ] {
            let (recorder, names) = answering(&codes);
            let is_stored = recorder.publish(&regarding, Kind::Warning, "R", "text").await;
            let names = lock(&names).clone();
            assert_eq!((is_stored, names.len()), (expected, attempts), "{codes:?}");
            assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_events_are_bounded() {
        let mut memory = Memory::default();
        for index in 0..2 * REMEMBERED {
            let mut about = key("text");
            about.object.2 = index.to_string();
            memory.has_budget(&about, Instant::now());
            memory.remember(key(&index.to_string()), String::new(), Instant::now());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(
            (memory.events.len(), memory.budgets.len()),
            (REMEMBERED, REMEMBERED)
        );
        assert!(
            memory
                .events
                .contains_key(&key(&(2 * REMEMBERED - 1).to_string()))
        );
    }

    #[test]
    fn event_about_cluster_scoped_object_is_in_default_namespace() {
        let regarding = ObjectReference {
            kind: Some("NetworkAddonsConfig".to_owned()),
            name: Some("cluster".to_owned()),
            ..ObjectReference::default()
        };
        let event = event(
            &key("text"),
            &regarding,
            "cluster.1",
            Timestamp::UNIX_EPOCH,
            "cluster",
            "",
        );
        assert_eq!(
            event["metadata"],
            json!({"name": "cluster.1", "namespace": "default"})
        );
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["source"], json!({"component": "cluster"}));
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn long_message_is_cut_between_characters() {
        let message = "ä".repeat(1000);
        assert_eq!(bounded(&message).len(), 1024);
        let message = format!("a{message}");
        assert_eq!(bounded(&message).len(), 1023);
    }
}
