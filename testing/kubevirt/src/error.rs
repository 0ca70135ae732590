//! What can go wrong while KubeVirt is brought up.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster could not be worked with, or a program not be built.
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
    /// The objects of an installation are not what they should be.
    #[error("{} does not hold the objects of KubeVirt", path.display())]
    Objects {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The cluster is older than what it is asked for.
    #[error(
        "the API server of cluster {0} has no front proxy, because the cluster is older than this program: remove it \
         with `cargo xtask cluster down`, and bring it up again"
    )]
    NoFrontProxy(String),
}
