//! gRPC over unix sockets: [`server`] answers calls.
//!
//! [`unary`] makes one call, on a connection of its own: calls are rare, and a lasting connection would have to be
//! monitored for a restart of the server.

pub mod server;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request, Uri};
use tonic_prost::ProstCodec;

/// Maximum length of an answer in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Flow-control window in bytes, also for the headers.
const WINDOW: u32 = 256 * 1024;
/// Maximum number of characters of the server's message that are repeated.
const MAX_MESSAGE: usize = 200;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No server listens.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The server returned an error, or an invalid answer.
    #[error("code {}: {}", .0.code() as i32, .0.message().chars().take(MAX_MESSAGE).collect::<String>())]
    Status(Box<tonic::Status>),
    /// No answer within the deadline.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// Calls the method at `path`, `/package.Service/Method`. The whole call takes no longer than `timeout`.
pub async fn unary<Q, A>(socket: &Path, path: &'static str, request: Q, timeout: Duration) -> Result<A, Error>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    tokio::time::timeout(timeout, call(socket, path, request))
        .await
        .unwrap_or(Err(Error::Late(timeout)))
}

async fn call<Q, A>(socket: &Path, path: &'static str, request: Q) -> Result<A, Error>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let stream = UnixStream::connect(socket).await.map_err(Error::Connect)?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(WINDOW)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends with the last sender; the call reports its error too.
    tokio::spawn(connection);
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    // The name that servers accept on a unix socket.
    let mut client = Grpc::with_origin(service, Uri::from_static("http://localhost"))
        .max_decoding_message_size(MAX_ANSWER);
    client.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = client
        .unary(
            tonic::Request::new(request),
            PathAndQuery::from_static(path),
            codec,
        )
        .await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| Error::Status(Box::new(status)))
}
