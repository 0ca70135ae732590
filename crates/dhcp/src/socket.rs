//! The socket for plugins.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tokio::net::UnixListener;

const FOLDER_MODE: u32 = 0o700;
const SOCKET_MODE: u32 = 0o600;

/// A listener and its file.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) listener: UnixListener,
    /// `None` for a socket that a service manager owns.
    file: Option<PathBuf>,
}

/// Listens on the socket that a service manager passed, else on `path`.
pub(crate) fn listen(path: &Path) -> anyhow::Result<Listener> {
    let mut passed = linux::process::take_passed_sockets();
    if passed.len() > 1 {
        bail!("Too many ({}) FDs passed through socket activation", passed.len());
    }
    let (listener, file) = match passed.pop() {
        Some(socket) => (StdListener::from(socket), None),
        None => (bind(path)?, Some(path.to_owned())),
    };
    listener.set_nonblocking(true).context("cannot listen")?;
    let listener = UnixListener::from_std(listener).context("cannot listen")?;
    Ok(Listener { listener, file })
}

fn bind(path: &Path) -> anyhow::Result<StdListener> {
    let failed = || format!("cannot listen on {}", path.display());
    if let Some(folder) = path.parent() {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE);
        builder.create(folder).with_context(failed)?;
    }
    remove_stale(path).with_context(failed)?;
    let listener = StdListener::bind(path).with_context(failed)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).with_context(failed)?;
    Ok(listener)
}

/// Removes the socket of a dead daemon. An error if a process listens, or if the file is no socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the path is no socket"));
    }
    match StdStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            "another DHCP daemon listens there",
        )),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The next daemon removes the file if this fails.
            let _ = fs::remove_file(file);
        }
    }
}

/// The file with this process's id. It exists until the value is dropped.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    pub(crate) fn write(path: &Path) -> anyhow::Result<Self> {
        fs::write(path, std::process::id().to_string())
            .with_context(|| format!("Error writing pidfile \"{}\"", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A missing file is fine: the goal is its absence.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/s");
        let first = bind(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        let error = format!("{:#}", bind(&path).unwrap_err());
        assert_eq!(
            error,
            format!(
                "cannot listen on {}: another DHCP daemon listens there",
                path.display()
            )
        );
        drop(first);
        bind(&path).unwrap();
    }

    #[test]
    fn a_file_in_the_sockets_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "mine").unwrap();
        let error = format!("{:#}", bind(&path).unwrap_err());
        assert!(error.ends_with("the path is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
