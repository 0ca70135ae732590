//! Accepts connections and serves each of them in a task of its own, so that a slow client delays no other.
//!
//! ```text
//! accept ──> Crowd: admission ──> TLS handshake, the costly step in turn ──> Connection ──> hyper ──> router
//! ```

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::server::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::LazyConfigAcceptor;
use tower::ServiceExt as _;

use super::connection::{Connection, Stream};
use super::crowd::{Crowd, Member};
use super::{ClientName, Limits, Local, Peer};
use crate::shutdown::Shutdown;
use crate::tls::{self, Tls};

/// Pause after a failed accept, for instance without free file descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// Buffer of an HTTP/1 connection in bytes, which limits the length of a head.
const BUFFER: usize = 64 * 1024;
/// Maximum number of concurrent requests of an HTTP/2 connection.
const STREAMS: u32 = 32;
/// Flow-control window of one HTTP/2 request in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Flow-control window of an HTTP/2 connection in bytes.
const WINDOW: u32 = 128 * 1024;

/// A connection after its handshake.
struct Shaken {
    stream: Stream,
    http2: bool,
    name: Option<ClientName>,
}

/// Shared by all connections of a server.
#[derive(Clone)]
struct Shared {
    router: Router,
    tls: Option<Tls>,
    limits: Limits,
    /// Serializes the costly step of handshakes, which takes a millisecond, so that requests of other connections run
    /// between two.
    turn: Arc<Semaphore>,
    stop: Shutdown,
}

/// Serves connections until `stop`, and then the running requests.
pub(super) async fn serve(
    tcp: TcpListener,
    router: Router,
    tls: Option<Tls>,
    limits: Limits,
    stop: Shutdown,
) {
    let crowd = Arc::new(Crowd::new(limits.connections));
    let shared = Shared {
        router,
        tls,
        limits,
        turn: Arc::new(Semaphore::new(1)),
        stop: stop.clone(),
    };
    let mut connections = JoinSet::new();
    let mut stopped = pin!(stop.wait());
    loop {
        tokio::select! {
            () = &mut stopped => break,
            (stream, peer) = accept(&tcp) => {
                // The refusal is immediate, so that the client can retry.
                let Some(place) = crowd.enter(peer.ip().to_canonical()) else { continue };
                let shared = shared.clone();
                connections.spawn(async move {
                    let member = place.member();
                    let ended = tokio::select! {
                        ended = shared.connection(stream, member) => ended,
                        () = member.must_end() => Err("another client needs the place".into()),
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%peer, error, "a connection ended early");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(tcp);
    while connections.join_next().await.is_some() {}
}

async fn accept(tcp: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match tcp.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

impl Shared {
    async fn connection(&self, tcp: TcpStream, member: &Arc<Member>) -> Result<(), String> {
        tcp.set_nodelay(true).map_err(|error| error.to_string())?;
        let local = tcp.local_addr().map_err(|error| error.to_string())?;
        let local = Local(local.ip().to_canonical());
        let Shaken { stream, http2, name } = match &self.tls {
            None => Shaken {
                stream: Stream::Plain(tcp),
                http2: false,
                name: None,
            },
            Some(tls) => tokio::time::timeout(self.limits.handshake, self.handshake(tcp, tls))
                .await
                .map_err(|_| "no TLS handshake in time")?
                .map_err(|error| format!("no TLS handshake: {error}"))?,
        };
        let connection = Connection::new(stream, http2, Arc::clone(member), self.limits);
        self.requests(connection, member, local, name)
            .await
            .map_err(|error| error.to_string())
    }

    async fn handshake(&self, tcp: TcpStream, tls: &Tls) -> io::Result<Shaken> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
        // Only after the client's first message, so that a change of the settings before it takes effect.
        let mut rest = pin!(hello.into_stream(tls.config()));
        let begun = {
            // The semaphore is never closed.
            let _turn = self.turn.acquire().await.ok();
            futures::poll!(rest.as_mut())
        };
        let stream = match begun {
            Poll::Ready(stream) => stream?,
            Poll::Pending => rest.await?,
        };
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        Ok(Shaken {
            http2: session.alpn_protocol() == Some(tls::HTTP_2),
            name: certificate
                .and_then(tls::common_name)
                .map(|name| ClientName(name.into())),
            stream: Stream::Encrypted(Box::new(stream)),
        })
    }

    async fn requests(
        &self,
        connection: Connection,
        member: &Arc<Member>,
        local: Local,
        name: Option<ClientName>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let service = service_fn(|request: Request<Incoming>| {
            let (router, answer) = (self.router.clone(), member.answer());
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(member.peer()));
            request.extensions_mut().insert(local);
            if let Some(name) = &name {
                request.extensions_mut().insert(name.clone());
            }
            async move {
                let _answer = answer;
                router.oneshot(request).await
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // It would close idle keep-alive connections too; `Connection` distinguishes them.
            .header_read_timeout(None)
            .max_buf_size(BUFFER);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(WINDOW);
        let mut serving = pin!(builder.serve_connection(TokioIo::new(connection), service));
        tokio::select! {
            ended = serving.as_mut() => return ended,
            () = self.stop.wait() => serving.as_mut().graceful_shutdown(),
        }
        serving.await
    }
}
