//! Places in this repository.

use std::path::{Path, PathBuf};

/// Root of the repository that this program was built from.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Where Cargo builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Where Cargo puts programs of a profile: it is told to build for a target that is named (`.cargo/config.toml`).
pub(crate) fn built(profile: &str) -> PathBuf {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    target().join(triple).join(profile)
}

/// Cargo itself, the one that runs this program if there is one. A `Cargo.lock` that is not up to date is an error.
pub(crate) fn cargo() -> std::process::Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.arg("--locked").current_dir(root());
    // Set by the Cargo that runs this program, and wrong for every other package.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}
