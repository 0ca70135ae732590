//! A fake kubelet that accepts registrations and calls the plugins.

use axum::body::Bytes;
use axum::http::Request;
use h2::client::SendRequest;
use kube_kit::grpc::server::{self, Call};
use kube_kit::grpc::{Error, unary};
use macvtap::api::{
    AllocateRequest, Allocated, ContainerRequest, Devices, REGISTER, RegisterRequest, method,
};
use prost::Message as _;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::node::{DEADLINE, soon};

/// A listening kubelet. A drop leaves its socket, like a kill.
pub(crate) struct Kubelet {
    dir: PathBuf,
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts like kubelet: first removes every socket in its directory.
    pub(crate) fn start(dir: &Path) -> Self {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("kubelet_internal_checkpoint") {
                // A stopping plugin may remove its socket concurrently.
                let _ = std::fs::remove_file(path);
            }
        }
        let listener = UnixListener::bind(dir.join("kubelet.sock")).unwrap();
        let (tell, registrations) = mpsc::unbounded_channel();
        let answer = move |call: Call| {
            let tell = tell.clone();
            async move {
                assert_eq!(call.uri().path(), REGISTER);
                let take = move |request: RegisterRequest| {
                    tell.send(request).unwrap();
                    async { Ok(()) }
                };
                server::unary(call, take).await
            }
        };
        Self {
            dir: dir.to_owned(),
            registrations,
            task: tokio::spawn(server::serve(listener, answer)),
        }
    }

    /// Returns the next registration.
    pub(crate) async fn registered(&mut self) -> RegisterRequest {
        let next = soon("a registration", self.registrations.recv()).await;
        next.expect("the kubelet lives")
    }

    /// Returns the resources of the next registrations, sorted.
    pub(crate) async fn resources(&mut self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(self.registered().await.resource_name);
        }
        names.sort();
        names
    }

    /// Returns the path of a plugin's socket.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("macvtap.network.kubevirt.io_{name}"))
    }

    /// Allocates devices.
    pub(crate) async fn allocate(&self, name: &str, ids: &[&str]) -> Result<Allocated, Error> {
        let container = ContainerRequest {
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let request = AllocateRequest {
            containers: vec![container],
        };
        unary(&self.socket(name), method::ALLOCATE, request, DEADLINE).await
    }

    /// Follows the devices of a plugin.
    pub(crate) async fn watch(&self, name: &str) -> Watch {
        Watch::open(&self.socket(name)).await
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The answers to one `ListAndWatch`.
pub(crate) struct Watch {
    body: h2::RecvStream,
    bytes: Vec<u8>,
    /// Keeps the connection alive.
    _sender: SendRequest<Bytes>,
}

impl Watch {
    async fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let uri = format!("http://localhost{}", method::LIST_AND_WATCH);
        let request = Request::post(uri).header("content-type", "application/grpc");
        let (response, mut send) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        // An empty message: uncompressed, no bytes.
        send.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        let response = soon("an answer", response).await.unwrap();
        Self {
            body: response.into_body(),
            bytes: Vec::new(),
            _sender: sender,
        }
    }

    /// Returns the next list, or `None` when the plugin ended.
    pub(crate) async fn next(&mut self) -> Option<Devices> {
        loop {
            if let Some((head, rest)) = self.bytes.split_at_checked(5) {
                let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
                if let Some((message, _)) = rest.split_at_checked(length) {
                    let devices = Devices::decode(message).unwrap();
                    self.bytes.drain(..5 + length);
                    return Some(devices);
                }
            }
            let data = soon("a list of devices", self.body.data()).await?.ok()?;
            self.body.flow_control().release_capacity(data.len()).ok()?;
            self.bytes.extend_from_slice(&data);
        }
    }

    /// Returns the number of devices in the next list. All must be healthy.
    pub(crate) async fn count(&mut self) -> usize {
        let devices = self.next().await.expect("a list").devices;
        assert!(
            devices.iter().all(|device| device.health == "Healthy"),
            "{devices:?}"
        );
        devices.len()
    }
}
