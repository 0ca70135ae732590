//! The build that ships: in which folders it works, and how their names stay out of the programs.
//!
//! A program tells the place of its sources in each message of a panic. Those places get names that are the same on every
//! machine: `/weft` for this repository, `/cargo` for packages of the registry. The flags for it are those of the release
//! profile's builds alone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cluster::{Progress, run};
use serde_json::json;

use super::system::Compiler;
use super::{FOLDER, Library, Program};
use crate::paths;

/// Names of places in programs.
const SOURCES: &str = "/weft";
const TARGET: &str = "/weft/target";
const PACKAGES: &str = "/cargo";
/// Flags of somebody else would take the place of those of this repository.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// The folders of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sources: PathBuf,
    pub(super) target: PathBuf,
    /// Cargo's own.
    pub(super) home: PathBuf,
}

impl Place {
    /// The folders of everyday builds.
    pub(super) fn usual() -> anyhow::Result<Self> {
        let named = std::env::var_os("CARGO_HOME").filter(|value| !value.is_empty());
        let below = |home| Path::new(&home).join(".cargo");
        let home = named
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(below));
        Ok(Self {
            sources: paths::root(),
            target: paths::target(),
            home: home.context("cannot tell where Cargo keeps packages: set CARGO_HOME")?,
        })
    }

    /// A program, once it is compiled.
    pub(super) fn built(&self, program: Program) -> PathBuf {
        self.target
            .join(program.library.triple())
            .join("release")
            .join(program.name)
    }

    /// Builds programs, static and optimised.
    pub(super) fn compile(&self, programs: &[Program], steps: &mut dyn Progress) -> anyhow::Result<()> {
        let dir = self.target.join(FOLDER);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let flags = self.flags(&self.registries(), &Compiler::installed()?);
        for program in programs {
            install(program.library, steps)?;
            steps.step(&format!("building {}, static and optimised", program.name));
            // Another command may be building too.
            let log = dir.join(format!("build-{}.log", std::process::id()));
            run::watched(&mut self.command(*program, &flags), &log, steps)?;
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
        // Added to the flags of `.cargo/config.toml`.
        cargo.args(["--config", &format!("build.rustflags={}", json!(flags))]);
        cargo.args(["rustc", "--release", "--target", &program.library.triple()]);
        cargo.args(["--package", program.package, "--bin", program.name]);
        cargo.arg("--").args(program.flags);
        cargo
    }

    /// Folders of unpacked packages. They are named after the registry, and so after a mirror where one is set up.
    fn registries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.join("registry/src")).into_iter().flatten();
        let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.sort();
        found
    }

    /// Names for all places. Of several that fit, the compiler takes the last one.
    fn flags(&self, registries: &[PathBuf], compiler: &Compiler) -> Vec<String> {
        // With the sources of the standard library beside it, the compiler would name that folder.
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
            .collect()
    }
}

/// Brings in the standard library for a C library, unless it is there. The one for this machine's own came with the
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

/// The files of this repository that are not ignored, with changes that are not committed.
pub(super) fn copy_sources(to: &Path) -> anyhow::Result<()> {
    let root = paths::root();
    let mut git = Command::new("git");
    git.current_dir(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = run::output(&mut git)?;
    for file in listed.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root.join(file), to.join(file));
        // Deleted, which is not committed.
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
    fn every_place_has_a_name_that_is_the_same_everywhere() {
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
            ]
        );
    }

    #[test]
    fn a_program_is_built_with_its_own_flags_and_those_of_the_repository() {
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
    fn the_sources_are_copied_without_builds() {
        let dir = tempfile::tempdir().unwrap();
        copy_sources(dir.path()).unwrap();
        for file in ["Cargo.lock", "rust-toolchain.toml", ".cargo/config.toml"] {
            assert!(dir.path().join(file).is_file(), "{file}");
        }
        assert!(!dir.path().join("target").exists());
    }

    #[test]
    fn programs_lie_where_cargo_puts_them() {
        let [weft, cni] = PROGRAMS.map(|program| place().built(program));
        let usual = format!("/t/{}", paths::triple());
        assert_eq!(weft, Path::new(&usual).join("release/weft"));
        let musl = usual.replace("gnu", "musl");
        assert_eq!(cni, Path::new(&musl).join("release/weft-cni"));
    }
}
