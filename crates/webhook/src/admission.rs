//! Admission reviews: requests and responses (kubemacpool §12).
//!
//! ```text
//! POST, JSON, at most 7 MiB ──> review::read ──> Request ──> handler ──> Verdict ──> review::answer
//!             │                      │                          │
//!             └── malformed ─────────┴──────── 400, 413 ─ panics: 500 ──> denied
//! ```
//!
//! A large review is parsed on a thread for blocking work, its handler starts there, and its response is serialized
//! there: each takes tens of milliseconds, in which the daemon's only other thread answers small reviews.
//!
//! Every response, for errors too, is an `AdmissionReview` of the request's version with status 200 and the request's
//! UID if it can be read: then the user gets our error text instead of the API server's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request as HttpRequest;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube_kit::client::chain;
use kube_kit::places::Places;
use kube_kit::process::{Panicked, contained};
use kube_kit::serve::Peer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use self::review::{Malformed, ReplyTo};

mod messages;
mod review;

/// The largest accepted review, in bytes: more than twice the API server's limit for requests.
pub const LIMIT: usize = 7 * 1024 * 1024;

/// Timeout for waiting for memory and for receiving a review: an API server waits no longer for the response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Limit of the total size of concurrent reviews of a path, in bytes. One client uses at most half of it.
const MEMORY: usize = 32 * 1024 * 1024;

/// Granularity of the memory limit, in bytes.
const CHUNK: usize = 64 * 1024;

/// Parsing a review of this size takes about a millisecond. Larger ones are parsed on a thread for blocking work, one
/// at a time.
const LARGE: usize = 256 * 1024;

/// Operation on the object.
#[allow(missing_docs, reason = "named as in the API")]
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// A request of the API server.
#[allow(missing_docs, reason = "named as in the API")]
#[derive(Clone, Debug)]
pub struct Request {
    pub client: IpAddr,
    pub uid: String,
    pub operation: Operation,
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// Empty if it is yet to be generated.
    pub name: String,
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// The object to store.
    pub object: Option<Box<RawValue>>,
    /// The stored object.
    pub old_object: Option<Box<RawValue>>,
}

/// The response to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// `None` admits the request.
    pub denied: Option<Denial>,
    /// `status.message` of an admitted request.
    pub message: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Changes to the object, in order.
    pub patch: Vec<Change>,
}

/// Denial of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Denial {
    /// HTTP code of the status: 400 for malformed requests, 500 for failures.
    pub code: u16,
    /// Text for the user.
    pub message: String,
}

/// One step of a JSON patch (RFC 6902).
#[allow(missing_docs, reason = "named as in the RFC")]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Change {
    /// Adds or replaces the value at a path.
    Add { path: String, value: Value },
    /// Replaces the value at an existing path.
    Replace { path: String, value: Value },
}

impl Verdict {
    /// Admits the object unchanged.
    pub fn allowed() -> Self {
        Self::default()
    }

    /// Admits the object with changes.
    pub fn patched(patch: Vec<Change>) -> Self {
        Self {
            patch,
            ..Self::default()
        }
    }

    /// Denies the request.
    pub fn denied(code: u16, message: impl Into<String>) -> Self {
        Self::refused(Denial::of(code, message))
    }

    fn refused(denial: Denial) -> Self {
        Self {
            denied: Some(denial),
            ..Self::default()
        }
    }
}

