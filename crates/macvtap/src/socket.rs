//! Socket files: a plugin's own socket, which is removed with the plugin, and the identity of other sockets.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Distinguishes a file from a later file at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// Time of the last change in seconds and nanoseconds, for a socket that of its creation. File systems reuse inode
    /// numbers.
    modified: (i64, i64),
}

impl Identity {
    /// Returns the identity of the file at a path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// The plugin's socket. A drop removes the file, unless another file has its path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl SocketFile {
    /// Listens at a path, and replaces an existing file.
    pub(crate) fn bind(path: &Path) -> io::Result<(Self, UnixListener)> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let file = Self {
            path: path.to_owned(),
            identity: Identity::of(path)?,
        };
        Ok((file, listener))
    }

    /// Returns true if clients can reach this socket by the path.
    pub(crate) fn is_there(&self) -> bool {
        Identity::of(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a socket");
        }
    }
}
