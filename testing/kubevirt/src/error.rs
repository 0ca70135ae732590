//! Errors of the start of KubeVirt.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the start of KubeVirt.
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
    /// The objects of an installation are malformed.
    #[error("{} does not hold the objects of KubeVirt", path.display())]
    Objects {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The cluster is too old.
    #[error(
        "the API server of cluster {0} has no front proxy, because an older version created the cluster: remove it \
         with `cargo xtask cluster down`, and start it again"
    )]
    NoFrontProxy(String),
}
