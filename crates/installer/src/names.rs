//! File names.

/// The binary in our image that is every plugin.
pub(crate) const BINARY: &str = "/weft-cni";

/// Plugins that we bring have this before their name, so that one of the platform's can stay beside them.
pub(crate) const PREFIX: &str = "cnv-";

/// Where a file stands while it is being written.
pub(crate) const TEMPORARY_PREFIX: &str = ".weft-";
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Where multus' manifests mount the node's directory of binaries.
pub(crate) const MULTUS_DIRECTORY: &str = "/host/opt/cni/bin";
