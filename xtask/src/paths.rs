//! Paths in this repository, and the tools that build it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository that this program was built from.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Returns Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Cargo's explicit target (`.cargo/config.toml`), which is this machine.
pub(crate) fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Returns a command for Cargo: that of this run, if there is one. An outdated `Cargo.lock` is an error.
pub(crate) fn cargo() -> Command {
    let mut command = prepared(Command::new(program()));
    command.arg("--locked");
    command
}

/// Returns the same command with lower priority. The caller adds all arguments.
pub(crate) fn cargo_behind() -> Command {
    let mut command = prepared(Command::new("nice"));
    command.arg(program());
    command
}

fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn prepared(mut command: Command) -> Command {
    command.current_dir(root());
    // Set by the Cargo that runs this program, and wrong for other packages.
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
