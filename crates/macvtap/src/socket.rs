//! Socket files: a plugin's own, which goes with the plugin, and a means to notice a new one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Tells a file from a later one at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds. File systems use inode numbers again.
    modified: (i64, i64),
}

impl Identity {
    /// Of the file at a path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// A socket file that is ours. Dropping it removes the file, unless another one has its path by now.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl SocketFile {
    /// Listens at a path, in place of what was there.
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

    /// Whether clients still reach us by the path.
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
