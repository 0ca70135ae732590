//! Small HTTP servers beside a component's work: probes for the kubelet, figures for Prometheus.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

use crate::shutdown::Shutdown;

/// How long requests that are being answered may take when the server stops.
const GRACE: Duration = Duration::from_secs(2);

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
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says whether the component is ready from now on.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    /// Whether the component is ready.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A server that runs until [`Server::stop`], or until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `router` on an address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address can't be listened on.
    #[allow(
        clippy::unused_async,
        reason = "listening needs a running runtime, which async says"
    )]
    pub async fn start(address: SocketAddr, router: Router) -> Result<Self, Error> {
        let listener = listen(address).map_err(|source| Error { address, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| Error { address, source })?;
        let stop = Shutdown::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let serving =
                axum::serve(listener, router).with_graceful_shutdown(async move { stopped.wait().await });
            if let Err(error) = serving.await {
                tracing::error!(%error, %address, "the HTTP server ended");
            }
        });
        Ok(Self { address, stop, task })
    }

    /// Serves `router` on a port of all addresses, IPv6 and IPv4 where the host has both.
    ///
    /// # Errors
    /// When the port can't be listened on.
    pub async fn on_port(port: u16, router: Router) -> Result<Self, Error> {
        let everywhere = |address: IpAddr| SocketAddr::new(address, port);
        match Self::start(everywhere(Ipv6Addr::UNSPECIFIED.into()), router.clone()).await {
            // A host without IPv6 has no such address family.
            Err(error) if error.source.kind() != io::ErrorKind::AddrInUse => {
                Self::start(everywhere(Ipv4Addr::UNSPECIFIED.into()), router).await
            }
            other => other,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and ends when the requests under way are answered.
    pub async fn stop(mut self) {
        self.stop.trigger();
        // A connection that is kept open without a request must not hold up the end of the process.
        let _ = tokio::time::timeout(GRACE, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
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
mod tests {
    use super::*;
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    fn local() -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
    }

    #[tokio::test]
    async fn probes_tell_health_and_readiness_apart() {
        let readiness = Readiness::new();
        let server = Server::start(local(), probes(readiness.clone()))
            .await
            .expect("a server");
        let healthy = ask(server.address(), "/healthz").await;
        assert!(
            healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("\r\n\r\nok"),
            "{healthy}"
        );
        assert!(ask(server.address(), "/readyz").await.starts_with("HTTP/1.1 503"));
        readiness.set(true);
        assert!(ask(server.address(), "/readyz").await.starts_with("HTTP/1.1 200"));
        let address = server.address();
        server.stop().await;
        assert!(
            TcpStream::connect(address).await.is_err(),
            "nobody listens any more"
        );
        Server::start(address, probes(readiness))
            .await
            .expect("the same port again");
    }

    #[tokio::test]
    async fn a_port_is_served_over_ipv4_too() {
        let server = Server::on_port(0, probes(Readiness::new()))
            .await
            .expect("a server");
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), server.address().port());
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn metrics_have_one_line_each() {
        let mut registry = Registry::default();
        let gauge: Gauge = Gauge::default();
        registry.register("weft_ready", "Ready", gauge.clone());
        gauge.set(1);
        let server = Server::start(local(), metrics(Arc::new(registry)))
            .await
            .expect("a server");
        let answer = ask(server.address(), "/metrics").await;
        assert!(answer.lines().any(|line| line == "weft_ready 1"), "{answer}");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let server = Server::start(local(), Router::new()).await.expect("a server");
        let error = Server::start(server.address(), Router::new())
            .await
            .expect_err("an error");
        assert_eq!(
            error.to_string(),
            format!("cannot listen on {}", server.address())
        );
    }
}
