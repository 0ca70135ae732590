//! Admission reviews: what is asked, and what is answered (kubemacpool §12).
//!
//! ```text
//! POST, JSON, at most 7 MiB ──> review::read ──> Request ──> handler ──> Verdict ──> review::answer
//!             │                      │                          │
//!             └── can't be read ─────┴──────── 400, 413 ─ panics: 500 ──> denied
//! ```
//!
//! Whoever asks gets an `AdmissionReview` of the version that was asked in, with status 200 and the UID of the request as
//! far as it can be read, whatever goes wrong: what a user reads in the end is then a text of ours.

use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request as HttpRequest;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures::StreamExt as _;
use kube_kit::client::chain;
use kube_kit::places::Places;
use kube_kit::process::contained;
use kube_kit::serve::Peer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

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
    let room = Room::new(ROOM / PIECE);
    let answer = move |request: HttpRequest| {
        let (handler, room) = (handler.clone(), room.clone());
        async move { respond(request, &room, handler).await }
    };
    Router::new().route(path, post(answer))
}

/// Room for reviews, in pieces, shared fairly among clients.
type Room = Places<IpAddr>;

async fn respond<F: Future<Output = Verdict>>(
    http: HttpRequest,
    room: &Room,
    handler: impl Fn(Request) -> F,
) -> Response {
    let content_type = http.headers().get(header::CONTENT_TYPE).cloned();
    let refused = |denial| review::Asked::default().answer(&Verdict::refused(denial));
    let client = Peer::of(http.extensions());
    let arrived = async {
        let body = http.into_body();
        let taken = room.take_many(&client, pieces(&body)).await;
        read(body).await.map(|body| (body, taken))
    };
    let arrived = tokio::time::timeout(PATIENCE, arrived).await;
    let arrived = arrived.unwrap_or_else(|_| Err(Denial::of(400, messages::TOO_SLOW)));
    let answer = match arrived {
        Err(denial) => refused(denial),
        // The room is given back when the review is answered: until then, parts of it are kept.
        Ok((body, _taken)) => {
            let content_type = content_type.as_ref().map_or(&[][..], |value| value.as_bytes());
            match checked(content_type) {
                Err(denial) => refused(denial),
                Ok(()) => match review::read(&body, client) {
                    Err(unreadable) => unreadable.asked.answer(&Verdict::refused(unreadable.denial)),
                    Ok((asked, request)) => {
                        // What was read of it is all that is needed.
                        drop(body);
                        let decided = contained(async { handler(request).await }).await;
                        let verdict = decided.unwrap_or_else(|panicked| {
                            tracing::error!(error = %panicked, uid = asked.uid(), "admission review");
                            Verdict::denied(500, messages::PANICKED)
                        });
                        asked.answer(&verdict)
                    }
                },
            }
        }
    };
    match answer {
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
