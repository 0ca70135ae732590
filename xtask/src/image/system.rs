//! The parts of the programs that are no packages of Cargo: Rust's standard library, and the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cluster::run;

use super::linked::{Id, Origin, Package};

/// Texts about the GNU C library, as installed by distributions.
const OF_GLIBC: [&str; 3] = [
    "/usr/share/common-licenses/LGPL-2.1",
    "/usr/share/doc/libc6-dev/copyright",
    "/usr/share/licenses/glibc",
];
/// Texts in the documentation of the compiler.
const OF_RUST: [&str; 2] = ["COPYRIGHT-library.html", "licenses/Apache-2.0.txt"];
const OF_LIBUNWIND: [&str; 2] = ["licenses/Apache-2.0.txt", "licenses/LLVM-exception.txt"];
const OF_LIBGCC: [&str; 2] = ["licenses/GCC-exception-3.1.txt", "licenses/GPL-3.0-or-later.txt"];

/// The version of musl that comes with this repository's compiler, according to `strings libc.a` of its target.
const MUSL: &str = "1.2.5";
/// Neither the compiler nor most build machines have its notice.
const OF_MUSL: &str = "src/image/musl.txt";

/// The compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compiler {
    pub(super) version: String,
    /// The revision in the paths of its standard library.
    pub(super) revision: String,
    pub(super) sysroot: PathBuf,
}

impl Compiler {
    pub(super) fn installed() -> anyhow::Result<Self> {
        let verbose = run::output(rustc().arg("-vV"))?;
        let sysroot = run::output(rustc().args(["--print", "sysroot"]))?;
        Self::read(&verbose, &sysroot).with_context(|| format!("cannot read the answer of rustc: {verbose}"))
    }

    fn read(verbose: &str, sysroot: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = verbose.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim().to_owned())
        };
        Some(Self {
            version: value("release:")?,
            revision: value("commit-hash:")?,
            sysroot: PathBuf::from(sysroot.trim()),
        })
    }
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Returns the parts that this machine links.
pub(super) fn parts(compiler: &Compiler) -> anyhow::Result<Vec<Package>> {
    let glibc = run::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let glibc = glibc.trim().rsplit(' ').next().unwrap_or_default();
    let libgcc = run::output(Command::new("cc").args(["-dumpfullversion", "-dumpversion"]))?;
    let documents = compiler.sysroot.join("share/doc/rust");
    let below = |files: &[&str]| existing(files.iter().map(|file| documents.join(file)));
    Ok(vec![
        part(
            "rust-std",
            &compiler.version,
            "MIT OR Apache-2.0",
            "https://github.com/rust-lang/rust",
            below(&OF_RUST),
        ),
        part(
            "glibc",
            glibc,
            "LGPL-2.1-or-later",
            "https://sourceware.org/git/glibc.git",
            existing(OF_GLIBC.iter().map(|file| Path::new(file).to_owned())),
        ),
        part(
            "libgcc",
            libgcc.trim(),
            "GPL-3.0-or-later WITH GCC-exception-3.1",
            "https://gcc.gnu.org/git/gcc.git",
            below(&OF_LIBGCC),
        ),
        part(
            "musl",
            MUSL,
            "MIT",
            "https://git.musl-libc.org/git/musl",
            vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(OF_MUSL)],
        ),
        part(
            "llvm-libunwind",
            &compiler.version,
            "Apache-2.0 WITH LLVM-exception",
            "https://github.com/rust-lang/llvm-project",
            below(&OF_LIBUNWIND),
        ),
    ])
}

fn existing(files: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.filter(|file| file.exists()).collect()
}

fn part(name: &str, version: &str, license: &str, repository: &str, texts: Vec<PathBuf>) -> Package {
    Package {
        id: Id::new(name, version),
        origin: Origin::System,
        license: Some(license.to_owned()),
        repository: Some(repository.to_owned()),
        texts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_reports_its_version_and_revision() {
        let verbose = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\ncommit-hash: 59807616e1fa\nrelease: 1.95.0\n";
        let compiler = Compiler::read(verbose, "/rust\n").unwrap();
        assert_eq!(
            (compiler.version.as_str(), compiler.revision.as_str()),
            ("1.95.0", "59807616e1fa")
        );
        assert_eq!(compiler.sysroot, Path::new("/rust"));
        assert_eq!(Compiler::read("rustc 1.95.0\n", "/rust\n"), None);
    }
}
