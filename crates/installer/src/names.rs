//! File names.

/// The binary in our image that is every plugin.
pub(crate) const BINARY: &str = "/weft-cni";

/// The binary in our image that is, among others, the plugin of multus' thin mode.
pub(crate) const WEFT: &str = "/weft";

/// Plugins that we bring have this before their name, so that one of the platform's can stay beside them.
pub(crate) const PREFIX: &str = "cnv-";

/// Where a file stands while it is being written.
pub(crate) const TEMPORARY_PREFIX: &str = ".weft-";
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Where multus' manifests mount the node's directory of binaries.
pub(crate) const MULTUS_DIRECTORY: &str = "/host/opt/cni/bin";

/// Plugins of multus: the one that talks to a daemon, the one that does without, and the first of auxiliary chains.
pub(crate) const SHIM: &str = "multus-shim";
pub(crate) const THIN: &str = "multus";
pub(crate) const PASSTHRU: &str = "passthru";
