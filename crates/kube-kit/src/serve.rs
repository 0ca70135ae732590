//! HTTP servers of a component: probes for the kubelet, metrics for Prometheus; with TLS or without.

use axum::Router;
use axum::extract::Request;
use axum::http::{Extensions, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::shutdown::Shutdown;
use crate::tls::Tls;

mod accept;
mod certified;
mod connection;
mod crowd;

pub use certified::{Bind, Certified, InvalidBind, NoServer, Serving};

/// How long one of several replicas keeps serving after SIGTERM, until it is removed from the endpoints.
pub const DRAIN: Duration = Duration::from_secs(2);

/// Default grace time of running requests when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// Default deadline of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Default deadline of a request's head.
const HEAD: Duration = Duration::from_secs(10);

/// Default idle timeout of a connection. Longer than the usual interval between two scrapes.
const SILENCE: Duration = Duration::from_secs(90);

/// Default maximum number of connections.
const CONNECTIONS: usize = 128;

/// The address of the client, in the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// The address of a request's client; unspecified if the request did not come through a [`Server`].
    pub fn of(extensions: &Extensions) -> IpAddr {
        let peer = extensions.get::<Self>();
        peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |Self(address)| *address)
    }
}

/// The local address of the connection, in the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local(pub IpAddr);

impl Local {
    /// The local address of a request's connection; unspecified if the request did not come through a [`Server`].
    pub fn of(extensions: &Extensions) -> IpAddr {
        let local = extensions.get::<Self>();
        local.map_or(Ipv4Addr::UNSPECIFIED.into(), |Self(address)| *address)
    }
}

/// The common name of the client's certificate, in the extensions of each of its requests: if the server [requests
/// one](Tls::set_authorities), and the client has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientName(pub(crate) Arc<str>);

/// Restricts `router` to clients whose certificate has this common name; others get 401.
pub fn only_for(router: Router, name: &str) -> Router {
    let name: Arc<str> = name.into();
    router.layer(from_fn(move |request: Request, next: Next| {
        let name = Arc::clone(&name);
        async move {
            match request.extensions().get::<ClientName>() {
                Some(ClientName(client)) if *client == name => next.run(request).await,
                _ => (StatusCode::UNAUTHORIZED, "a client certificate is needed").into_response(),
            }
        }
    }))
}

/// Limits of a server's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Deadline of a handshake.
    pub handshake: Duration,
    /// Deadline of the head of an HTTP/1 request, from its first byte on.
    pub head: Duration,
    /// Idle timeout of a connection.
    pub silence: Duration,
    /// Maximum number of connections. Each additional one ends a connection of the client that has the most, so that
    /// many connections of one client do not block other clients.
    pub connections: usize,
    /// Grace time of running requests when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: HANDSHAKE,
            head: HEAD,
            silence: SILENCE,
            connections: CONNECTIONS,
            grace: GRACE,
        }
    }
}

impl Limits {
    /// Limits of a server that the API server calls.
    ///
    /// An API server closes connections that were idle for 90 s. The idle timeout here is longer: a request that is
    /// sent just when the server closes the connection is lost, and a user's request fails with it. With HTTP/1.1 each
    /// concurrent request has a connection of its own, and there may be several API servers.
    pub fn webhook() -> Self {
        Self {
            silence: Duration::from_secs(180),
            connections: 512,
            grace: Duration::from_secs(5),
            ..Self::default()
        }
    }
}

/// The server cannot listen.
#[derive(Debug, Error)]
#[error("cannot listen on {address}")]
pub struct Error {
    /// The listen address.
    pub address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Readiness of a component; clones share it. Initially not ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness(watch::Sender<bool>);

impl Readiness {
    /// Initially not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the readiness.
    pub fn set(&self, ready: bool) {
        self.0.send_replace(ready);
    }

    /// Whether the component is ready.
    pub fn is_ready(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the component is ready, at once if it is already.
    pub async fn wait(&self) {
        // It fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|ready| *ready).await;
    }
}

/// A server that runs until [`Server::stop`], or until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Shutdown,
    grace: Duration,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `router` on an address; port 0 selects a free one.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub async fn start(address: SocketAddr, router: Router) -> Result<Self, Error> {
        Self::start_within(address, router, Limits::default()).await
    }

