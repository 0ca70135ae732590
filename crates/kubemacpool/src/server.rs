//! The webhook server (kubemacpool §12, §16).
//!
//! ```text
//! tls.crt, tls.key ──> Tls ──┐
//! API server ── HTTPS :8000 ─┴──> /mutate-pods, /mutate-virtualmachines ──wait for the pool──> decision
//! kubelet ──────────────────────> /readyz, /healthz
//! ```
//!
//! It listens from the start, with a self-signed certificate until the serving certificate exists: so the kubelet sees
//! a live process that is not ready, and does not restart it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use kube_kit::serve::{Bind, Certified, Limits, NoServer, Readiness, Serving, only_for};
use kube_kit::tls::ciphers::in_full;
use kube_kit::tls::{Authorities, Profile};

use crate::{messages, names};

/// Default timeout of the API server for webhooks.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The flag `--tls-min-version` names no version.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid TLS version {0:?}")]
pub struct InvalidVersion(String);

/// The TLS settings of `--tls-min-version` and `--tls-cipher-suites` (names of Go's constants, separated by commas).
/// Versions below 1.2 are served as 1.2; unknown and unsupported ciphers are dropped.
///
/// # Errors
/// If the version is unknown.
pub fn profile(min_version: &str, ciphers: &str) -> Result<Profile, InvalidVersion> {
    if !names::TLS_VERSIONS.contains(&min_version) {
        return Err(InvalidVersion(min_version.to_owned()));
    }
    let ciphers: Vec<String> = ciphers
        .split(',')
        .map(str::trim)
        .filter(|cipher| !cipher.is_empty())
        .map(in_full)
        .collect();
    Ok(Profile::read(min_version, &ciphers))
}

/// Settings of the webhook server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on.
    pub bind: Bind,
    /// Directory of `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
    /// TLS versions and ciphers.
    pub profile: Profile,
    /// The API server's client certificate; `None` permits every client.
    pub client: Option<Client>,
}

/// A client that is identified by its certificate.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its certificate authorities.
    pub authorities: Authorities,
    /// Common name of the certificate.
    pub name: String,
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Webhooks(Serving);

impl Webhooks {
    /// Serves the webhooks of `router`, whose requests wait until `pool` is ready, and the probes.
    ///
    /// # Errors
    /// If the address is taken, or TLS cannot be set up. A missing certificate is waited for.
    pub async fn start(settings: Settings, pool: Readiness, router: Router) -> Result<Self, NoServer> {
        let Settings {
            bind,
            certificates,
            profile,
            client,
        } = settings;
        let router = match &client {
            Some(Client { name, .. }) => only_for(router, name),
            None => router,
        };
        let certified = Readiness::new();
        let router = Router::new()
            .merge(router.layer(from_fn({
                let pool = pool.clone();
                move |request, next| wait_for_pool(pool.clone(), request, next)
            })))
            .merge(probes(pool, certified.clone()));
        let server = Certified {
            certificates: Some(certificates),
            names: vec![names::SERVICE.to_owned()],
            profile,
            http2: true,
            authorities: client.map(|client| client.authorities),
            limits: Limits::webhook(),
        };
        let serving = server.serve(&bind, router, &certified).await?;
        serving.map(Self).ok_or(NoServer::Nowhere)
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Closes the listener, and waits for the current requests, at most 5 s.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

/// Delays requests until the pool is complete: an incomplete pool could allocate an address that another object has.
async fn wait_for_pool(pool: Readiness, request: HttpRequest, next: Next) -> Response {
    if !pool.is_ready() {
        let timeout = timeout(request.uri());
        if tokio::time::timeout(timeout, pool.wait()).await.is_err() {
            return not_ready();
        }
    }
    next.run(request).await
}

/// Timeout of the wait: slightly less than the API server's, so that it receives the error.
fn timeout(uri: &Uri) -> Duration {
    let seconds = uri.query().unwrap_or_default().split('&').find_map(|pair| {
        let duration = pair.strip_prefix("timeout=")?;
        // A webhook's timeout has whole seconds, at most 30.
        duration.strip_suffix('s')?.parse::<u8>().ok()
    });
    seconds.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into())) * 9 / 10
}

fn probes(pool: Readiness, certified: Readiness) -> Router {
    let ready = move || async move {
        if pool.is_ready() && certified.is_ready() {
            messages::HEALTHY.into_response()
        } else {
            not_ready()
        }
    };
    Router::new()
        .route(names::HEALTHZ, get(|| async { messages::HEALTHY }))
        .route(names::READYZ, get(ready))
}

fn not_ready() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, messages::NOT_READY).into_response()
}

#[cfg(test)]
mod tests;
