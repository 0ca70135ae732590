//! Programs of this build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `weft-cni`: every plugin of ours, and the shim.
pub(crate) fn weft_cni() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "plugins", "--bin", "weft-cni"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "weft-cni does not build");
        // <target>/<profile>/deps/<this test>
        let this = std::env::current_exe().unwrap();
        this.parent().and_then(Path::parent).unwrap().join("weft-cni")
    })
}
