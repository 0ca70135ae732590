//! Small HTTP servers beside a component's work: probes for the kubelet, figures for Prometheus; with TLS or without.

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

/// How long requests that are being answered may take when the server stops, where nobody says otherwise.
const GRACE: Duration = Duration::from_secs(2);

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a client may take for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// How long a client may be silent on a connection. Longer than the usual pause between two scrapes.
const SILENCE: Duration = Duration::from_secs(90);

/// How many connections there may be at a time.
const CONNECTIONS: usize = 128;

/// The address of the client, in the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// The address of a request's client; the unspecified one where no server of ours took it.
    pub fn of(extensions: &Extensions) -> IpAddr {
        let peer = extensions.get::<Self>();
        peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |Self(address)| *address)
    }
}

/// The address that the client has reached, in the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local(pub IpAddr);

impl Local {
    /// The address that a request has reached; the unspecified one where no server of ours took it.
    pub fn of(extensions: &Extensions) -> IpAddr {
        let local = extensions.get::<Self>();
        local.map_or(Ipv4Addr::UNSPECIFIED.into(), |Self(address)| *address)
    }
}

/// The common name of the certificate that the client showed, in the extensions of each of its requests: where the server
/// [asks for one](Tls::set_authorities), and the client has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

/// Lets through to `router` only requests of clients whose certificate has this common name; others hear 401.
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

/// What clients of a server may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a client may take to shake hands.
    pub handshake: Duration,
    /// How long a client may take for the head of an HTTP/1 request, from its first byte on.
    pub head: Duration,
    /// How long a client may be silent on a connection before it is ended.
    pub silence: Duration,
    /// How many connections there may be at a time. For each one more, the client with the most connections loses one:
    /// many connections of one client keep no other client out.
    pub connections: usize,
    /// How long requests that are being answered may take when the server stops.
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
    /// For a server that the API server calls.
    ///
    /// An API server ends connections that it did not use for 90 s. The server waits longer than that: a request that
    /// is sent just when the server ends the connection is lost, and with it what a user wanted. With HTTP/1.1 each
    /// request under way has a connection of its own, and there may be several API servers.
    pub fn webhook() -> Self {
        Self {
            silence: Duration::from_secs(180),
            connections: 512,
            grace: Duration::from_secs(5),
            ..Self::default()
        }
    }
}

/// The server can't listen.
#[derive(Debug, Error)]
#[error("cannot listen on {address}")]
pub struct Error {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    #[source]
    source: io::Error,
}

/// Whether a component is ready for work; clones share the answer. Not ready at first.
#[derive(Debug, Clone, Default)]
pub struct Readiness(watch::Sender<bool>);

impl Readiness {
    /// Not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says whether the component is ready from now on.
    pub fn set(&self, ready: bool) {
        self.0.send_replace(ready);
    }

    /// Whether the component is ready.
    pub fn is_ready(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the component is ready, at once if it is already.
    pub async fn wait(&self) {
        // An error would mean that every sender is gone, and `self` is one.
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
    /// Serves `router` on an address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub async fn start(address: SocketAddr, router: Router) -> Result<Self, Error> {
        Self::start_within(address, router, Limits::default()).await
    }

    /// Like [`Server::start`], with limits of its own.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub async fn start_within(address: SocketAddr, router: Router, limits: Limits) -> Result<Self, Error> {
        Self::listen(address, router, None, limits).await
    }

    /// Serves `router` on a port of all addresses, IPv6 and IPv4 where the host has both.
    ///
    /// # Errors
    /// When the port can't be listened on.
    pub async fn on_port(port: u16, router: Router) -> Result<Self, Error> {
        everywhere(port, |address| Self::start(address, router.clone())).await
    }

    /// Like [`Server::start`], over TLS. What the settings change to counts from the next handshake on.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub async fn start_tls(address: SocketAddr, router: Router, tls: &Tls) -> Result<Self, Error> {
        Self::start_tls_within(address, router, tls, Limits::default()).await
    }

    /// Like [`Server::start_tls`], with limits of its own.
    ///
    /// # Errors
    /// When the address can't be listened on.
    pub async fn start_tls_within(
        address: SocketAddr,
        router: Router,
        tls: &Tls,
        limits: Limits,
    ) -> Result<Self, Error> {
        Self::listen(address, router, Some(tls.clone()), limits).await
    }

    /// Like [`Server::on_port`], over TLS. What the settings change to counts from the next handshake on.
    ///
    /// # Errors
    /// When the port can't be listened on.
    pub async fn on_port_tls(port: u16, router: Router, tls: &Tls) -> Result<Self, Error> {
        everywhere(port, |address| Self::start_tls(address, router.clone(), tls)).await
    }

    /// Like [`Server::on_port_tls`], with limits of its own.
    ///
    /// # Errors
    /// When the port can't be listened on.
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
        reason = "listening needs a running runtime, which async says"
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and ends when the requests under way are answered.
    pub async fn stop(mut self) {
        self.stop.trigger();
        // A connection that is kept open without a request must not hold up the end of the process.
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

/// The address may be reused: a restarted pod on the host's network gets its port back at once. An unspecified IPv6
/// address stands for IPv4 too, whatever the host's default is.
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

/// `GET /healthz` says `ok` as long as the process serves it; `GET /readyz` says `ok` when the component is ready,
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
