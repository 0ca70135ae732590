//! `weft install-multus` and `install_multus`: the multus binaries on a node (multus.md §8.2).
//!
//! The shim of the daemon and `passthru` are the small binary of all plugins; the plugin of thin mode uses the API
//! server itself, so it is the large one.

use crate::copy::{self, Checksum, Staged};
use crate::names::{BINARY, MULTUS_DIRECTORY, PASSTHRU, SHIM, THIN, WEFT};
use crate::{About, Error};
use clap::Args as ClapArgs;
use std::fs;
use std::path::{Path, PathBuf};

/// Install the multus binaries on this node
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Directory of CNI binaries in this container
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,

    /// The same as --to, with the name of upstream's program; needs --type
    #[arg(short, long, value_name = "DIR", default_value = MULTUS_DIRECTORY, conflicts_with = "to")]
    pub dest_dir: PathBuf,

    /// Which multus: thick (the shim of a daemon) or thin
    #[arg(short = 't', long = "type", value_name = "thick|thin")]
    pub kind: Option<String>,

    /// Install this file under every name, instead of those of the image
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
}

/// Copies the binaries, and prints each. Blocks.
///
/// # Errors
/// If the type is missing or unknown, or a file cannot be written.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        to,
        dest_dir,
        kind,
        from,
    } = args;
    let plugin = plugin(kind.as_deref(), to.is_some())?;
    let dir = to.unwrap_or(dest_dir);
    for name in [plugin, PASSTHRU] {
        let from = from.as_deref().unwrap_or_else(|| binary(name));
        install(from, &dir, name)?;
        println!("multus {name} copy succeeded!");
    }
    Ok(())
}

/// The plugin of a type. Upstream's program requires a type; with `--to` the default is thick.
fn plugin(kind: Option<&str>, own_form: bool) -> Result<&'static str, Error> {
    match kind {
        Some("thick") => Ok(SHIM),
        None if own_form => Ok(SHIM),
        Some("thin") => Ok(THIN),
        _ => Err(Error::InvalidType),
    }
}

/// The image's binary of a plugin.
fn binary(name: &str) -> &'static Path {
    Path::new(if name == THIN { WEFT } else { BINARY })
}

fn install(from: &Path, dir: &Path, name: &str) -> Result<(), Error> {
    fs::create_dir_all(dir).about("create", dir)?;
    copy::sweep(dir);
    Staged::copy(from, dir, Checksum::of(from)?)?.place(name)?;
    copy::sync(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn args(dir: &Path, from: &Path) -> Args {
        Args {
            to: Some(dir.to_path_buf()),
            dest_dir: PathBuf::from("/nowhere"),
            kind: None,
            from: Some(from.to_path_buf()),
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn running_shim_is_replaced() {
        // multus#76
        let root = tempfile::tempdir().expect("a directory");
        let (bin, from) = (root.path().join("bin"), root.path().join("weft-cni"));
        fs::create_dir(&bin).expect("a directory");
        let shim = bin.join("multus-shim");
        fs::copy("/bin/cat", &shim).expect("a binary");
        let mut running = crate::testing::when_free(|| Command::new(&shim).stdin(Stdio::piped()).spawn());
        let busy = fs::OpenOptions::new()
            .write(true)
            .open(&shim)
            .expect_err("the file is busy");
        assert_eq!(busy.kind(), std::io::ErrorKind::ExecutableFileBusy);
        fs::write(&from, "new").expect("a binary");
        run(args(&bin, &from)).expect("installed");
        assert_eq!(fs::read_to_string(&shim).expect("a file"), "new");
        assert_eq!(names(&bin), ["multus-shim", "passthru"]);
        drop(running.stdin.take());
        assert!(
            running.wait().expect("it ends").success(),
            "the running one was not disturbed"
        );
    }

    #[test]
    fn type_selects_installed_plugin() {
        for (kind, own_form, expected) in [
            (Some("thick"), false, Some("multus-shim")),
            (Some("thin"), false, Some("multus")),
            (None, true, Some("multus-shim")),
            (None, false, None),
            (Some("fat"), true, None),
        ] {
            assert_eq!(plugin(kind, own_form).ok(), expected);
        }
        let error = plugin(None, false).expect_err("an error");
        assert_eq!(error.to_string(), "--type is missing or --type has invalid value");
    }

    #[test]
    fn plugin_is_copied_from_its_binary() {
        for (name, from) in [
            ("multus-shim", "/weft-cni"),
            ("passthru", "/weft-cni"),
            ("multus", "/weft"),
        ] {
            assert_eq!(binary(name), Path::new(from));
        }
    }

    #[test]
    fn missing_binary_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        let from = root.path().join("weft-cni");
        let error = run(args(root.path(), &from)).expect_err("an error");
        assert_eq!(error.to_string(), format!("cannot open {}", from.display()));
        assert!(names(root.path()).is_empty());
    }
}
