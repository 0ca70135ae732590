//! The packages in the programs of the image.
//!
//! ```text
//! cargo tree, for each program ──> packages and their dependencies ─┐
//! cargo metadata ──> licence, repository, directory ────────────────┼──> Linked
//! Cargo.lock ──> digests of their archives ─────────────────────────┘
//! ```
//!
//! `cargo metadata` unifies the features of the whole workspace, so that it lists packages that no program contains:
//! the trees select among them. C sources that a package compiles are part of that package.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

/// Name and version of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) name: String,
    pub(super) version: String,
}

impl Id {
    pub(super) fn new(name: &str, version: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
        }
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// The origin of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// This repository.
    Workspace,
    /// The registry, with the SHA-256 digest of the package's archive.
    Registry { checksum: Option<String> },
    /// The compiler, or the system of the build.
    System,
}

/// A package, reduced to the fields of the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) id: Id,
    pub(super) origin: Origin,
    /// An SPDX expression.
    pub(super) license: Option<String>,
    pub(super) repository: Option<String>,
    /// Directories and files that may contain its licences.
    pub(super) texts: Vec<PathBuf>,
}

/// The content of the programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Linked {
    /// Packages of the programs themselves.
    pub(super) programs: BTreeSet<Id>,
    pub(super) packages: BTreeMap<Id, Package>,
    /// Pairs of a package and its dependency.
    pub(super) needs: BTreeSet<(Id, Id)>,
}

impl Linked {
    /// Parses `cargo tree --prefix depth --format {p}` of each program, `cargo metadata`, and `Cargo.lock`.
    pub(super) fn read(trees: &[String], metadata: &Value, lock: &str) -> anyhow::Result<Self> {
        let known = packages(metadata, &checksums(lock))?;
        let mut linked = Self {
            programs: BTreeSet::new(),
            packages: BTreeMap::new(),
            needs: BTreeSet::new(),
        };
        for tree in trees {
            linked.add(tree, &known)?;
        }
        Ok(linked)
    }

    fn add(&mut self, tree: &str, known: &BTreeMap<Id, Package>) -> anyhow::Result<()> {
        let mut above: Vec<Id> = Vec::new();
        for line in tree.lines().filter(|line| !line.trim().is_empty()) {
            let (depth, id) =
                node(line).with_context(|| format!("cannot read `{line}`, a line of `cargo tree`"))?;
            let package = known
                .get(&id)
                .with_context(|| format!("`cargo metadata` does not list {id}"))?;
            self.packages.entry(id.clone()).or_insert_with(|| package.clone());
            above.truncate(depth);
            match above.last() {
                Some(parent) => {
                    self.needs.insert((parent.clone(), id.clone()));
                }
                None => {
                    self.programs.insert(id.clone());
                }
            }
            above.push(id);
        }
        Ok(())
    }

    /// Adds a package of the system, which all programs need.
    pub(super) fn add_system(&mut self, package: Package) {
        for program in &self.programs {
            self.needs.insert((program.clone(), package.id.clone()));
        }
        self.packages.insert(package.id.clone(), package);
    }
}

/// Parses `12serde v1.0.229`. A directory may follow, or a mark that the package was listed before.
fn node(line: &str) -> Option<(usize, Id)> {
    let start = line.find(|c: char| !c.is_ascii_digit())?;
    let (depth, package) = line.split_at(start);
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((depth.parse().ok()?, Id::new(name, version)))
}

fn packages(metadata: &Value, checksums: &BTreeMap<Id, String>) -> anyhow::Result<BTreeMap<Id, Package>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let package = |package: &Value| -> Option<(Id, Package)> {
        let id = Id::new(package["name"].as_str()?, package["version"].as_str()?);
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
        let origin = match package["source"].as_str() {
            None => Origin::Workspace,
            Some(_) => Origin::Registry {
                checksum: checksums.get(&id).cloned(),
            },
        };
        let named = package["license_file"].as_str().map(|file| folder.join(file));
        let found = Package {
            id: id.clone(),
            origin,
            license: package["license"].as_str().map(expression),
            repository: package["repository"].as_str().map(str::to_owned),
            texts: [folder.to_owned()].into_iter().chain(named).collect(),
        };
        Some((id, found))
    };
    packages
        .map(|it| package(it).with_context(|| format!("cannot read this package of `cargo metadata`: {it}")))
        .collect()
}

