//! The socket file of a plugin, which goes with the plugin.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// A socket file that is ours. Dropping it removes the file, unless another one has its path by now.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
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
            identity: identity(path)?,
        };
        Ok((file, listener))
    }

    /// Whether clients still reach us by the path.
    pub(crate) fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
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

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
