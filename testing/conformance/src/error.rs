//! Errors of a run of the suite.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a run of the suite.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on the cluster, or a build, failed.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// An operation on a file failed.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The report of the suite is malformed.
    #[error("{} is not a report of Ginkgo", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The suite has no image with this name.
    #[error("Kubernetes' tests name no image {0}")]
    Image(&'static str),
    /// No spec would run.
    #[error("the focus matches no spec that is not excluded")]
    NothingSelected,
    /// The suite could not be started, or ended before its first spec.
    #[error("the tests ended without a report ({status}); the end of {}:{output}", log.display())]
    NoReport {
        /// Exit status of the program.
        status: String,
        /// File with its output.
        log: PathBuf,
        /// The end of the output.
        output: String,
    },
    /// The file of excluded specs is malformed.
    #[error("excluded.txt, line {line}: {what}")]
    Excluded {
        /// Line number, counted from 1.
        line: usize,
        /// The defect.
        what: &'static str,
    },
}

/// Adds the failed operation and its path to an error.
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
