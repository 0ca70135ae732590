//! The HTTP API on the unix socket (multus.md §7.2).
//!
//! | path | 200 | other |
//! |---|---|---|
//! | `POST /cni`, `POST /delegate` | ADD `{"Result":{…}}`, else empty | 400 with the error; 503 for all but DEL while not ready |
//! | `GET`, `POST /healthz` | always | |
//! | `GET`, `POST /readyz` | while ADD is served | 500 while starting, while the API server refuses the daemon, and after SIGTERM |

pub(crate) mod socket;

use crate::cluster::ClusterView;
use crate::daemon::{Caller, Daemon};
use crate::metrics::Metrics;
use crate::request::{self, Request};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use kube_kit::process::contained;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

const CNI: &str = "/cni";
const DELEGATE: &str = "/delegate";
const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";

/// Size limit of a request, in bytes.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// Phase of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The default network is not ready yet: only DEL is served.
    Starting,
    /// All verbs are served.
    Serving,
    /// The process is terminating: calls in flight are finished, and only DEL is accepted.
    Draining,
}

/// Shared state of the routes.
pub(crate) struct Api<C> {
    daemon: Arc<Daemon<C>>,
    phase: watch::Receiver<Phase>,
    /// Number of calls in flight.
    in_flight: watch::Sender<usize>,
    metrics: Metrics,
}

impl<C> Api<C> {
    /// An API for the daemon. `phase` is read at each request.
    pub(crate) fn new(daemon: Arc<Daemon<C>>, phase: watch::Receiver<Phase>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            daemon,
            phase,
            in_flight: watch::Sender::new(0),
            metrics,
        })
    }

    /// Waits until no call is in flight.
    pub(crate) async fn idle(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.in_flight.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl<C: ClusterView + 'static> Api<C> {
    /// Whether all verbs are served.
    fn is_ready(&self) -> bool {
        *self.phase.borrow() == Phase::Serving && !self.daemon.is_refused()
    }
}

/// A call in flight.
struct InFlight(watch::Sender<usize>);

impl InFlight {
    fn begin(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

pub(crate) fn router<C: ClusterView + 'static>(api: Arc<Api<C>>) -> Router {
    Router::new()
        .route(CNI, post(cni::<C>).fallback(method_not_allowed))
        .route(DELEGATE, post(delegate::<C>).fallback(method_not_allowed))
        .route(HEALTHZ, any(healthz))
        .route(READYZ, any(readyz::<C>))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), finish::<C>))
        .with_state(api)
}

async fn cni<C: ClusterView + 'static>(State(api): State<Arc<Api<C>>>, body: Bytes) -> Response {
    let request = Request::decode(&body);
    drop(body);
    answer(&api, CNI, request).await
}

async fn delegate<C: ClusterView + 'static>(State(api): State<Arc<Api<C>>>, body: Bytes) -> Response {
    let request = Request::decode_network(&body);
    drop(body);
    answer(&api, DELEGATE, request).await
}

async fn answer<C: ClusterView + 'static>(
    api: &Api<C>,
    handler: &'static str,
    request: Result<Request, request::Error>,
) -> Response {
    let request = match request {
        Ok(request) => request,
        Err(error) => return refusal(&error),
    };
    let is_del = request.is_del();
    if !is_del && !api.is_ready() {
        return unavailable("the multus daemon is not ready");
    }
    let in_flight = InFlight::begin(&api.in_flight);
    let call = api.metrics.call(handler, request.verb());
    let daemon = Arc::clone(&api.daemon);
    // A separate task: if the shim is killed, the connection closes and this future is dropped, but the call must
    // finish before it can be rolled back.
    let (answer, answered) = oneshot::channel();
    let (caller, _waits): (Caller, _) = watch::channel(());
    tokio::spawn(async move {
        let handled = contained(Box::pin(daemon.handle(request, &caller))).await;
        let outcome = handled.unwrap_or_else(|panicked| {
            tracing::error!(error = %panicked, "call ended by a panic");
            Err(cni::Error::internal(format!("Multus: the call {panicked}")))
        });
        call.end(outcome.is_ok());
        drop(in_flight);
        // The receiver may be gone.
        let _ = answer.send(outcome);
    });
    match answered.await {
        Ok(Ok(None)) => StatusCode::OK.into_response(),
        Ok(Ok(Some(result))) => json(StatusCode::OK, format!(r#"{{"Result":{result}}}"#)),
        // The call was rolled back, and the shim repeats it.
        Ok(Err(error)) if handler == CNI && !is_del && api.daemon.is_refused() => {
            unavailable(&format!("the API server refuses the multus daemon: {error}"))
        }
        Ok(Err(error)) => failure(&error),
        Err(_) => failure(&cni::Error::internal("Multus: the call ended unexpectedly")),
    }
}

/// The answer to a caller that will wait for this daemon or the next one.
fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

fn failure(error: &cni::Error) -> Response {
    json(
        StatusCode::BAD_REQUEST,
        serde_json::to_string(error).unwrap_or_default(),
    )
}

fn refusal(error: &request::Error) -> Response {
    tracing::error!(%error, "invalid request");
    (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
}

fn json(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn method_not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed\n").into_response()
}

async fn healthz(method: axum::http::Method) -> Response {
    if is_probe(&method) {
        StatusCode::OK.into_response()
    } else {
        method_not_allowed().await
    }
}

async fn readyz<C: ClusterView + 'static>(
    State(api): State<Arc<Api<C>>>,
    method: axum::http::Method,
) -> Response {
    if !is_probe(&method) {
        return method_not_allowed().await;
    }
    if api.is_ready() {
        StatusCode::OK.into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

fn is_probe(method: &axum::http::Method) -> bool {
    method == axum::http::Method::GET || method == axum::http::Method::POST
}

/// Counts the answer and closes the connection: a shim sends one request, and open connections would delay the end of
/// the process.
async fn finish<C: ClusterView + 'static>(
    State(api): State<Arc<Api<C>>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let method = request.method().as_str().to_ascii_lowercase();
    let path = request.uri().path();
    let handler = [CNI, DELEGATE, HEALTHZ, READYZ]
        .into_iter()
        .find(|handler| *handler == path)
        .unwrap_or("NotFound");
    let answered = contained(next.run(request)).await;
    let mut response = answered.unwrap_or_else(|panicked| {
        tracing::error!(error = %panicked, "request handler ended by a panic");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    });
    api.metrics.count(handler, response.status().as_u16(), method);
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
