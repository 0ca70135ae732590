//! Probes and metrics over HTTP (secondary-dns §8).

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use kube_kit::serve::{self, Readiness, Server};

use crate::metrics::Metrics;
use crate::{messages, names};

/// Purpose of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// The liveness probe.
    Health,
    /// The readiness probe: a zone is loaded.
    Ready,
    /// Metrics.
    Metrics,
}

/// The router of a purpose.
pub(crate) fn router(purpose: Purpose, loaded: &Readiness, metrics: &Metrics) -> Router {
    match purpose {
        Purpose::Health => Router::new().route(names::HEALTH, get(|| async { messages::OK })),
        Purpose::Ready => {
            let loaded = loaded.clone();
            let ready = move || async move {
                if loaded.is_ready() {
                    (StatusCode::OK, messages::OK)
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, messages::NOT_READY)
                }
            };
            Router::new().route(names::READY, get(ready))
        }
        Purpose::Metrics => serve::metrics(Arc::new(metrics.registry())),
    }
}

/// Probes and metrics of a monitor.
///
/// # Errors
/// If the port is taken.
pub(crate) async fn monitor(port: u16, readiness: &Readiness, metrics: &Metrics) -> anyhow::Result<Server> {
    let metrics = router(Purpose::Metrics, readiness, metrics);
    let router = serve::probes(readiness.clone()).merge(metrics);
    Ok(Server::on_port(port, router).await?)
}
