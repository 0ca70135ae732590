//! The daemon's socket: created atomically, recreated when it is removed, and never deleted (multus.md §7.2, §7.6).
//!
//! The upstream daemon removes its socket path when it ends, even if the path is another daemon's socket by then. So
//! this daemon watches the directory, and listens again when its socket is gone.

use axum::serve::Listener;
use kube_kit::watch_dir::{Change, DirWatcher};
use linux::files::{Identity, identity};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// Delay before a removed socket is recreated: another daemon may be about to listen.
const VACANCY: Duration = Duration::from_secs(1);
/// Delay after a failed accept, for example without free file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether this daemon owns the socket at a path. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct SocketOwnership {
    path: PathBuf,
    ours: Arc<Mutex<Option<Identity>>>,
}

impl SocketOwnership {
    /// Whether the socket at the path is this daemon's.
    pub(crate) fn is_ours(&self) -> bool {
        let found = identity(&self.path);
        found.is_some() && found == *kube_kit::lock(&self.ours)
    }

    /// Whether the socket at the path is another daemon's. That daemon then owns the other files too.
    pub(crate) fn is_taken(&self) -> bool {
        identity(&self.path).is_some() && !self.is_ours()
    }
}

/// A listening socket at a path.
pub(crate) struct Socket {
    ownership: SocketOwnership,
    listener: UnixListener,
    watcher: Option<DirWatcher>,
    dir: Option<Identity>,
}

impl Socket {
    /// Listens at `path`; replaces an existing socket. Needs a running tokio runtime.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let listener = listen(path)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        let watcher = DirWatcher::new().and_then(|mut watcher| watcher.add(dir).map(|()| watcher));
        let watcher = watcher.inspect_err(
            |error| tracing::warn!(%error, dir = %dir.display(), "cannot watch the socket directory; a removed socket will not be recreated"),
        );
        Ok(Self {
            ownership: SocketOwnership {
                path: path.to_owned(),
                ours: Arc::new(Mutex::new(identity(path))),
            },
            listener,
            watcher: watcher.ok(),
            dir: identity(dir),
        })
    }

    /// The ownership of its path.
    pub(crate) fn ownership(&self) -> SocketOwnership {
        self.ownership.clone()
    }

    /// Recreates a removed socket, unless the directory was replaced: its new owner will listen there.
    fn renew(&mut self) {
        let SocketOwnership { path, ours } = &self.ownership;
        let is_same = path.parent().is_some_and(|dir| identity(dir) == self.dir);
        if fs::symlink_metadata(path).is_ok() || !is_same {
            return;
        }
        match listen(path) {
            Ok(listener) => {
                tracing::warn!(socket = %path.display(), "the socket was removed, recreating it");
                self.listener = listener;
                *kube_kit::lock(ours) = identity(path);
            }
            Err(error) => tracing::error!(%error, socket = %path.display(), "cannot recreate the socket"),
        }
    }
}

impl Listener for Socket {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => return accepted,
                    Err(error) => {
                        tracing::error!(%error, "cannot accept a connection");
                        sleep(PAUSE).await;
                    }
                },
                () = gone(&mut self.watcher, &self.ownership.path) => {
                    sleep(VACANCY).await;
                    self.renew();
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Waits until the socket is removed.
async fn gone(watcher: &mut Option<DirWatcher>, path: &Path) {
    while let Some(watched) = watcher {
        match watched.next().await {
            Ok(changes) => {
                let is_gone = changes.iter().any(|event| match event.change {
                    Change::Written => false,
                    Change::Gone => event.path == path,
                    Change::Unknown => true,
                });
                if is_gone && fs::symlink_metadata(path).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch the socket directory any longer; a removed socket will not be recreated");
                *watcher = None;
            }
        }
    }
    futures::future::pending::<()>().await;
}

/// Listens at `path`, mode 0600. Replaces an existing file atomically, and keeps the directory, so that mounts of it
/// see the new socket. Removes an empty directory at `path`: kubelet creates one for a mount whose socket is missing.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    cni::files::remove_if_present(&temporary)?;
    let listener = UnixListener::bind(&temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600))?;
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        fs::remove_dir(path)?;
    }
    fs::rename(&temporary, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[tokio::test]
    async fn stale_socket_is_replaced_in_same_directory() {
        // multus#65
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("multus/multus.sock");
        drop(listen(&path).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        fs::write(path.with_file_name("other"), "").unwrap();
        let first = fs::symlink_metadata(path.parent().unwrap()).unwrap();
        let _listener = listen(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(path.with_file_name("other").exists(), "the directory is the same");
        assert_eq!(
            first.ino(),
            fs::symlink_metadata(path.parent().unwrap()).unwrap().ino()
        );
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn directory_at_socket_path_is_replaced_only_if_empty() {
        // multus#99
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("multus.sock");
        fs::create_dir(&path).unwrap();
        let _listener = listen(&path).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("foreign-file"), "").unwrap();
        assert_eq!(
            listen(&path).unwrap_err().kind(),
            io::ErrorKind::DirectoryNotEmpty
        );
        assert!(path.join("foreign-file").exists());
    }

    #[tokio::test]
    async fn ownership_follows_socket() {
        // multus#99
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("multus.sock");
        let first = Socket::at(&path).unwrap().ownership();
        assert!(first.is_ours() && !first.is_taken());
        let second = Socket::at(&path).unwrap().ownership();
        assert!(second.is_ours() && !second.is_taken());
        assert!(!first.is_ours() && first.is_taken());
        fs::remove_file(&path).unwrap();
        assert!(!second.is_ours() && !second.is_taken());
    }
}
