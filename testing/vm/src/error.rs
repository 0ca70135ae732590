//! What can go wrong.

use std::io;
use std::path::Path;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a machine could not be made, or did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot have one; the text says why, and what to do.
    #[error("{0}")]
    Unavailable(String),
    /// What it is made of could not be brought in.
    #[error(transparent)]
    Packages(cluster::Error),
    /// A file or process could not be worked with.
    #[error("cannot {what}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel's package is not as expected.
    #[error("the kernel in {root} {lack}")]
    Kernel {
        /// Where it was unpacked.
        root: String,
        /// What is wrong with it.
        lack: String,
    },
    /// The guest did not run its tests to the end.
    #[error("{what}; the end of its console:{console}")]
    Guest {
        /// What happened.
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

/// Names what was tried.
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
