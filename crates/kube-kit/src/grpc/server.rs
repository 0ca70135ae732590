//! Answers gRPC calls on a unix socket.
//!
//! ```text
//! accept ──> a place among MOST_CONNECTIONS ──> HTTP/2 ──> one answer per call: unary, streaming, unimplemented
//! ```

use futures::Stream;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;

/// The error of a call, for the client.
pub use tonic::Status;

/// A call whose message is not read yet.
pub type Call = http::Request<hyper::body::Incoming>;
/// The answer to a call.
pub type Answer = http::Response<Body>;

/// Maximum number of clients that are served at a time. Another one waits.
const MOST_CONNECTIONS: usize = 16;
/// Maximum number of concurrent calls of one client.
const MOST_CALLS: u32 = 32;
/// Bytes that a client may send before they are read, for one call and for its headers.
const WINDOW: u32 = 64 * 1024;
/// Maximum size of a message in bytes.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Pause after a failed accept: the process has no free file descriptor.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers every call with `answer`, for ever. Dropping the future ends all connections.
pub async fn serve<F, A>(listener: UnixListener, answer: F)
where
    F: Fn(Call) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, answer.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse<F, A>(stream: UnixStream, answer: F)
where
    F: Fn(Call) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(move |call| {
        let answered = answer(call);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MOST_CALLS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(WINDOW)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a gRPC connection ended early");
    }
}

/// Answers a call with one message.
pub async fn unary<Q, A, F, R>(call: Call, method: F) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: FnMut(Q) -> R,
    R: Future<Output = Result<A, Status>>,
{
    let mut method = method;
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let answered = method(request.into_inner());
        async move { answered.await.map(tonic::Response::new) }
    });
    Grpc::new(ProstCodec::<A, Q>::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .unary(service, call)
        .await
}

/// Answers a call with the messages of a stream, as they arrive.
pub async fn streaming<Q, A, S>(call: Call, messages: S) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    S: Stream<Item = A> + Send + 'static,
{
    let mut messages = Some(messages);
    let service = tower::service_fn(move |_: tonic::Request<Q>| {
        // The service is called once per call.
        let stream = messages
            .take()
            .map(|messages| futures::StreamExt::map(messages, Ok));
        let answered = stream
            .map(tonic::Response::new)
            .ok_or_else(|| Status::internal("called twice"));
        std::future::ready(answered)
    });
    Grpc::new(ProstCodec::<A, Q>::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .server_streaming(service, call)
        .await
}

/// The answer to a call of an unknown method.
pub fn unimplemented() -> Answer {
    Status::unimplemented("no such method").into_http()
}
