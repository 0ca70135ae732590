//! What can go wrong around a run of the suite.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster could not be worked with, or a program not be built or run.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// A file could not be worked with.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The suite ended without a report that can be read.
    #[error("{} is not a report of Ginkgo", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The suite asks for no image of this name.
    #[error("Kubernetes' tests name no image {0}")]
    Image(&'static str),
    /// Nothing would be run.
    #[error("no spec that is not left out matches the focus")]
    NothingSelected,
    /// The suite could not be started, or ended before its first spec.
    #[error("the tests ended without a report ({status}); the end of {}:{output}", log.display())]
    NoReport {
        /// How the program ended.
        status: String,
        /// Where its output is.
        log: PathBuf,
        /// The end of it.
        output: String,
    },
    /// The file of specs to leave out is malformed.
    #[error("left-out.txt, line {line}: {what}")]
    LeftOut {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// Names what was tried, and on which path.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: &std::path::Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, what: &'static str, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Error::File {
            what,
            path: path.to_owned(),
            source,
        })
    }
}
