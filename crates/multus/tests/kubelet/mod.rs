//! A kubelet that answers one question: which devices its pods have.

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// A pod with its containers' devices by resource.
#[derive(Clone)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) containers: Vec<Vec<(String, Vec<String>)>>,
}

/// Its answer to every request.
#[allow(dead_code, reason = "not every test program uses each of them")]
#[derive(Clone)]
pub(crate) enum Answer {
    /// These are all pods.
    Pods(Vec<Pod>),
    /// Just these bytes.
    Bytes(Vec<u8>),
    /// A gRPC status other than 0.
    Refusal {
        /// The status.
        code: &'static str,
        /// Its text.
        message: String,
    },
    /// Too many calls, that often; then these pods.
    Busy(Arc<AtomicU32>, Vec<Pod>),
    /// Nothing.
    Silence,
}

/// Answers all clients, for ever.
pub(crate) async fn serve(listener: UnixListener, answer: Answer) {
    let mut served = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        served.spawn(converse(stream, answer.clone()));
    }
}

async fn converse(stream: UnixStream, answer: Answer) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut silent = Vec::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        let response = Response::builder().header("content-type", "application/grpc");
        let mut trailers = HeaderMap::new();
        let (body, code) = match &answer {
            Answer::Silence => {
                silent.push(respond);
                continue;
            }
            Answer::Busy(left, _) if left.load(Ordering::Relaxed) > 0 => {
                left.fetch_sub(1, Ordering::Relaxed);
                (Vec::new(), "8")
            }
            Answer::Pods(pods) | Answer::Busy(_, pods) => {
                let message = encode(pods);
                let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                ([&[0], &length[..], &message].concat(), "0")
            }
            Answer::Bytes(bytes) => (bytes.clone(), "0"),
            Answer::Refusal { code, message } => {
                trailers.insert("grpc-message", message.parse().unwrap());
                (Vec::new(), *code)
            }
        };
        let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from(body), false).unwrap();
        trailers.insert("grpc-status", code.parse().unwrap());
        stream.send_trailers(trailers).unwrap();
    }
}

/// The message for these pods, including unknown fields.
pub(crate) fn encode(pods: &[Pod]) -> Vec<u8> {
    let mut answer = Vec::new();
    for pod in pods {
        let mut message = [field(1, pod.name.as_bytes()), field(2, pod.namespace.as_bytes())].concat();
        for container in &pod.containers {
            // A name, and cpu_ids, packed.
            let mut fields = [field(1, b"container"), field(3, &[1, 2])].concat();
            for (resource, devices) in container {
                let mut group = field(1, resource.as_bytes());
                for device in devices {
                    group.extend(field(2, device.as_bytes()));
                }
                fields.extend(field(2, &group));
            }
            message.extend(field(3, &fields));
        }
        answer.extend(field(1, &message));
    }
    answer
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        field.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap());
    field.extend_from_slice(content);
    field
}