    /// Like [`Server::start`], with other limits.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub(crate) async fn start_within(
        address: SocketAddr,
        router: Router,
        limits: Limits,
    ) -> Result<Self, Error> {
        Self::listen(address, router, None, limits).await
    }

    /// Serves `router` on a port of all addresses, IPv6 and IPv4 if the host has both.
    ///
    /// # Errors
    /// If it cannot listen on the port.
    pub async fn on_port(port: u16, router: Router) -> Result<Self, Error> {
        everywhere(port, |address| Self::start(address, router.clone())).await
    }

    /// Like [`Server::start`], over TLS. Changed settings take effect with the next handshake.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub async fn start_tls(address: SocketAddr, router: Router, tls: &Tls) -> Result<Self, Error> {
        Self::start_tls_within(address, router, tls, Limits::default()).await
    }

    /// Like [`Server::start_tls`], with other limits.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub(crate) async fn start_tls_within(
        address: SocketAddr,
        router: Router,
        tls: &Tls,
        limits: Limits,
    ) -> Result<Self, Error> {
        Self::listen(address, router, Some(tls.clone()), limits).await
    }

    /// Like [`Server::on_port`], over TLS. Changed settings take effect with the next handshake.
    ///
    /// # Errors
    /// If it cannot listen on the port.
    pub async fn on_port_tls(port: u16, router: Router, tls: &Tls) -> Result<Self, Error> {
        everywhere(port, |address| Self::start_tls(address, router.clone(), tls)).await
    }

    /// Like [`Server::on_port_tls`], with other limits.
    ///
    /// # Errors
    /// If it cannot listen on the port.
    pub async fn on_port_tls_within(
        port: u16,
        router: Router,
        tls: &Tls,
        limits: Limits,
    ) -> Result<Self, Error> {
        everywhere(port, |address| {
            Self::start_tls_within(address, router.clone(), tls, limits)
        })
        .await
    }

    #[allow(
        clippy::unused_async,
        reason = "listening needs a running runtime, and async requires one"
    )]
    async fn listen(
        address: SocketAddr,
        router: Router,
        tls: Option<Tls>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let listener = listen(address).map_err(|source| Error { address, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| Error { address, source })?;
        let stop = Shutdown::new();
        let task = tokio::spawn(accept::serve(listener, router, tls, limits, stop.clone()));
        Ok(Self {
            address,
            stop,
            grace: limits.grace,
            task,
        })
    }

    /// The local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, and ends when the running requests are answered, or after the grace time.
    pub async fn stop(mut self) {
        self.stop.trigger();
        // An idle open connection must not delay the end of the process.
        let _ = tokio::time::timeout(self.grace, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts on all addresses of the host.
async fn everywhere<F: Future<Output = Result<Server, Error>>>(
    port: u16,
    start: impl Fn(SocketAddr) -> F,
) -> Result<Server, Error> {
    let on = |address: IpAddr| start(SocketAddr::new(address, port));
    match on(Ipv6Addr::UNSPECIFIED.into()).await {
        // A host without IPv6 has no such address family.
        Err(error) if error.source.kind() != io::ErrorKind::AddrInUse => {
            on(Ipv4Addr::UNSPECIFIED.into()).await
        }
        other => other,
    }
}

/// Sets `SO_REUSEADDR`: a restarted pod on the host's network gets its port back at once. An unspecified IPv6 address
/// includes IPv4, whatever the host's default is.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    const BACKLOG: u32 = 128;
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// `GET /healthz` returns `ok` while the process serves it; `GET /readyz` returns `ok` when the component is ready,
/// else 503.
pub fn probes(readiness: Readiness) -> Router {
    let ready = move || async move {
        if readiness.is_ready() {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
}

/// `GET /metrics` in the text format of Prometheus.
pub fn metrics(registry: Arc<Registry>) -> Router {
    Router::new().route("/metrics", get(move || async move { render(&registry) }))
}

fn render(registry: &Registry) -> Response {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot write the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests;
