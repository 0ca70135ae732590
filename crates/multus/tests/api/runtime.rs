//! A container runtime with sandboxes.

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use kube_kit::cri::{Item, ListResponse};
use kube_kit::shutdown::Shutdown;
use prost::Message as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Ends when dropped.
pub(crate) struct Runtime {
    own_binaries: Arc<Mutex<Vec<String>>>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// A runtime at this socket with these sandboxes.
    pub(crate) fn at(socket: &Path, own_binaries: &[&str]) -> Self {
        let own_binaries = Arc::new(Mutex::new(own_binaries.iter().map(|&id| id.to_owned()).collect()));
        let shutdown = Shutdown::new();
        let (ends, shared, socket) = (shutdown.clone(), Arc::clone(&own_binaries), socket.to_owned());
        let thread = std::thread::spawn(move || {
            let main = async {
                let listener = UnixListener::bind(socket).unwrap();
                tokio::select! {
                    () = serve(listener, shared) => {}
                    () = ends.wait() => {}
                }
            };
            kube_kit::process::run(main).unwrap();
        });
        Self {
            own_binaries,
            shutdown,
            thread: Some(thread),
        }
    }

    /// Replaces its sandboxes.
    pub(crate) fn knows(&self, own_binaries: &[&str]) {
        *self.own_binaries.lock().unwrap() = own_binaries.iter().map(|&id| id.to_owned()).collect();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown.trigger();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(listener: UnixListener, own_binaries: Arc<Mutex<Vec<String>>>) {
    let mut served = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        served.spawn(converse(stream, Arc::clone(&own_binaries)));
    }
}

async fn converse(stream: UnixStream, own_binaries: Arc<Mutex<Vec<String>>>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/runtime.v1.RuntimeService/ListPodSandbox");
        let item = |id: &String| Item {
            id: id.clone(),
            ..Item::default()
        };
        let items = own_binaries.lock().unwrap().iter().map(item).collect();
        let message = ListResponse { items }.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let response = Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
        let body = [&[0], &length[..], &message].concat();
        stream.send_data(Bytes::from(body), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
    }
}
