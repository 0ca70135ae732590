//! Programs of this build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `weft-cni`: every plugin of ours, and the shim.
pub(crate) fn weft_cni() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("plugins", "weft-cni"))
}

/// A program of a package. `cargo xtask test` has built it; elsewhere it is built here.
pub(crate) fn program(package: &str, name: &str) -> PathBuf {
    if std::env::var_os("WEFT_BUILT").is_none() {
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--locked",
                "--quiet",
                "--package",
                package,
                "--bin",
                name,
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "{name} does not build");
    }
    // <target>/<profile>/deps/<this test>
    let this = std::env::current_exe().unwrap();
    this.parent().and_then(Path::parent).unwrap().join(name)
}
