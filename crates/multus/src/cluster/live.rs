//! Live requests to the API server, for objects that no watch has.

use super::refusal::Refusal;
use super::{Access, LookupError, Nad, Pod, REFUSED_TIMEOUT, ReadError, WatchedNad, WatchedPod, WriteError};
use crate::names;
use crate::sandbox::PodRef;
use cni::names::NETWORK_STATUS_ANNOTATION;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_kit::client::message;
use kube_kit::events::{Kind, Recorder};
use kube_kit::object::NETWORK_ATTACHMENT_DEFINITION;
use kube_kit::path;
use kube_kit::pod::{self, PodBody};
use kube_kit::watch::Name;
use linux::backoff::Backoff;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};

/// Timeout of one request, and the limit of its retries: the runtime waits for minutes.
const REQUEST: Duration = Duration::from_secs(5);
const RETRY_LIMIT: Duration = Duration::from_secs(15);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));
/// Attempts of a status write and the delay between them, as upstream.
const WRITE_ATTEMPTS: u32 = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(10);

/// Requests at a time, and events at a time. Each needs a connection, and an open connection takes some 85 KiB: without a
/// bound, a burst of 30 pods opens 80, and the daemon holds 6 MiB for the next minutes.
const REQUESTS: usize = 8;
const EVENTS: usize = 2;
/// The longest wait of an event for its turn. Events are best effort.
const EVENT_TURN: Duration = Duration::from_secs(10);

/// Idle time after which a status write would have to wait: this process may have returned the memory that a request
/// needs, and the API server closes connections after 90 s.
const REST: Duration = Duration::from_secs(10);
/// The path of a small answer. Any answer leaves an open connection, also a refusal.
const VERSION: &str = "/version";

/// A status write failed.
enum NotWritten {
    /// The pod changed since it was read.
    Conflict(String),
    Other(String),
}

/// The API server, without a cache.
pub(crate) struct Live {
    client: Client,
    node: Option<String>,
    recorder: Recorder,
    requests: Semaphore,
    events: Arc<Semaphore>,
    /// The time of the latest answer, or of a request that opens a connection.
    used: Mutex<Instant>,
    pub(super) refusal: Refusal,
}

impl Live {
    /// Requests by this client; events name the node.
    pub(crate) fn new(client: Client, node: Option<&str>) -> Self {
        let recorder = Recorder::on_host(client.clone(), names::COMPONENT, node.unwrap_or_default());
        Self {
            client,
            node: node.map(str::to_owned),
            recorder,
            requests: Semaphore::new(REQUESTS),
            events: Arc::new(Semaphore::new(EVENTS)),
            used: Mutex::new(Instant::now()),
            refusal: Refusal::default(),
        }
    }

    /// Sends a request in its turn, with a timeout for both, and notes a refusal (401).
    async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, kube::Error>, Elapsed> {
        let in_turn = async {
            let _turn = self.requests.acquire().await;
            request.await
        };
        let answer = timeout(REQUEST, in_turn).await;
        if let Ok(answer) = &answer {
            self.refusal.note(answer);
            *kube_kit::lock(&self.used) = Instant::now();
        }
        answer
    }

    /// A small request that opens a connection again after a [rest](REST), so that a status write finds it. Each rest has
    /// one.
    pub(super) fn warm_up(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut used = kube_kit::lock(&self.used);
        if used.elapsed() <= REST {
            return None;
        }
        *used = Instant::now();
        let client = self.client.clone();
        Some(async move {
            if let Err(error) = timeout(REQUEST, pod::get(&client, VERSION)).await {
                tracing::debug!(%error, "no answer that would open a connection for a status write");
            }
        })
    }

