//! File names.

/// The binary of all plugins in the image.
pub(crate) const BINARY: &str = "/weft-cni";

/// The binary in the image that contains, among others, the plugin of multus' thin mode.
pub(crate) const WEFT: &str = "/weft";

/// Prefix of the installed plugins, so that a plugin of the platform can stay beside them.
pub(crate) const PREFIX: &str = "cnv-";

/// Prefix of files that are being written.
pub(crate) const TEMPORARY_PREFIX: &str = ".weft-";
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Mount path of the node's directory of binaries in multus' manifests.
pub(crate) const MULTUS_DIRECTORY: &str = "/host/opt/cni/bin";

/// Plugins of multus: the one of the daemon, the one of thin mode, and the first of auxiliary chains.
pub(crate) const SHIM: &str = "multus-shim";
pub(crate) const THIN: &str = "multus";
pub(crate) const PASSTHRU: &str = "passthru";
