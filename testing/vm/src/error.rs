//! Errors of virtual machines.

use std::io;
use std::path::Path;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A machine could not be created, or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Virtual machines are unavailable here. The text names the reason and the remedy.
    #[error("{0}")]
    Unavailable(String),
    /// The download of the parts failed.
    #[error(transparent)]
    Packages(cluster::Error),
    /// An operation on a file or process failed.
    #[error("cannot {what}")]
    Io {
        /// The operation, with the path.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel's package is incomplete.
    #[error("the kernel in {root} {lack}")]
    Kernel {
        /// Directory of the unpacked package.
        root: String,
        /// The defect.
        lack: String,
    },
    /// The guest did not finish its tests.
    #[error("{what}; the end of its console:{console}")]
    Guest {
        /// The failure.
        what: String,
        /// The last lines, starting with a line break.
        console: String,
    },
}

impl From<cluster::Error> for Error {
    fn from(error: cluster::Error) -> Self {
        match error {
            cluster::Error::Missing(text) => Self::Unavailable(text),
            other => Self::Packages(other),
        }
    }
}

/// Adds the failed operation to an error.
pub(crate) trait At<T> {
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: format!("{what} {}", path.display()),
            source,
        })
    }
}
