//! The release build: its directories, and the removal of their names from the programs.
//!
//! A program contains the paths of its sources, for messages of panics. These paths are replaced by names that are
//! equal on all machines: `/weft` for this repository, `/cargo` for packages of the registry. Only release builds have
//! these flags.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cluster::{Progress, run};
use serde_json::json;

use super::system::Compiler;
use super::{FOLDER, Library, Program};
use crate::{order, paths};

/// Names of directories in programs.
const SOURCES: &str = "/weft";
const TARGET: &str = "/weft/target";
const PACKAGES: &str = "/cargo";
/// Names of symbols that contain the types of their functions. The order of functions needs them.
const MANGLING: &str = "-Csymbol-mangling-version=v0";
/// Foreign flags would replace the flags of this repository.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// The directories of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sources: PathBuf,
    pub(super) target: PathBuf,
    /// Cargo's home.
    pub(super) home: PathBuf,
}

impl Place {
    /// Returns the directories of normal builds.
    pub(super) fn usual() -> anyhow::Result<Self> {
        let named = std::env::var_os("CARGO_HOME").filter(|value| !value.is_empty());
        let below = |home| Path::new(&home).join(".cargo");
        let home = named
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(below));
        Ok(Self {
            sources: paths::root(),
            target: paths::target(),
            home: home.context("unknown directory of Cargo's packages: set CARGO_HOME")?,
        })
    }

    /// Returns the path of a compiled program.
    pub(super) fn built(&self, program: Program) -> PathBuf {
        self.target
            .join(program.library.triple())
            .join("release")
            .join(program.name)
    }

    /// Returns the path of the assembled image.
    pub(super) fn archive(&self) -> PathBuf {
        self.target.join(FOLDER).join("weft.tar")
    }

    /// Returns the path of the linker's map of a program with an order of functions.
    pub(super) fn map(&self, program: Program) -> PathBuf {
        self.target.join(FOLDER).join(format!("{}.map", program.name))
    }

    /// Returns a remark if the order of functions is outdated.
    pub(super) fn is_stale(&self, program: Program) -> Option<String> {
        order::is_stale(&fs::read_to_string(self.map(program)).ok()?)
    }

    /// Builds static, optimised programs.
    pub(super) fn compile(&self, programs: &[Program], steps: &mut dyn Progress) -> anyhow::Result<()> {
        let dir = self.target.join(FOLDER);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let flags = self.flags(&self.registries(), &Compiler::installed()?);
        for program in programs {
            install(program.library, steps)?;
            steps.step(&format!("building {}, static and optimised", program.name));
            // Another command may be building too.
            let log = dir.join(format!("build-{}.log", std::process::id()));
            let mut cargo = self.command(*program, &flags);
            if program.is_ordered {
                cargo.args(order::flags(&self.map(*program))?);
            }
            run::watched(&mut cargo, &log, steps)?;
            let _ = fs::remove_file(&log);
        }
        Ok(())
    }

    fn command(&self, program: Program, flags: &[String]) -> Command {
        let mut cargo = paths::cargo();
        cargo.current_dir(&self.sources);
        cargo
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_HOME", &self.home);
        for name in FLAGS {
            cargo.env_remove(name);
        }
        // Appended to the flags of `.cargo/config.toml`.
        cargo.args(["--config", &format!("build.rustflags={}", json!(flags))]);
        cargo.args(["rustc", "--release", "--target", &program.library.triple()]);
        cargo.args(["--package", program.package, "--bin", program.name]);
        cargo.arg("--").args(program.flags);
        cargo
    }

    /// Returns the directories of unpacked packages. They are named after the registry, and therefore after a mirror.
    fn registries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.join("registry/src")).into_iter().flatten();
        let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.sort();
        found
    }

    /// Returns the names of all directories. If several match, the compiler uses the last one.
    fn flags(&self, registries: &[PathBuf], compiler: &Compiler) -> Vec<String> {
        // If the sources of the standard library are installed, the compiler would name their directory.
        let library = compiler.sysroot.join("lib/rustlib/src/rust");
        let revision = format!("/rustc/{}", compiler.revision);
        let fixed = [
            (&self.sources, SOURCES),
            (&self.target, TARGET),
            (&self.home, PACKAGES),
            (&library, revision.as_str()),
        ];
        let packages = registries.iter().map(|folder| (folder, PACKAGES));
        fixed
            .into_iter()
            .chain(packages)
            .map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()))
            .chain([MANGLING.to_owned()])
            .collect()
    }
}