    /// Whether the API server still lets us in.
    pub(super) async fn access(&self, limit: Duration) -> Access {
        let node = self.node.as_deref();
        let fields = node
            .map(|node| format!("&fieldSelector={}", path::query(&format!("spec.nodeName={node}"))))
            .unwrap_or_default();
        let path = format!("/api/v1/pods?limit=1{fields}");
        match timeout(limit, pod::get(&self.client, &path)).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Access::Forbidden,
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => Access::Unknown,
            _ => Access::Kept,
        }
    }

    /// Raises the refusal after a 403 to a request that each attachment needs, if all rights are gone. The 403 alone does
    /// not prove that: a namespace may be closed to the daemon, or an admission webhook may deny one pod's status.
    async fn note_forbidden(&self) {
        if !self.refusal.is_raised() && self.access(REFUSED_TIMEOUT).await == Access::Forbidden {
            self.refusal.raise();
        }
    }

    /// The text of a pod or a NAD.
    async fn read_needed(&self, path: &str) -> Result<String, ReadError> {
        let text = self.read(path).await;
        if let Err(ReadError::Forbidden(_)) = text {
            self.note_forbidden().await;
        }
        text
    }

    async fn body(&self, namespace: &str, name: &str) -> Result<Option<PodBody>, LookupError> {
        let path = pod::path(&Name::new(namespace, name))?;
        match self.answer(pod::get(&self.client, &path)).await {
            Ok(Ok(text)) => PodBody::parse(&text)
                .map(Some)
                .map_err(|error| LookupError(error.to_string())),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => {
                if is_forbidden(&error) {
                    self.note_forbidden().await;
                }
                Err(LookupError(message(&error)))
            }
            Err(_) => Err(LookupError("no answer from the API server".into())),
        }
    }

    /// Reads the pod. Retries transient errors.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, LookupError> {
        let path = pod::path(&Name::new(namespace, name))?;
        let text = match self.read_needed(&path).await {
            Ok(text) => text,
            Err(ReadError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let pod: WatchedPod = serde_json::from_str(&text).map_err(|error| LookupError(error.to_string()))?;
        Ok(Some(pod.into()))
    }

    /// Reads the NAD; a missing one is an error.
    pub(crate) async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        let path = NETWORK_ATTACHMENT_DEFINITION.path_of(&Name::new(namespace, name))?;
        let text = self.read_needed(&path).await?;
        let nad: WatchedNad = serde_json::from_str(&text).map_err(|error| LookupError(error.to_string()))?;
        Ok(nad.into())
    }

    /// Reads an object or list by its path and returns the API server's text. Retries transient errors.
    pub(crate) async fn read(&self, path: &str) -> Result<String, ReadError> {
        let deadline = Instant::now() + RETRY_LIMIT;
        let mut backoff = BACKOFF;
        loop {
            let failure = match self.answer(pod::get(&self.client, path)).await {
                Ok(Ok(text)) => return Ok(text),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    return Err(ReadError::NotFound(status.message.clone()));
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    return Err(ReadError::Forbidden(status.message.clone()));
                }
                Ok(Err(kube::Error::Api(status))) if !matches!(status.code, 429 | 500 | 503 | 504) => {
                    return Err(ReadError::Other(status.message.clone()));
                }
                Ok(Err(error)) => message(&error),
                Err(_) => "no answer from the API server".into(),
            };
            let pause = backoff.next_delay();
            if Instant::now() + pause >= deadline {
                return Err(ReadError::Other(failure));
            }
            sleep(pause).await;
        }
    }

    async fn put_status(&self, pod: &Pod, body: &PodBody) -> Result<(), NotWritten> {
        let name = Name::new(&*pod.namespace, &*pod.name);
        match self.answer(pod::replace_status(&self.client, &name, body)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                Err(NotWritten::Conflict(status.message.clone()))
            }
            Ok(Err(error)) => {
                if is_forbidden(&error) {
                    self.note_forbidden().await;
                }
                Err(NotWritten::Other(message(&error)))
            }
            Err(_) => Err(NotWritten::Other("no answer from the API server".into())),
        }
    }

    /// Publishes an event about a pod in its turn. Never fails: errors are logged.
    pub(crate) fn event(
        &self,
        pod: &PodRef,
        kind: Kind,
        reason: &'static str,
        text: String,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorder = self.recorder.clone();
        let turn = timeout(EVENT_TURN, Arc::clone(&self.events).acquire_owned());
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: pod.uid.clone(),
            ..ObjectReference::default()
        };
        async move {
            let Ok(_turn) = turn.await else {
                tracing::warn!(
                    reason,
                    text,
                    "too many events wait for the API server, event dropped"
                );
                return;
            };
            // The recorder logs errors.
            let _ = recorder.publish(&regarding, kind, reason, &text).await;
        }
    }

    /// Writes the network status of a pod by an update of `pods/status`, because the role does not allow patches.
    /// Writes nothing when the pod already has this status.
    pub(crate) async fn write_status(&self, pod: &Pod, status: &str) -> Result<(), WriteError> {
        let mut watched = pod.body.clone();
        let mut cause = String::new();
        let mut pause = Duration::ZERO;
        for _ in 0..WRITE_ATTEMPTS {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            pause = WRITE_PAUSE;
            let was_watched = watched.is_some();
            let current = match watched.take() {
                Some(body) => body,
                None => match self.body(&pod.namespace, &pod.name).await {
                    Ok(Some(body)) => Arc::new(body),
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        cause = error.0;
                        continue;
                    }
                },
            };
            if !pod.uid.is_empty() && current.uid() != pod.uid {
                return Err(WriteError::OtherPod {
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    expected: pod.uid.clone(),
                    found: current.uid().to_owned(),
                });
            }
            if current.annotation(NETWORK_STATUS_ANNOTATION) == Some(status) {
                return Ok(());
            }
            match self
                .put_status(pod, &current.with_annotation(NETWORK_STATUS_ANNOTATION, status))
                .await
            {
                Ok(()) => return Ok(()),
                // The watch is stale: kubelet writes the status of a starting pod. The next read is live.
                Err(NotWritten::Conflict(conflict)) if was_watched => {
                    cause = conflict;
                    pause = Duration::ZERO;
                }
                Err(NotWritten::Conflict(failure) | NotWritten::Other(failure)) => cause = failure,
            }
        }
        Err(WriteError::Failed {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            cause,
        })
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{Method, Request, Response};
    use futures::future::join_all;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn pod_at(version: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "status": {},
            "metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": version}})
    }

    fn body_at(version: &str) -> PodBody {
        PodBody::parse(&pod_at(version).to_string()).unwrap()
    }

    /// An API server whose pod is at version 2, and its requests.
    fn server() -> (Live, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = Arc::clone(&log);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let written: Value = serde_json::from_slice(&body).unwrap_or_default();
                let version = written["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default();
                kube_kit::lock(&log).push(format!("{} {version}", parts.method).trim_end().to_owned());
                let (code, answer) = match (parts.method, version) {
                    (Method::PUT, "2") | (Method::GET, _) => (200, pod_at("2")),
                    _ => (
                        409,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "message": "modified", "reason": "Conflict", "code": 409}),
                    ),
                };
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer?)
            }
        });
        let client = Client::new(service, "default");
        (Live::new(client, None), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn stale_watch_costs_one_read_without_delay() {
        // multus#111
        let (live, asked) = server();
        let pod = Pod {
            namespace: "ns".into(),
            name: "p".into(),
            uid: "u".into(),
            body: Some(Arc::new(body_at("1"))),
            ..Pod::default()
        };
        let begun = Instant::now();
        live.write_status(&pod, "[]").await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(*kube_kit::lock(&asked), ["PUT 1", "GET", "PUT 2"]);
    }

    /// An API server that answers after this time, and the number of requests that it has at a time, at most.
    fn busy(time: Duration) -> (Live, Arc<AtomicUsize>) {
        let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let seen = Arc::clone(&most);
        let service = tower::service_fn(move |_: Request<Body>| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&seen));
            async move {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                sleep(time).await;
                now.fetch_sub(1, Relaxed);
                Ok::<_, tower::BoxError>(Response::new(Body::from(pod_at("2").to_string().into_bytes())))
            }
        });
        let client = Client::new(service, "default");
        (Live::new(client, None), most)
    }

    fn events(live: &Live) -> impl Future<Output = Vec<()>> {
        join_all((0..30).map(|number| {
            let pod = PodRef {
                namespace: "ns".into(),
                name: number.to_string(),
                uid: None,
            };
            live.event(&pod, Kind::Normal, "AddedInterface", String::new())
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn burst_has_a_bounded_number_of_requests_at_a_time() {
        // multus#126
        let (live, most) = busy(Duration::from_millis(20));
        let pod = Pod {
            namespace: "ns".into(),
            name: "p".into(),
            body: Some(Arc::new(body_at("2"))),
            ..Pod::default()
        };
        for written in join_all((0..30).map(|_| live.write_status(&pod, "[]"))).await {
            written.unwrap();
        }
        assert_eq!(most.swap(0, Relaxed), REQUESTS);
        events(&live).await;
        assert_eq!(most.load(Relaxed), EVENTS);
    }

    #[tokio::test(start_paused = true)]
    async fn events_do_not_wait_longer_for_a_silent_api_server_than_for_their_turn() {
        // multus#126
        let (live, _) = busy(Duration::from_hours(1));
        let begun = Instant::now();
        events(&live).await;
        // Those whose turn came end with their own attempts.
        let attempts = Duration::from_secs(40);
        assert!(begun.elapsed() < EVENT_TURN + attempts, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn rest_is_followed_by_a_request_that_opens_a_connection() {
        let (live, asked) = server();
        assert!(live.warm_up().is_none(), "the process has just started");
        sleep(REST * 2).await;
        let request = live.warm_up().unwrap();
        assert!(live.warm_up().is_none(), "one request is enough");
        request.await;
        assert_eq!(*kube_kit::lock(&asked), ["GET"]);
        sleep(REST * 2).await;
        live.read("/api/v1/namespaces/ns/pods/p").await.unwrap();
        assert!(live.warm_up().is_none(), "the API server has just answered");
    }

    /// An API server that forbids everything but the lists of pods, whose answer has this code.
    fn forbidding(list: u16) -> Live {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let code = if request.uri().path() == "/api/v1/pods" {
                list
            } else {
                403
            };
            let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "no", "reason": "Forbidden", "code": code});
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer?)
        });
        Live::new(Client::new(service, "default"), Some("node"))
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_of_one_request_is_none_of_the_daemon_unless_it_may_do_nothing() {
        // multus#115
        let pod = Pod {
            namespace: "ns".into(),
            name: "p".into(),
            ..Pod::default()
        };
        for (list, is_refused) in [(200, false), (403, true)] {
            let live = forbidding(list);
            live.read("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a")
                .await
                .unwrap_err();
            assert!(!live.refusal.is_raised(), "a claim is not needed by each pod");
            live.pod("ns", "p").await.unwrap_err();
            assert_eq!(live.refusal.is_raised(), is_refused, "pod, list {list}");
            let live = forbidding(list);
            live.nad("ns", "a").await.unwrap_err();
            assert_eq!(live.refusal.is_raised(), is_refused, "definition, list {list}");
            let live = forbidding(list);
            live.write_status(&pod, "[]").await.unwrap_err();
            assert_eq!(
                live.refusal.is_raised(),
                is_refused,
                "read for a status, list {list}"
            );
            let live = forbidding(list);
            let status = live.put_status(&pod, &body_at("1")).await;
            assert!(status.is_err());
            assert_eq!(live.refusal.is_raised(), is_refused, "status, list {list}");
        }
    }
}
