//! Admission reviews: what is asked, and what is answered (kubemacpool §12).
//!
//! ```text
//! POST, JSON, at most 7 MiB ──> review::read ──> Request ──> handler ──> Verdict ──> review::answer
//!             │                      │                          │
//!             └── can't be read ─────┴──────── 400, 413 ─ panics: 500 ──> denied
//! ```
//!
//! A large review is read on a thread for blocking work, and its handler begins there: parsing it takes tens of
//! milliseconds, in which the daemon's only other thread answers small reviews.
//!
//! Whoever asks gets an `AdmissionReview` of the version that was asked in, with status 200 and the UID of the request as
//! far as it can be read, whatever goes wrong: what a user reads in the end is then a text of ours.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request as HttpRequest;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures::future::{self, BoxFuture};
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

use self::review::{Asked, Unreadable};

mod messages;
mod review;

/// The largest review that is read, in bytes: more than twice what an API server takes as a request.
pub const LIMIT: usize = 7 * 1024 * 1024;

/// How long a client may take to send a review, and to wait until there is room for it: an API server waits no longer for
/// the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many bytes of reviews are read at a time at each path. One client uses half of them at most.
const ROOM: usize = 32 * 1024 * 1024;

/// Room is given in pieces of so many bytes.
const PIECE: usize = 64 * 1024;

/// Parsing a review of so many bytes takes about a millisecond. Larger ones are parsed aside, one at a time.
const LARGE: usize = 256 * 1024;

/// What is to be done with the object.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// A subresource is connected to.
    Connect,
}

/// What the API server asks.
#[derive(Clone, Debug)]
pub struct Request {
    /// Address of the client that asks.
    pub client: IpAddr,
    /// UID of the request.
    pub uid: String,
    /// What is to be done.
    pub operation: Operation,
    /// Namespace of the object; empty where it has none.
    pub namespace: String,
    /// Name of the object; empty where it is yet to be generated.
    pub name: String,
    /// Whether nothing is stored in the end.
    pub dry_run: bool,
    /// The object as it is to be.
    pub object: Option<Box<RawValue>>,
    /// The object as it is stored.
    pub old_object: Option<Box<RawValue>>,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// What is refused, if it is.
    pub denied: Option<Denial>,
    /// What is said about an admitted request (`status.message`).
    pub message: Option<String>,
    /// What the user is told beside.
    pub warnings: Vec<String>,
    /// How the object is changed, in this order.
    pub patch: Vec<Change>,
}

/// Why a request is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Denial {
    /// HTTP code of the status: 400 what can't be understood, 500 what can't be done.
    pub code: u16,
    /// What the user reads.
    pub message: String,
}

/// One step of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Change {
    /// Puts a value at a path, whether there is one or not.
    Add {
        /// JSON pointer.
        path: String,
        /// The value.
        value: Value,
    },
    /// Replaces the value at a path, which must be there.
    Replace {
        /// JSON pointer.
        path: String,
        /// The value.
        value: Value,
    },
}

impl Verdict {
    /// Let it through as it is.
    pub fn allowed() -> Self {
        Self::default()
    }

    /// Let it through, changed.
    pub fn patched(patch: Vec<Change>) -> Self {
        Self {
            patch,
            ..Self::default()
        }
    }