/// Installs the standard library for a C library, if it is missing. The library for this machine came with the
/// compiler.
fn install(library: Library, steps: &mut dyn Progress) -> anyhow::Result<()> {
    let triple = library.triple();
    let there = Compiler::installed()?.sysroot.join("lib/rustlib").join(&triple);
    if there.is_dir() {
        return Ok(());
    }
    steps.step(&format!("installing the standard library for {triple}, once"));
    let mut rustup = Command::new("rustup");
    rustup.current_dir(paths::root()).args(["target", "add", &triple]);
    run::output(&mut rustup).with_context(|| {
        format!("the compiler has no standard library for {triple}, and rustup brings none")
    })?;
    Ok(())
}

/// Returns the files of this repository that are not ignored, including uncommitted changes.
pub(super) fn copy_sources(to: &Path) -> anyhow::Result<()> {
    let root = paths::root();
    let mut git = Command::new("git");
    git.current_dir(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = run::output(&mut git)?;
    for file in listed.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root.join(file), to.join(file));
        // The deletion of the file is not committed.
        if !from.exists() {
            continue;
        }
        let folder = to.parent().unwrap_or(Path::new(OsStr::new("/")));
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{CNI, PROGRAMS};

    fn place() -> Place {
        Place {
            sources: "/s".into(),
            target: "/t".into(),
            home: "/h".into(),
        }
    }

    #[test]
    fn directories_have_names_that_are_equal_on_all_machines() {
        let compiler = Compiler {
            version: "1.2.3".to_owned(),
            revision: "abc".to_owned(),
            sysroot: "/rust".into(),
        };
        let flags = place().flags(&["/h/registry/src/index.crates.io-1".into()], &compiler);
        assert_eq!(
            flags,
            [
                "--remap-path-prefix=/s=/weft",
                "--remap-path-prefix=/t=/weft/target",
                "--remap-path-prefix=/h=/cargo",
                "--remap-path-prefix=/rust/lib/rustlib/src/rust=/rustc/abc",
                "--remap-path-prefix=/h/registry/src/index.crates.io-1=/cargo",
                "-Csymbol-mangling-version=v0",
            ]
        );
    }

    #[test]
    fn program_is_built_with_its_flags_and_those_of_the_repository() {
        let command = place().command(CNI, &["-Cx=\"y\"".to_owned()]);
        let line = run::shown(&command);
        assert!(line.contains(" --locked --config "), "{line}");
        assert!(line.contains(r#"build.rustflags=["-Cx=\"y\""]"#), "{line}");
        assert!(
            line.ends_with(
                "-unknown-linux-musl --package plugins --bin weft-cni -- -Cpanic=abort -Copt-level=s"
            ),
            "{line}"
        );
        let cleared = |name: &str| {
            command
                .get_envs()
                .any(|(it, value)| it == name && value.is_none())
        };
        assert!(FLAGS.into_iter().all(cleared));
    }

    #[test]
    fn sources_are_copied_without_builds() {
        let dir = tempfile::tempdir().unwrap();
        copy_sources(dir.path()).unwrap();
        for file in ["Cargo.lock", "rust-toolchain.toml", ".cargo/config.toml"] {
            assert!(dir.path().join(file).is_file(), "{file}");
        }
        assert!(!dir.path().join("target").exists());
    }

    #[test]
    fn programs_have_the_paths_of_cargo() {
        let [weft, cni] = PROGRAMS.map(|program| place().built(program));
        let usual = format!("/t/{}", paths::triple());
        assert_eq!(weft, Path::new(&usual).join("release/weft"));
        let musl = usual.replace("gnu", "musl");
        assert_eq!(cni, Path::new(&musl).join("release/weft-cni"));
    }
}
