//! The documents in the image: notices, and the bill of materials.

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
/// Directory of the documents in the image.
const FOLDER: &str = "/usr/share/doc/weft";
/// Variable with the time of documents, in seconds since 1970: <https://reproducible-builds.org>.
const TIME: &str = "SOURCE_DATE_EPOCH";

/// A file of the image.
#[derive(Debug)]
pub(super) struct Paper {
    /// Name as text.
    pub(super) name: &'static str,
    /// Path in the image.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

/// Writes the documents into a directory, and returns the files of the image.
pub(super) fn write(dir: &Path, steps: &mut dyn Progress) -> anyhow::Result<[Paper; 2]> {
    steps.step("listing the packages in the programs");
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

/// Returns a time in SPDX form, from seconds since 1970: `2026-11-23T15:33:20Z`.
fn time(seconds: u64) -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.arg("--utc").arg(format!("--date=@{seconds}")).arg("+%FT%TZ");
    Ok(run::output(&mut date)?.trim().to_owned())
}

/// Returns the program that contains a package of the workspace.
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
    let metadata: Value =
        serde_json::from_str(&run::output(&mut cargo)?).context("cannot parse the metadata of Cargo")?;
    let lock = paths::root().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let mut linked = Linked::read(&trees, &metadata, &lock)?;
    for part in system::parts(&Compiler::installed()?)? {
        linked.add_system(part);
    }
    Ok(linked)
}

/// Returns the time of the sources: from the environment, or else of the last commit.
fn seconds() -> anyhow::Result<u64> {
    if let Some(named) = std::env::var_os(TIME).filter(|value| !value.is_empty()) {
        let named = named.to_string_lossy().into_owned();
        return named
            .parse()
            .with_context(|| format!("{TIME} is not a number of seconds: {named}"));
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
    fn packages_of_the_image_have_licences_and_the_bill_of_materials_is_valid() {
        let linked = linked().unwrap();
        for package in linked.packages.values() {
            assert!(package.license.is_some(), "{} declares no licence", package.id);
        }
        let is_linked = |name: &str| linked.packages.keys().any(|id| id.name == name);
        for name in ["weft", "plugins", "aws-lc-sys", "rust-std", "glibc", "musl"] {
            assert!(is_linked(name), "{name} is missing");
        }
        // Not built, a procedural macro, of a build script, of a test.
        for name in ["ring", "serde_derive", "cc", "insta"] {
            assert!(!is_linked(name), "{name} is not linked");
        }
        let checked = |origin: &Origin| !matches!(origin, Origin::Registry { checksum: None });
        assert!(linked.packages.values().all(|it| checked(&it.origin)));
        sbom::tests::assert_valid(&sbom::compose(&linked, &time(0).unwrap(), program));
    }

    #[test]
    fn time_has_the_form_of_spdx() {
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
