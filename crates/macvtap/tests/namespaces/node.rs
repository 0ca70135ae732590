//! A node for tests: links, kubelet's directory, devices, and the plugin.

use kube_kit::shutdown::Shutdown;
use linux::link::{Link, LinkKind, LinkSpec};
use linux::netns::unshare_network;
use linux::route::Socket;
use macvtap::{Config, Directories};
use std::ffi::OsStr;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::{JoinHandle, LocalSet};

/// A deadline that only a defect exceeds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for a future, up to the deadline.
pub(crate) async fn soon<T>(name: &str, coming: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(DEADLINE, coming).await;
    waited.unwrap_or_else(|_| panic!("no {name} within {DEADLINE:?}"))
}

/// Waits until a condition holds.
pub(crate) async fn until(name: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(name, poll).await;
}

/// A node whose only link is `lo`.
pub(crate) struct Node {
    folder: TempDir,
    pub(crate) socket: Socket,
}

impl Node {
    /// Runs `test` on a thread in a new network namespace. Without root, prints the reason and returns.
    pub(crate) fn run<F>(name: &str, test: impl FnOnce(Node) -> F + Send + 'static)
    where
        F: Future<Output = ()>,
    {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {name} needs root to make network namespaces");
            return;
        }
        let thread = std::thread::spawn(move || {
            unshare_network().unwrap();
            let folder = tempfile::tempdir().unwrap();
            for dir in ["kubelet", "dev"] {
                std::fs::create_dir(folder.path().join(dir)).unwrap();
            }
            let node = Node {
                folder,
                socket: Socket::open().unwrap(),
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(LocalSet::new().run_until(test(node)));
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    pub(crate) fn kubelet_dir(&self) -> PathBuf {
        self.folder.path().join("kubelet")
    }

    pub(crate) fn device_dir(&self) -> PathBuf {
        self.folder.path().join("dev")
    }

    /// Starts the plugin with a configuration.
    pub(crate) fn plugin(&self, config: &str) -> Running {
        let config = Config::parse(Some(OsStr::new(config))).unwrap();
        let directories = Directories {
            kubelet_dir: self.kubelet_dir(),
            device_dir: self.device_dir(),
        };
        let stop = Shutdown::new();
        let flag = stop.clone();
        let task = tokio::task::spawn_local(async move { macvtap::serve(config, directories, &flag).await });
        Running { stop, task }
    }

    /// Creates a lower device, up.
    pub(crate) fn lower(&mut self, name: &str) -> Link {
        let peer_name = format!("{name}-peer");
        let kind = LinkKind::Veth {
            peer_name: &peer_name,
            peer_ns: None,
        };
        self.socket.create_link(&LinkSpec::new(name, kind)).unwrap();
        let link = self.socket.link_by_name(name).unwrap();
        self.socket.set_up(&link).unwrap();
        link
    }

    /// Names of the sockets in kubelet's directory.
    pub(crate) fn sockets(&self) -> Vec<String> {
        names(&self.kubelet_dir())
    }
}

/// Names of the files in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A running plugin.
pub(crate) struct Running {
    stop: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Stops the plugin like SIGTERM.
    pub(crate) async fn stop(self) {
        self.stop.trigger();
        soon("end of the plugin", self.task).await.unwrap().unwrap();
    }
}
