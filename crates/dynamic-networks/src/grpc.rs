//! One unary gRPC call over a unix socket, on a connection of its own: they are rare, and a connection that stays would
//! have to be watched for a runtime that restarts.

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

/// Longest answer that is read, bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection is not what it should be.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The server says no.
    #[error("{}", .0.message())]
    Status(Box<tonic::Status>),
    /// It says nothing.
    #[error("no answer in time")]
    Late,
}

/// Calls the method at `path`, `/package.Service/Method`.
pub async fn unary<Q, A>(
    socket: &Path,
    path: &'static str,
    request: Q,
    patience: Duration,
) -> Result<A, Error>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    tokio::time::timeout(patience, call(socket, path, request))
        .await
        .unwrap_or(Err(Error::Late))
}

async fn call<Q, A>(socket: &Path, path: &'static str, request: Q) -> Result<A, Error>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let stream = UnixStream::connect(socket).await.map_err(Error::Connect)?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // Ends with the last sender; what it ends with is told by the call too.
    tokio::spawn(connection);
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    // The names that runtimes accept on a unix socket.
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