    /// Refuse it.
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

/// Answers reviews that are posted to `path` by what `handler` decides. A handler that panics refuses its request, and
/// nothing else happens ([`contained`]).
pub fn router<F>(path: &str, handler: impl Fn(Request) -> F + Clone + Send + Sync + 'static) -> Router
where
    F: Future<Output = Verdict> + Send + 'static,
{
    let desk = Desk::new();
    let answer = move |request: HttpRequest| {
        let (handler, desk) = (handler.clone(), desk.clone());
        async move { respond(request, &desk, handler).await }
    };
    Router::new().route(path, post(answer))
}

/// Room for reviews, in pieces, shared fairly among clients.
type Room = Places<IpAddr>;

/// What the reviews of a path share.
#[derive(Clone)]
struct Desk {
    room: Room,
    /// The right to parse a large review.
    turn: Arc<Semaphore>,
}

impl Desk {
    fn new() -> Self {
        Self {
            room: Room::new(ROOM / PIECE),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Does `work` on a thread for blocking work when it is its turn. Work that has begun ends even without its caller, and
    /// keeps what it owns until then.
    async fn aside<T: Send + 'static>(
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
                tracing::error!(error = chain(&error), "cannot read an admission review");
                Err(Denial::of(500, messages::PANICKED))
            }
            Err(_) => {
                // It has no effect on work that has begun.
                working.abort();
                Err(Denial::of(400, messages::TOO_SLOW))
            }
        }
    }
}

/// A decision on its way.
type Deciding = BoxFuture<'static, Result<Verdict, Panicked>>;

async fn respond<H, F>(http: HttpRequest, desk: &Desk, handler: H) -> Response
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let (asked, verdict) = match judge(http, desk, handler).await {
        Ok(decided) => decided,
        Err(Unreadable { asked, denial }) => (asked, Verdict::refused(denial)),
    };
    match asked.answer(&verdict) {
        Ok(json) => ([(header::CONTENT_TYPE, messages::JSON)], json).into_response(),
        Err(error) => {
            tracing::error!(
                error = chain(&error),
                "cannot write the answer of an admission review"
            );
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Reads a review, and has the handler decide.
async fn judge<H, F>(http: HttpRequest, desk: &Desk, handler: H) -> Result<(Asked, Verdict), Unreadable>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let content_type = http.headers().get(header::CONTENT_TYPE).cloned();
    let client = Peer::of(http.extensions());
    let deadline = Instant::now() + PATIENCE;
    let arrived = async {
        let body = http.into_body();
        let taken = desk.room.take_many(&client, pieces(&body)).await;
        read(body).await.map(|body| (body, taken))
    };
    let arrived = timeout_at(deadline, arrived).await;
    let (body, taken) = arrived.unwrap_or_else(|_| Err(Denial::of(400, messages::TOO_SLOW)))?;
    checked(content_type.as_ref().map_or(&[][..], |value| value.as_bytes()))?;
    // The room is given back when the review is decided: until then, parts of it are kept.
    let (begun, _taken) = if body.len() > LARGE {
        let work = move || (begin_at_once(body, client, handler), taken);
        desk.aside(deadline, work).await?
    } else {
        (begin(body, client, handler), taken)
    };
    let (asked, deciding) = begun?;
    let verdict = deciding.await.unwrap_or_else(|panicked| {
        tracing::error!(error = %panicked, uid = asked.uid(), "admission review");
        Verdict::denied(500, messages::PANICKED)
    });
    Ok((asked, verdict))
}

/// Reads a review, and hands it to the handler, which begins when it is waited for.
fn begin<H, F>(body: Vec<u8>, client: IpAddr, handler: H) -> Result<(Asked, Deciding), Unreadable>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let (asked, request) = review::read(&body, client)?;
    // What was read of it is all that is needed.
    drop(body);
    let deciding = contained(async move { handler(request).await }).boxed();
    Ok((asked, deciding))
}

/// [`begin`], and has the handler go on to where it first waits for something: it parses the object before.
fn begin_at_once<H, F>(body: Vec<u8>, client: IpAddr, handler: H) -> Result<(Asked, Deciding), Unreadable>
where
    H: Fn(Request) -> F + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    let (asked, mut deciding) = begin(body, client, handler)?;
    // One that waits is polled again by the task of its request.
    match deciding.as_mut().now_or_never() {
        Some(decided) => Ok((asked, future::ready(decided).boxed())),
        None => Ok((asked, deciding)),
    }
}

/// How much room a body needs. A client that does not say how long it is gets room for the longest.
fn pieces(body: &Body) -> usize {
    let length = body.size_hint().exact().map(usize::try_from);
    let length = length.and_then(Result::ok).unwrap_or(LIMIT).min(LIMIT);
    length.div_ceil(PIECE).max(1)
}

/// Reads a body to its end, but keeps no more of it than may be asked.
async fn read(body: Body) -> Result<Vec<u8>, Denial> {
    // What most reviews need at once; what a client says of its length is not believed beyond that.
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or_default();
    let mut whole = Vec::with_capacity(expected.min(PIECE));
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
        // A client that is not heard to its end may not hear the answer; one that has no end is not heard.
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
    // What follows, such as the character set, changes nothing: JSON has but one.
    let media_type = text.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case(messages::JSON) {
        Ok(())
    } else {
        Err(Denial::of(400, messages::content_type(&text)))
    }
}

#[cfg(test)]
mod tests;