impl Denial {
    fn of(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Serves reviews at `path`; `handler` decides. A panic of the handler denies its request only ([`contained`]).
pub fn router<F>(path: &str, handler: impl Fn(Request) -> F + Clone + Send + Sync + 'static) -> Router
where
    F: Future<Output = Verdict> + Send + 'static,
{
    let limits = Limits::new();
    let answer = move |request: HttpRequest| {
        let (handler, limits) = (handler.clone(), limits.clone());
        async move { respond(request, &limits, handler).await }
    };
    Router::new().route(path, post(answer))
}

/// Memory for reviews, shared fairly among clients.
type Memory = Places<IpAddr>;

/// Limits that the reviews of a path share.
#[derive(Clone)]
struct Limits {
    memory: Memory,
    /// Permit to parse a large review, or to serialize its response.
    turn: Arc<Semaphore>,
}

impl Limits {
    fn new() -> Self {
        Self {
            memory: Memory::new(MEMORY / CHUNK),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs `work` on a thread for blocking work, one at a time. Started work completes even if the caller is dropped.
    async fn on_blocking_thread<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Denial> {
        let turn = Arc::clone(&self.turn).acquire_owned();
        let Ok(Ok(turn)) = timeout_at(deadline, turn).await else {
            return Err(Denial::of(400, messages::TOO_SLOW));
        };
        let mut working = spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        match timeout_at(deadline, &mut working).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                tracing::error!(error = chain(&error), "cannot process a large admission review");
                Err(Denial::of(500, messages::PANICKED))
            }
            Err(_) => {
                // Cancels only work that has not started.
                working.abort();
                Err(Denial::of(400, messages::TOO_SLOW))
            }
        }
    }
}

/// A running handler.
type Running = BoxFuture<'static, Result<Verdict, Panicked>>;

/// A response as JSON.
type Answer = Result<Vec<u8>, serde_json::Error>;

async fn respond<H, F>(http: HttpRequest, limits: &Limits, handler: H) -> Response
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let answer = match answered(http, limits, handler).await {
        Ok(answer) => answer,
        Err(Malformed { reply_to, denial }) => reply_to.answer(&Verdict::refused(denial)),
    };
    match answer {
        Ok(json) => ([(header::CONTENT_TYPE, messages::JSON)], json).into_response(),
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot serialize an admission response");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Reads a review, calls the handler, and serializes the response.
async fn answered<H, F>(http: HttpRequest, limits: &Limits, handler: H) -> Result<Answer, Malformed>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let content_type = http.headers().get(header::CONTENT_TYPE).cloned();
    let client = Peer::of(http.extensions());
    let deadline = Instant::now() + TIMEOUT;
    let arrived = async {
        let body = http.into_body();
        let taken = limits.memory.take_many(&client, chunks_of(&body)).await;
        read(body).await.map(|body| (body, taken))
    };
    let arrived = timeout_at(deadline, arrived).await;
    let (body, taken) = arrived.unwrap_or_else(|_| Err(Denial::of(400, messages::TOO_SLOW)))?;
    checked(content_type.as_ref().map_or(&[][..], |value| value.as_bytes()))?;
    if body.len() <= LARGE {
        let (reply_to, running) = begin(body, client, handler)?;
        let verdict = verdict_of(&reply_to, running.await);
        return Ok(reply_to.answer(&verdict));
    }
    // The memory is released after the response is serialized: it may contain parts of the review.
    let work = move || (begin_at_once(body, client, handler), taken);
    let (begun, taken) = limits.on_blocking_thread(deadline, work).await?;
    let (reply_to, running) = match begun? {
        Begun::Answered(answer) => return Ok(answer),
        Begun::Running(reply_to, running) => (reply_to, running),
    };
    let verdict = verdict_of(&reply_to, running.await);
    let late = reply_to.clone();
    let work = move || {
        let answer = reply_to.answer(&verdict);
        drop((verdict, taken));
        answer
    };
    let answer = limits.on_blocking_thread(deadline, work).await;
    answer.map_err(|denial| Malformed {
        reply_to: late,
        denial,
    })
}

fn verdict_of(reply_to: &ReplyTo, decided: Result<Verdict, Panicked>) -> Verdict {
    decided.unwrap_or_else(|panicked| {
        tracing::error!(error = %panicked, uid = reply_to.uid(), "admission webhook panicked");
        Verdict::denied(500, messages::PANICKED)
    })
}

/// Reads a review and creates the handler's future.
fn begin<H, F>(body: Vec<u8>, client: IpAddr, handler: H) -> Result<(ReplyTo, Running), Malformed>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let (reply_to, request) = review::read(&body, client)?;
    drop(body);
    let running = contained(async move { handler(request).await }).boxed();
    Ok((reply_to, running))
}

/// A large review whose handler was polled once.
enum Begun {
    Answered(Answer),
    /// A pending handler is polled again by the task of its request.
    Running(ReplyTo, Running),
}

/// [`begin`], then polls the handler once: it parses the object before it first waits. Serializes its decision.
fn begin_at_once<H, F>(body: Vec<u8>, client: IpAddr, handler: H) -> Result<Begun, Malformed>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let (reply_to, mut running) = begin(body, client, handler)?;
    Ok(match running.as_mut().now_or_never() {
        Some(decided) => Begun::Answered(reply_to.answer(&verdict_of(&reply_to, decided))),
        None => Begun::Running(reply_to, running),
    })
}

/// Memory that a body needs; the maximum if the client does not declare a length.
fn chunks_of(body: &Body) -> usize {
    let length = body.size_hint().exact().map(usize::try_from);
    let length = length.and_then(Result::ok).unwrap_or(LIMIT).min(LIMIT);
    length.div_ceil(CHUNK).max(1)
}

/// Reads a body to its end, but stores at most [`LIMIT`] bytes.
async fn read(body: Body) -> Result<Vec<u8>, Denial> {
    // Enough for most reviews; a declared length is not trusted beyond that.
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or_default();
    let mut whole = Vec::with_capacity(expected.min(CHUNK));
    let mut length = 0_usize;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Denial::of(400, chain(&error)))?;
        length = length.saturating_add(chunk.len());
        if length <= LIMIT {
            whole.extend_from_slice(&chunk);
        } else {
            whole = Vec::new();
        }
        // Some clients read the response only after sending their whole body; endless bodies are cut off.
        if length > 2 * LIMIT {
            break;
        }
    }
    match length {
        0 => Err(Denial::of(400, messages::EMPTY)),
        1..=LIMIT => Ok(whole),
        _ => Err(Denial::of(413, messages::too_large(LIMIT))),
    }
}

fn checked(content_type: &[u8]) -> Result<(), Denial> {
    let text = String::from_utf8_lossy(content_type);
    // Parameters such as the character set do not matter for JSON.
    let media_type = text.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case(messages::JSON) {
        Ok(())
    } else {
        Err(Denial::of(400, messages::content_type(&text)))
    }
}

#[cfg(test)]
mod tests;
