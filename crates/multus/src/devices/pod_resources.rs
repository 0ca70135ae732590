//! Kubelet's pod-resources API: one unary gRPC call over its unix socket.
//!
//! gRPC is a message with a prefix of five bytes in an HTTP/2 request, and a status in the trailers. HTTP/2 is in the
//! program anyway; a whole gRPC stack for one call that asks nothing is not.

use super::Devices;
use super::wire::{Fields, Malformed};
use crate::request::PodRef;
use axum::body::Bytes;
use axum::http::{HeaderMap, Request, StatusCode};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Below kubelet's directory.
pub(super) const SOCKET: &str = "pod-resources/kubelet.sock";
const METHOD: &str = "http://localhost/v1.PodResourcesLister/List";
/// How long the whole call may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer, bytes.
const LIMIT: usize = 16 * 1024 * 1024;
/// Before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// How much may be on its way without our having read it, bytes; also for the headers.
const WINDOW: u32 = 256 * 1024;
/// How much of kubelet's own words is repeated.
const LONGEST_MESSAGE: usize = 200;

/// Why kubelet could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens at its socket.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// The connection broke.
    #[error("{0}")]
    Http(#[from] h2::Error),
    /// Not gRPC.
    #[error("HTTP status {0}")]
    Status(StatusCode),
    /// It refused.
    #[error("code {code}: {message}")]
    Refused {
        /// gRPC's.
        code: String,
        /// Kubelet's words.
        message: String,
    },
    /// It said more than it may.
    #[error("the answer has more than {LIMIT} bytes")]
    TooLarge,
    /// The answer is not what it should be.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// It said nothing.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
}

/// The devices of a pod, as kubelet tells.
pub(super) async fn devices_of(socket: &Path, pod: &PodRef) -> Result<Devices, Error> {
    let answer = timeout(PATIENCE, list(socket))
        .await
        .map_err(|_| Error::Silent)??;
    Ok(find(&answer, pod)?)
}

/// The answer, a `ListPodResourcesResponse`.
async fn list(socket: &Path) -> Result<Vec<u8>, Error> {
    let stream = UnixStream::connect(socket).await?;
    let (requests, connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(WINDOW)
        .handshake::<_, Bytes>(stream)
        .await?;
    // Ends with this function, also when nobody waits for it any more.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::post(METHOD)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| Error::Connect(io::Error::other(error)))?;
    let (response, mut body) = requests.ready().await?.send_request(request, false)?;
    // An empty message.
    body.send_data(Bytes::from_static(&[0; PREFIX]), true)?;
    let (head, mut body) = response.await?.into_parts();
    if head.status != StatusCode::OK {
        return Err(Error::Status(head.status));
    }
    // What fails at once has its status here.
    refusal(&head.headers)?;
    let mut answer = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        if answer.len() + data.len() > LIMIT + PREFIX {
            return Err(Error::TooLarge);
        }
        answer.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    if let Some(trailers) = body.trailers().await? {
        refusal(&trailers)?;
    }
    message(answer)
}

fn refusal(headers: &HeaderMap) -> Result<(), Error> {
    let text = |key: &str| {
        headers
            .get(key)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match text("grpc-status") {
        None => Ok(()),
        Some(code) if code == "0" => Ok(()),
        Some(code) => Err(Error::Refused {
            code,
            message: text("grpc-message")
                .unwrap_or_default()
                .chars()
                .take(LONGEST_MESSAGE)
                .collect(),
        }),
    }
}

/// The one message of an answer that we did not allow to be compressed.
fn message(mut answer: Vec<u8>) -> Result<Vec<u8>, Error> {
    let Some((&[0, a, b, c, d], rest)) = answer.split_first_chunk::<PREFIX>() else {
        return Err(Malformed.into());
    };
    if usize::try_from(u32::from_be_bytes([a, b, c, d])) != Ok(rest.len()) {
        return Err(Malformed.into());
    }
    answer.drain(..PREFIX);
    Ok(answer)
}

/// Field numbers of kubelet's messages.
mod field {
    /// Of the answer.
    pub(super) const POD: u64 = 1;
    pub(super) const POD_NAME: u64 = 1;
    pub(super) const POD_NAMESPACE: u64 = 2;
    pub(super) const CONTAINER: u64 = 3;
    /// Of a container.
    pub(super) const DEVICES: u64 = 2;
    /// Of the devices of one resource.
    pub(super) const RESOURCE: u64 = 1;
    pub(super) const DEVICE: u64 = 2;
}

fn find(answer: &[u8], wanted: &PodRef) -> Result<Devices, Malformed> {
    let mut devices = Devices::default();
    for pod in Fields::numbered(answer, field::POD) {
        let pod = pod?;
        let is = |number, text: &str| -> Result<bool, Malformed> {
            let said = Fields::numbered(pod, number).last().transpose()?;
            Ok(said == Some(text.as_bytes()))
        };
        if !is(field::POD_NAME, &wanted.name)? || !is(field::POD_NAMESPACE, &wanted.namespace)? {
            continue;
        }
        for container in Fields::numbered(pod, field::CONTAINER) {
            for group in Fields::numbered(container?, field::DEVICES) {
                let group = group?;
                let resource = Fields::numbered(group, field::RESOURCE).last().transpose()?;
                let resource = text(resource.unwrap_or_default())?;
                for device in Fields::numbered(group, field::DEVICE) {
                    devices.add(resource, text(device?)?.to_owned());
                }
            }
        }
    }
    Ok(devices)
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests;
