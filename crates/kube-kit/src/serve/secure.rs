//! Accepts connections and shakes hands on all of them at once, so that a slow client holds up nobody.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::Limits;
use crate::tls::Tls;

/// A listener whose connections are encrypted.
pub(super) struct SecureListener {
    tcp: TcpListener,
    tls: Tls,
    limits: Limits,
    free: Arc<Semaphore>,
    handshakes: FuturesUnordered<BoxFuture<'static, Handshake>>,
}

/// How a handshake ended.
type Handshake = (SocketAddr, io::Result<Connection>);

impl SecureListener {
    pub(super) fn new(tcp: TcpListener, tls: Tls, limits: Limits) -> Self {
        Self {
            tcp,
            tls,
            limits,
            free: Arc::new(Semaphore::new(limits.connections)),
            handshakes: FuturesUnordered::new(),
        }
    }
}

impl Listener for SecureListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (tcp, free) = (&mut self.tcp, &self.free);
            let arrival = async {
                // The semaphore is never closed.
                let slot = Arc::clone(free).acquire_owned().await.ok();
                (slot, Listener::accept(tcp).await)
            };
            tokio::select! {
                (slot, (stream, peer)) = arrival => {
                    let handshake = handshake(stream, self.tls.clone(), self.limits, slot);
                    self.handshakes.push(Box::pin(async move { (peer, handshake.await) }));
                }
                Some((peer, shaken)) = self.handshakes.next() => match shaken {
                    Ok(connection) => return (connection, peer),
                    Err(error) => tracing::debug!(%peer, %error, "no TLS handshake"),
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn handshake(
    stream: TcpStream,
    tls: Tls,
    limits: Limits,
    slot: Option<OwnedSemaphorePermit>,
) -> io::Result<Connection> {
    let shake = async {
        stream.set_nodelay(true)?;
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        // Not before the client has begun: a change of the settings counts for it.
        hello.into_stream(tls.config()).await
    };
    let stream = tokio::time::timeout(limits.handshake, shake)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(Connection {
        stream,
        silence: limits.silence,
        deadline: Box::pin(tokio::time::sleep(limits.silence)),
        _slot: slot,
    })
}

/// An encrypted connection that ends when its client is silent for too long.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    silence: Duration,
    deadline: Pin<Box<Sleep>>,
    /// Given back when the connection ends.
    _slot: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let next = Instant::now() + self.silence;
            self.deadline.as_mut().reset(next);
            return Poll::Ready(read);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
