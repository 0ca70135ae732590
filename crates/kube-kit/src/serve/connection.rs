//! A connection, plain or encrypted, with the deadlines of its client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;

use super::Limits;
use super::crowd::{Member, Phase};

/// Source of bytes. It is one type, so that the HTTP server is compiled once.
pub(super) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// A connection that closes after [`Limits::silence`], or if the head of an HTTP/1 request takes longer than
/// [`Limits::head`].
pub(super) struct Connection {
    stream: Stream,
    member: Arc<Member>,
    limits: Limits,
    http2: bool,
    /// Time of the last transfer in either direction.
    moved: Instant,
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    /// `http2`: the client chose it. Bytes then do not mean a request, because of pings.
    pub(super) fn new(stream: Stream, http2: bool, member: Arc<Member>, limits: Limits) -> Self {
        let moved = Instant::now();
        Self {
            stream,
            member,
            limits,
            http2,
            moved,
            deadline: Box::pin(tokio::time::sleep_until(moved + limits.silence)),
        }
    }

    /// Ready once a deadline has passed.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let silence = self.moved + self.limits.silence;
        let at = match self.member.phase() {
            Phase::Head { since } => silence.min(since + self.limits.head),
            Phase::Idle { .. } | Phase::Answering { .. } => silence,
        };
        if self.deadline.deadline() != at {
            self.deadline.as_mut().reset(at);
        }
        self.deadline.as_mut().poll(context)
    }

    fn moved<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.moved = Instant::now();
            return poll;
        }
        ready!(self.poll_deadline(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if !self.http2 && buffer.filled().len() > before {
            self.member.begin();
        }
        self.moved(context, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        self.moved(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        };
        if flushed.is_ready() {
            return flushed;
        }
        self.moved(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        };
        self.moved(context, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        };
        self.moved(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}
