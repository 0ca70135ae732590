//! Puts the CNI binary on a node, under the names that container runtimes and network definitions use.
//!
//! ```text
//! image /weft-cni ──copy, fsync, sha256──> <dir>/.weft-….tmp ──hard link, rename──> <dir>/cnv-bridge
//!                                                                                   <dir>/cnv-tuning
//!                                                   symlink, rename ──────────────> <dir>/bridge -> …/cnv-bridge
//! ```
//!
//! * [`plugins`] serves the workloads of the CNI plugins: copies and links, and stays to repair them;
//! * [`multus`] serves multus' init container.
//!
//! Everything is put in place by a rename, so that a runtime never sees half a file, and a binary that is running
//! ("text file busy") is replaced all the same.

pub mod multus;
pub mod plugins;

mod copy;
mod label;
mod names;

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file could not be put in place.
#[derive(Debug, Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What was written is not what was read: a full or failing disk.
    #[error("checksum of {} is wrong after copying", path.display())]
    Corrupt {
        /// The copy.
        path: PathBuf,
    },
    /// The name can't be that of a file in the directory.
    #[error("'{name}' is not a plugin name")]
    InvalidName {
        /// As given.
        name: String,
    },
    /// `--check` found something missing or different.
    #[error("not installed: {}", paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NotInstalled {
        /// What is missing or different.
        paths: Vec<PathBuf>,
    },
    /// `install_multus` was not told what to install.
    #[error("--type is missing or --type has invalid value")]
    InvalidType,
}

/// Gives an I/O error the file that it is about.
trait About<T> {
    fn about(self, doing: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> About<T> for io::Result<T> {
    fn about(self, doing: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io {
            doing,
            path: path.to_path_buf(),
            source,
        })
    }
}

#[cfg(test)]
mod testing {
    use std::io;
    use std::time::{Duration, Instant};

    /// Starts a program that was written a moment ago. A process that another test starts at the same time may hold
    /// the file open for writing until it is its own program.
    pub(crate) fn when_free<T>(mut start: impl FnMut() -> io::Result<T>) -> T {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            match start() {
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline =>
                {
                    std::thread::yield_now();
                }
                other => return other.expect("it runs"),
            }
        }
    }
}
