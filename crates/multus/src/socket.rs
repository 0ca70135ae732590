//! The daemon's socket: put in place in one step, kept there, and never removed (multus.md §7.2, §7.6).
//!
//! The established daemon removes the path of its socket when it ends, and with it that of a daemon that came meanwhile.
//! So whoever listens here watches the directory, and listens anew when nothing is at the path any more.

use axum::serve::Listener;
use kube_kit::watch_dir::{Change, DirWatcher};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// How long the path may be empty: another daemon may be about to listen.
const VACANCY: Duration = Duration::from_secs(1);
/// Pause after a connection that could not be accepted, for want of file descriptors for instance.
const PAUSE: Duration = Duration::from_secs(1);

/// Device and inode of a file or directory.
pub(crate) type Identity = (u64, u64);

/// What lies at a path, if anything does.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The place of a socket, for whoever wants to know whose it is.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    ours: Arc<Mutex<Option<Identity>>>,
}

impl Place {
    /// Whether our socket is there.
    pub fn is_ours(&self) -> bool {
        let found = identity(&self.path);
        found.is_some() && found == *kube_kit::lock(&self.ours)
    }

    /// Whether another daemon listens there: what is at the usual places is now its own.
    pub fn is_taken(&self) -> bool {
        identity(&self.path).is_some() && !self.is_ours()
    }
}

/// A socket at a path, for as long as nobody else is there.
pub struct Socket {
    place: Place,
    listener: UnixListener,
    watcher: Option<DirWatcher>,
    dir: Option<Identity>,
}

impl Socket {
    /// Listens at `path`, whoever listened there before. Needs a running tokio runtime.
    pub fn at(path: &Path) -> io::Result<Self> {
        let listener = listen(path)?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        let watcher = DirWatcher::new().and_then(|mut watcher| watcher.add(dir).map(|()| watcher));
        let watcher = watcher.inspect_err(
            |error| tracing::warn!(%error, dir = %dir.display(), "whether the socket stays is not watched"),
        );
        Ok(Self {
            place: Place {
                path: path.to_owned(),
                ours: Arc::new(Mutex::new(identity(path))),
            },
            listener,
            watcher: watcher.ok(),
            dir: identity(dir),
        })
    }

    /// Its place.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Listens anew when nothing is at the path, unless somebody replaced the directory: he will be there soon.
    fn renew(&mut self) {
        let Place { path, ours } = &self.place;
        let is_same = path.parent().is_some_and(|dir| identity(dir) == self.dir);
        if fs::symlink_metadata(path).is_ok() || !is_same {
            return;
        }
        match listen(path) {
            Ok(listener) => {
                tracing::warn!(socket = %path.display(), "somebody removed the socket, listening anew");
                self.listener = listener;
                *kube_kit::lock(ours) = identity(path);
            }
            Err(error) => tracing::error!(%error, socket = %path.display(), "cannot listen anew"),
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
                () = gone(&mut self.watcher, &self.place.path) => {
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

/// Waits until what was at the path is gone.
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
                tracing::warn!(%error, "whether the socket stays is not watched any more");
                *watcher = None;
            }
        }
    }
    futures::future::pending::<()>().await;
}

/// Listens at `path`, mode 0600. What lies there is replaced in one step, whoever listened there before; the directory
/// stays, so that whoever mounts it finds the new socket. An empty directory at `path` is what kubelet makes of a mount
/// whose socket is not there: it goes.
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

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_the_directory_stays() {
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
    async fn nothing_but_the_socket_is_at_its_path() {
        // multus#99
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("multus.sock");
        fs::create_dir(&path).unwrap();
        let _listener = listen(&path).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("somebody's"), "").unwrap();
        assert_eq!(
            listen(&path).unwrap_err().kind(),
            io::ErrorKind::DirectoryNotEmpty
        );
        assert!(path.join("somebody's").exists());
    }

    #[tokio::test]
    async fn whose_place_it_is() {
        // multus#99
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("multus.sock");
        let first = Socket::at(&path).unwrap().place();
        assert!(first.is_ours() && !first.is_taken());
        let second = Socket::at(&path).unwrap().place();
        assert!(second.is_ours() && !second.is_taken());
        assert!(!first.is_ours() && first.is_taken());
        fs::remove_file(&path).unwrap();
        assert!(!second.is_ours() && !second.is_taken());
    }
}
