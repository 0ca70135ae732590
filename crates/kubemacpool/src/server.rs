//! The server that the API server and the kubelet talk to (kubemacpool §12, §16).
//!
//! ```text
//! tls.crt, tls.key ──> Tls ──┐
//! API server ── HTTPS :8000 ─┴──> /mutate-pods, /mutate-virtualmachines ──wait for the pool──> decision
//! kubelet ──────────────────────> /readyz, /healthz
//! ```
//!
//! It listens from the start, with a certificate of its own until there is one that the API server trusts: so the
//! kubelet sees a process that lives and is not ready, instead of one to restart.

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

/// How long the API server waits for an answer where it does not say so: its default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The flag `--tls-min-version` names no version.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid TLS version {0:?}")]
pub struct InvalidVersion(String);

/// What `--tls-min-version` and `--tls-cipher-suites` (names of Go's constants, with commas between) ask for. Versions
/// below 1.2 are served as 1.2; ciphers that nobody knows, or that are not to be had, are left out.
///
/// # Errors
/// When the version is none.
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

/// Where and as whom to serve.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub bind: Bind,
    /// Directory with `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
    /// Versions and ciphers.
    pub profile: Profile,
    /// As whom the API server is known, where anybody may not ask for reviews.
    pub client: Option<Client>,
}

/// A client that is known by its certificate.
#[derive(Clone, Debug)]
pub struct Client {
    /// Who issues it.
    pub authorities: Authorities,
    /// Its common name.
    pub name: String,
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Webhooks(Serving);

impl Webhooks {
    /// Serves the webhooks of `router`, whose requests wait until `pool` is ready, and the probes.
    ///
    /// # Errors
    /// When it can't listen, or TLS can't be set up at all. A certificate that is missing is waited for.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Takes no more connections, and ends when the requests under way are answered, or after 5 s.
    pub async fn stop(self) {
        self.0.stop().await;
    }
}

/// An incomplete pool could hand out an address that somebody has: requests wait for it as long as their sender does.
async fn wait_for_pool(pool: Readiness, request: HttpRequest, next: Next) -> Response {
    if !pool.is_ready() {
        let patience = patience(request.uri());
        if tokio::time::timeout(patience, pool.wait()).await.is_err() {
            return not_ready();
        }
    }
    next.run(request).await
}

/// How long to wait: nearly as long as the API server, so that it gets to know why.
fn patience(uri: &Uri) -> Duration {
    let seconds = uri.query().unwrap_or_default().split('&').find_map(|pair| {
        let duration = pair.strip_prefix("timeout=")?;
        // Whole seconds, 30 at most, is all that a webhook's timeout can be.
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
