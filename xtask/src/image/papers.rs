//! The papers that travel with the programs: notices, and the bill of materials.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use cluster::{Progress, run};
use serde_json::Value;

use super::linked::{Id, Linked};
use super::system::{self, Compiler};
use super::{Library, PROGRAMS, notices, sbom};
use crate::paths;

const NOTICES: &str = "NOTICES.txt";
const SBOM: &str = "sbom.spdx.json";
/// The folder of the papers in the image.
const FOLDER: &str = "/usr/share/doc/weft";
/// The time that documents are to name as their own, in seconds since 1970: <https://reproducible-builds.org>.
const TIME: &str = "SOURCE_DATE_EPOCH";

/// A file of the image.
#[derive(Debug)]
pub(super) struct Paper {
    /// In words.
    pub(super) name: &'static str,
    /// Its place in the image.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

/// Writes the papers into a folder, and returns them as the image holds them.
pub(super) fn write(dir: &Path, steps: &mut dyn Progress) -> anyhow::Result<[Paper; 2]> {
    steps.step("listing the packages that the programs are linked from");
    let linked = linked()?;
    let own = paths::root().join("LICENSE");
    let own = fs::read_to_string(&own).with_context(|| format!("cannot read {}", own.display()))?;
    let notices = notices::compose(&own, &notices::collect(&linked)?);
    let file = dir.join(NOTICES);
    save(&file, notices.as_bytes())?;
    let document = sbom::compose(&linked, &time(seconds()?)?, program).to_string();
    save(&dir.join(SBOM), document.as_bytes())?;
    Ok([
        Paper {
            name: "notices",
            path: format!("{FOLDER}/{NOTICES}.gz"),
            content: compressed(&file)?,
        },
        Paper {
            name: "sbom",
            path: format!("{FOLDER}/{SBOM}"),
            content: document.into_bytes(),
        },
    ])
}

fn save(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

/// Compresses a file, without its name and its time.
fn compressed(file: &Path) -> anyhow::Result<Vec<u8>> {
    run::output(
        Command::new("gzip")
            .args(["--best", "--no-name", "--keep", "--force"])
            .arg(file),
    )?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    fs::read(&name).with_context(|| format!("cannot read {}", Path::new(&name).display()))
}

/// A second since 1970 as SPDX has times: `2026-11-23T15:33:20Z`.
fn time(seconds: u64) -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.arg("--utc").arg(format!("--date=@{seconds}")).arg("+%FT%TZ");
    Ok(run::output(&mut date)?.trim().to_owned())
}

/// The program that a package of ours is built into.
fn program(id: &Id) -> Option<&'static str> {
    let program = PROGRAMS.iter().find(|program| program.package == id.name);
    program.map(|program| program.path)
}

fn linked() -> anyhow::Result<Linked> {
    let mut trees = Vec::new();
    for program in &PROGRAMS {
        let mut cargo = paths::cargo();
        cargo.args(["tree", "--package", program.package]);
        cargo.args(["--target", &program.library.triple()]);
        // Procedural macros run in the compiler.
        cargo.args(["--edges", "normal,no-proc-macro"]);
        cargo.args(["--prefix", "depth", "--format", "{p}"]);
        trees.push(run::output(&mut cargo)?);
    }
    let mut cargo = paths::cargo();
    cargo.args(["metadata", "--format-version", "1"]);
    for library in [Library::Glibc, Library::Musl] {
        cargo.args(["--filter-platform", &library.triple()]);
    }
    let metadata: Value = serde_json::from_str(&run::output(&mut cargo)?)
        .context("cannot read the metadata that Cargo tells")?;
    let lock = paths::root().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let mut linked = Linked::read(&trees, &metadata, &lock)?;
    for part in system::parts(&Compiler::installed()?)? {
        linked.add_system(part);
    }
    Ok(linked)
}

/// The time of the sources: named by the environment, else that of the last commit, else none.
fn seconds() -> anyhow::Result<u64> {
    if let Some(named) = std::env::var_os(TIME).filter(|value| !value.is_empty()) {
        let named = named.to_string_lossy().into_owned();
        return named
            .parse()
            .with_context(|| format!("{TIME} is no number of seconds: {named}"));
    }
    let mut git = Command::new("git");
    git.current_dir(paths::root()).args(["log", "-1", "--format=%ct"]);
    let committed = run::output(&mut git).unwrap_or_default();
    Ok(committed.trim().parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::linked::Origin;

    #[test]
    fn every_package_of_the_image_has_a_licence_and_the_bill_of_materials_is_valid() {
        let linked = linked().unwrap();
        for package in linked.packages.values() {
            assert!(package.license.is_some(), "{} declares no licence", package.id);
        }
        let is_linked = |name: &str| linked.packages.keys().any(|id| id.name == name);
        for name in ["weft", "plugins", "aws-lc-sys", "rust-std", "glibc", "musl"] {
            assert!(is_linked(name), "{name} is missing");
        }
        // Not built, a procedural macro, a build script's, a test's.
        for name in ["ring", "serde_derive", "cc", "insta"] {
            assert!(!is_linked(name), "{name} is not linked");
        }
        let checked = |origin: &Origin| !matches!(origin, Origin::Registry { checksum: None });
        assert!(linked.packages.values().all(|it| checked(&it.origin)));
        sbom::tests::assert_valid(&sbom::compose(&linked, &time(0).unwrap(), program));
    }

    #[test]
    fn times_are_those_of_spdx() {
        assert_eq!(time(951_782_400).unwrap(), "2000-02-29T00:00:00Z");
    }

    #[test]
    fn notices_are_compressed_without_name_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let compress = |name: &str| {
            let file = dir.path().join(name);
            fs::write(&file, "text\n").unwrap();
            compressed(&file).unwrap()
        };
        let one = compress("one.txt");
        assert!(one.starts_with(&[0x1f, 0x8b]));
        assert_eq!(one, compress("other.txt"));
    }
}
