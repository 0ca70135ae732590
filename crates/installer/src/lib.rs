//! Installs the CNI binary on a node, under the names that container runtimes and network definitions use.
//!
//! ```text
//! image /weft-cni ──copy, fsync, sha256──> <dir>/.weft-….tmp ──hard link, rename──> <dir>/cnv-bridge
//!                                                                                   <dir>/cnv-tuning
//!                                                   symlink, rename ──────────────> <dir>/bridge -> …/cnv-bridge
//! ```
//!
//! * [`plugins`] is for the workloads of the CNI plugins: it installs copies and links, and repairs them;
//! * [`multus`] is for multus' init container.
//!
//! Each file is installed with a rename, so that a runtime never executes a partial file, and a running binary
//! ("text file busy") can be replaced.

pub mod multus;
pub mod plugins;

mod copy;
mod label;
mod names;

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A file that cannot be installed.
#[derive(Debug, Error)]
pub enum Error {
    /// The file system returned an error.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The written content differs from the source: the disk is full or failing.
    #[error("checksum of {} is wrong after copying", path.display())]
    Corrupt {
        /// The copy.
        path: PathBuf,
    },
    /// The name is not a valid file name.
    #[error("'{name}' is not a plugin name")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// `--check` found missing or different files.
    #[error("not installed: {}", paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NotInstalled {
        /// The missing or different files.
        paths: Vec<PathBuf>,
    },
    /// `install_multus` without a valid type.
    #[error("--type is missing or --type has invalid value")]
    InvalidType,
}

/// Adds the file to an I/O error.
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

    /// Starts a program that was just written. A process that another test starts at the same time may hold the file
    /// open for writing until it executes its own program.
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
