//! A plugin in the sense of kubelet: a socket that serves a resource, and its registration.
//!
//! ```text
//! listen ──> register at kubelet ──> answer calls ──> socket deleted ──> listen again
//!    ↑____ back-off ____|_____ back-off
//! ```

use crate::api::{Options, REGISTER, RegisterRequest, VERSION};
use crate::names::KUBELET_SOCKET;
use crate::resource::Resource;
use crate::service::Service;
use crate::socket::SocketFile;
use kube_kit::grpc::{self, server};
use linux::backoff::Backoff;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Timeout of a registration. Kubelet calls the plugin back before it answers.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Back-off of failed attempts.
pub(crate) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(30));

/// Directories on the node.
#[derive(Debug, Clone)]
pub struct Directories {
    /// Directory of kubelet's socket and of the plugins' sockets.
    pub kubelet_dir: PathBuf,
    /// The node's `/dev`.
    pub device_dir: PathBuf,
}

/// A running plugin.
#[derive(Debug)]
pub(crate) struct Plugin {
    resource: Arc<Resource>,
    present: watch::Sender<bool>,
    look: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Plugin {
    /// Starts a plugin, which serves until it is stopped. `present` is true if its lower device exists.
    pub(crate) fn start(resource: Resource, present: bool, directories: &Directories) -> Self {
        let resource = Arc::new(resource);
        let (present, seen) = watch::channel(present);
        let look = Arc::new(Notify::new());
        let work = Work {
            service: Service {
                resource: resource.clone(),
                present: seen,
                device_dir: directories.device_dir.clone(),
            },
            kubelet_dir: directories.kubelet_dir.clone(),
            look: look.clone(),
        };
        Self {
            resource,
            present,
            look,
            task: tokio::spawn(async move { work.run().await }),
        }
    }

    /// Returns the name of the lower device.
    pub(crate) fn lower_device(&self) -> &str {
        &self.resource.lower_device
    }

    /// Reports to kubelet whether the lower device exists, if that changed.
    pub(crate) fn set_present(&self, present: bool) {
        self.present
            .send_if_modified(|known| std::mem::replace(known, present) != present);
    }

    /// Makes the plugin check its socket.
    pub(crate) fn check_socket(&self) {
        self.look.notify_one();
    }

    /// Stops the plugin and removes its socket.
    pub(crate) async fn stop(self) {
        self.task.abort();
        if let Err(error) = self.task.await
            && error.is_panic()
        {
            tracing::error!(resource = self.resource.full_name(), %error, "the device plugin of the resource failed");
        }
    }
}

/// The state of a plugin's task.
struct Work {
    service: Service,
    kubelet_dir: PathBuf,
    look: Arc<Notify>,
}

impl Work {
    async fn run(&self) {
        let path = self.kubelet_dir.join(self.service.resource.socket_name());
        let mut backoff = BACKOFF;
        loop {
            match SocketFile::bind(&path) {
                Ok((file, listener)) => {
                    backoff.reset();
                    self.serve(&file, listener).await;
                    tracing::warn!(path = %path.display(), "the socket was deleted, listening again");
                }
                Err(error) => {
                    let hint = hint(&error);
                    tracing::error!(path = %path.display(), %error, "cannot listen, retrying with back-off{hint}");
                    sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Serves until the socket is deleted.
    async fn serve(&self, file: &SocketFile, listener: UnixListener) {
        let service = self.service.clone();
        let answers = server::serve(listener, move |call| service.clone().answer(call));
        let registration = async {
            self.register().await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = answers => {}
            () = registration => {}
            () = self.lost(file) => {}
        }
    }

    async fn lost(&self, file: &SocketFile) {
        while file.is_there() {
            self.look.notified().await;
        }
    }

    /// Registers at kubelet, which calls back before it answers.
    async fn register(&self) {
        let kubelet = self.kubelet_dir.join(KUBELET_SOCKET);
        let resource = self.service.resource.full_name();
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.service.resource.socket_name(),
            resource_name: resource.clone(),
            options: Some(Options {}),
        };
        let mut backoff = BACKOFF;
        while let Err(error) = register(&kubelet, request.clone()).await {
            let kubelet = kubelet.display();
            tracing::warn!(resource, %kubelet, %error, "cannot register at kubelet, retrying with back-off");
            sleep(backoff.next_delay()).await;
        }
        tracing::info!(resource, "registered at kubelet");
    }
}

async fn register(kubelet: &Path, request: RegisterRequest) -> Result<(), grpc::Error> {
    grpc::unary(kubelet, REGISTER, request, TIMEOUT).await
}

/// Returns the remedy for a directory that cannot be used.
pub(crate) fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; mount the node's /var/lib/kubelet/device-plugins there, or name it by --kubelet-dir"
        }
        io::ErrorKind::PermissionDenied => "; run as root in a privileged container",
        io::ErrorKind::ReadOnlyFilesystem => "; mount the directory writable",
        _ => "",
    }
}
