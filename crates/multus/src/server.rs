//! The HTTP API on the unix socket (multus.md §7.2).
//!
//! | path | 200 | other |
//! |---|---|---|
//! | `POST /cni`, `POST /delegate` | ADD `{"Result":{…}}`, else empty | 400 with the error; 503 for all but DEL while not ready |
//! | `GET`, `POST /healthz` | always | |
//! | `GET`, `POST /readyz` | when ADD is served | 500 before that, while the API server refuses the daemon, and from SIGTERM on |

use crate::cluster::ClusterView;
use crate::daemon::Daemon;
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

/// Longest request that is read, bytes: an environment and a configuration.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// How far the daemon is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The default network is not known to be ready: only DEL is served.
    Starting,
    /// Everything is served.
    Serving,
    /// The process ends: what was begun is finished, only DEL is taken on.
    Draining,
}

/// What the routes share.
pub struct Api<C> {
    daemon: Arc<Daemon<C>>,
    phase: watch::Receiver<Phase>,
    /// How many calls are being worked on.
    in_flight: watch::Sender<usize>,
    metrics: Metrics,
}

impl<C> Api<C> {
    /// An API in front of the daemon. `phase` is read at each request.
    pub fn new(daemon: Arc<Daemon<C>>, phase: watch::Receiver<Phase>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            daemon,
            phase,
            in_flight: watch::Sender::new(0),
            metrics,
        })
    }

    /// Resolves when no call is being worked on.
    pub async fn idle(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let _ = self.in_flight.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl<C: ClusterView + 'static> Api<C> {
    /// Whether more than DEL is served.
    fn is_ready(&self) -> bool {
        *self.phase.borrow() == Phase::Serving && !self.daemon.is_refused()
    }
}

/// A call that is being worked on.
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

/// The routes.
pub fn router<C: ClusterView + 'static>(api: Arc<Api<C>>) -> Router {
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
    // A task of its own: when the shim is killed, which closes the connection and drops this future, the call is finished
    // nevertheless, and then undone. Half an attachment could not be undone.
    let (answer, answered) = oneshot::channel();
    tokio::spawn(async move {
        let handled = contained(Box::pin(daemon.handle(request, || answer.is_closed()))).await;
        let outcome = handled.unwrap_or_else(|panicked| {
            tracing::error!(error = %panicked, "a call");
            Err(cni::Error::internal(format!("Multus: the call {panicked}")))
        });
        call.end(outcome.is_ok());
        drop(in_flight);
        // Nobody may wait any more.
        let _ = answer.send(outcome);
    });
    match answered.await {
        Ok(Ok(None)) => StatusCode::OK.into_response(),
        Ok(Ok(Some(result))) => json(StatusCode::OK, format!(r#"{{"Result":{result}}}"#)),
        // It was undone, and the shim repeats it.
        Ok(Err(error)) if handler == CNI && !is_del && api.daemon.is_refused() => {
            unavailable(&format!("the API server refuses the multus daemon: {error}"))
        }
        Ok(Err(error)) => failure(&error),
        Err(_) => failure(&cni::Error::internal("Multus: the call ended unexpectedly")),
    }
}

/// For a caller that waits for this daemon or the next one.
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
    tracing::error!(%error, "unusable request");
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

/// Counts the answer, and lets nobody keep a connection: shims make one call each, and a connection that stays would
/// hold up the end of the process.
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
        tracing::error!(error = %panicked, "a request");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    });
    api.metrics.count(handler, response.status().as_u16(), method);
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