/// Returns a licence in SPDX form: older packages separate alternatives by a slash.
fn expression(license: &str) -> String {
    let words = license.replace('/', " OR ");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the digests of a `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| Some(rest.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned()))
    };
    let packages = lock.split("[[package]]").filter_map(|package| {
        let id = Id {
            name: value(package, "name")?,
            version: value(package, "version")?,
        };
        Some((id, value(package, "checksum")?))
    });
    packages.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Two programs: one has a package alone, both have `shared`, and neither has `unused`.
    pub(in crate::image) fn sample() -> Linked {
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        let package = |name: &str, version: &str, source: Option<&str>, license: Option<&str>| {
            json!({
                "name": name, "version": version, "source": source, "license": license, "license_file": null,
                "repository": format!("https://example.org/{name}"),
                "manifest_path": format!("/registry/{name}-{version}/Cargo.toml"),
            })
        };
        let metadata = json!({ "packages": [
            package("weft", "0.1.0", None, Some("Apache-2.0")),
            package("plugins", "0.1.0", None, Some("Apache-2.0")),
            package("shared", "1.2.3", Some(registry), Some("MIT/Apache-2.0")),
            package("own_one", "0.4.0+c", Some(registry), Some("ISC")),
            package("unused", "2.0.0", Some(registry), None),
        ]});
        let lock = "version = 4\n\n[[package]]\nname = \"shared\"\nversion = \"1.2.3\"\nchecksum = \"ab12\"\n\n\
                    [[package]]\nname = \"weft\"\nversion = \"0.1.0\"\ndependencies = [\n \"shared\",\n]\n";
        let trees = [
            "0weft v0.1.0 (/w/crates/weft)\n1own_one v0.4.0+c\n2shared v1.2.3\n1shared v1.2.3 (*)\n",
            "0plugins v0.1.0 (/w/crates/plugins)\n1shared v1.2.3\n",
        ];
        Linked::read(&trees.map(str::to_owned), &metadata, lock).unwrap()
    }

    #[test]
    fn packages_come_from_the_trees_and_details_from_the_metadata() {
        let linked = sample();
        let names: Vec<_> = linked.packages.keys().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["own_one 0.4.0+c", "plugins 0.1.0", "shared 1.2.3", "weft 0.1.0"]
        );
        let programs: Vec<_> = linked.programs.iter().map(|id| id.name.as_str()).collect();
        assert_eq!(programs, ["plugins", "weft"]);
        let needs: Vec<_> = linked
            .needs
            .iter()
            .map(|(one, other)| format!("{} {}", one.name, other.name))
            .collect();
        assert_eq!(
            needs,
            ["own_one shared", "plugins shared", "weft own_one", "weft shared"]
        );
        let shared = &linked.packages[&Id::new("shared", "1.2.3")];
        assert_eq!(shared.license.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!(shared.texts, [PathBuf::from("/registry/shared-1.2.3")]);
        let checksum = Some("ab12".to_owned());
        assert_eq!(shared.origin, Origin::Registry { checksum });
    }

    #[test]
    fn tree_that_contradicts_the_metadata_is_an_error() {
        let metadata = json!({ "packages": [] });
        let read = |tree: &str| Linked::read(&[tree.to_owned()], &metadata, "").map_err(|e| e.to_string());
        assert_eq!(
            read("0weft v0.1.0\n"),
            Err("`cargo metadata` does not list weft 0.1.0".to_owned())
        );
        assert!(read("weft\n").is_err_and(|error| error.contains("`weft`")));
        assert!(read("\n").is_ok_and(|linked| linked.packages.is_empty()));
    }
}
