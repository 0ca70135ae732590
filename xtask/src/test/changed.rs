//! The tests that a change can affect.
//!
//! ```text
//! git: changed files ──> packages ──> their dependants (Cargo) ──> test programs
//!                                └──> a table ──> tests on clusters
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::Context;
use cluster::run;
use serde_json::Value;

use crate::paths;

/// The package of the tests on clusters.
const E2E: &str = "e2e";
/// Tests on clusters, by their directory or file, that a package's change can affect. Packages of the product that are
/// missing here affect all of them, and other packages none.
const ON_CLUSTERS: &[(&str, &[&str])] = &[
    ("operator", &["operator::", "transitions::"]),
    ("cli", &["operator::"]),
    ("manifests", &["operator::", "standalone::", "transitions::"]),
    ("kubemacpool", &["mac_pool::", "native_pods::"]),
    ("weft-nmstate", &["node_network"]),
    ("dynamic-networks", &["hot_plug::"]),
    ("markers", &["attach::"]),
    (
        "installer",
        &[
            "attach::",
            "operator::without_multus",
            "pod_network::",
            "standalone::",
        ],
    ),
    (
        "multus",
        &[
            "attach::",
            "crash::",
            "doctor::",
            "hot_plug::",
            "standalone::",
            "storm::",
        ],
    ),
    (
        "plugins",
        &[
            "attach::",
            "crash::",
            "doctor::",
            "hot_plug::",
            "pod_network::",
            "storm::",
        ],
    ),
    ("dhcp", &["dhcp::", "native_pods::"]),
    ("pod-network", &["pod_network::"]),
    ("cluster-network", &["pod_network::"]),
    ("connectivity", &["pod_network::"]),
    ("secondary-dns", &["native_pods::", "virtual_machines::"]),
    ("kubevirt-ipam", &["native_pods::", "virtual_machines::"]),
    ("macvtap", &["native_pods::"]),
    ("ovsdb", &["native_pods::"]),
    ("cni", &["attach::", "crash::", "hot_plug::", "storm::"]),
    ("webhook", &["mac_pool::", "standalone::what_is_wrong"]),
    ("api", &["operator::"]),
    ("weft", &["operator::every_workload"]),
    ("program", &["operator::every_workload"]),
];
/// The package of the tests with virtual machines, and the packages of the product that they depend on.
const KUBEVIRT: &str = "kubevirt";
const UNDER_KUBEVIRT: [&str; 10] = [
    "cni",
    "dynamic-networks",
    "kubemacpool",
    "kubevirt-ipam",
    "kubevirt-stand-ins",
    "multus",
    "operator",
    "plugins",
    "secondary-dns",
    "webhook",
];
/// Packages of the product that all tests on clusters depend on.
const UNDER_ALL: [&str; 3] = ["kube-kit", "linux", "cluster"];
/// Files that affect all builds.
const EVERYTHING: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo/",
    "clippy.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];
/// Files outside of packages, and the packages whose tests read them.
const READERS: [(&str, &[&str]); 3] = [
    (
        "deploy/",
        &[
            "operator",
            "manifests",
            "api",
            "cluster-network",
            "pod-network",
            E2E,
        ],
    ),
    (
        "examples/",
        &["operator", "multus", "weft-nmstate", KUBEVIRT, E2E],
    ),
    ("docs/", &["manifests"]),
];

/// The packages of the workspace: directory and dependencies.
type Packages = BTreeMap<String, (String, BTreeSet<String>)>;

/// The effect of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Affected {
    /// Changed packages.
    changed: BTreeSet<String>,
    /// Changed packages and their dependants.
    packages: BTreeSet<String>,
    /// Parts of the names of affected tests on clusters. `None` for all of them.
    on_clusters: Option<BTreeSet<&'static str>>,
}

impl Affected {
    /// Returns the effect of the differences from a revision, committed or not.
    pub(super) fn since(revision: &str) -> anyhow::Result<Self> {
        let git = |args: &[&str]| run::output(Command::new("git").current_dir(paths::root()).args(args));
        let mut files = git(&["diff", "--name-only", revision])?;
        files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
        let metadata = run::output(paths::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        let metadata: Value =
            serde_json::from_str(&metadata).context("cannot parse Cargo's metadata of the workspace")?;
        Ok(Self::by(&files, &packages(&metadata)))
    }

    fn by(files: &str, packages: &Packages) -> Self {
        let all = || packages.keys().cloned();
        let mut changed = BTreeSet::new();
        for file in files.lines() {
            if EVERYTHING.iter().any(|name| file.starts_with(name)) {
                changed.extend(all());
            }
            let own = packages
                .iter()
                .filter(|(_, (folder, _))| file.starts_with(&format!("{folder}/")));
            changed.extend(own.map(|(name, _)| name.clone()));
            let readers = READERS.iter().filter(|(folder, _)| file.starts_with(folder));
            changed.extend(readers.flat_map(|(_, names)| names.iter().map(|name| (*name).to_owned())));
        }
        let mut affected = changed.clone();
        loop {
            let more: Vec<String> = packages
                .iter()
                .filter(|(name, (_, needs))| !affected.contains(*name) && !needs.is_disjoint(&affected))
                .map(|(name, _)| name.clone())
                .collect();
            if more.is_empty() {
                break;
            }
            affected.extend(more);
        }
        let named = |name: &String| ON_CLUSTERS.iter().find(|(known, _)| name == known);
        let all_tests = changed
            .iter()
            .any(|name| name == E2E || UNDER_ALL.contains(&name.as_str()));
        let on_clusters: BTreeSet<&str> = changed
            .iter()
            .filter_map(named)
            .flat_map(|(_, tests)| tests.iter().copied())
            .collect();
        if !all_tests && on_clusters.is_empty() {
            affected.remove(E2E);
        } else {
            affected.insert(E2E.to_owned());
        }
        let under =
            |name: &String| UNDER_ALL.contains(&name.as_str()) || UNDER_KUBEVIRT.contains(&name.as_str());
        if packages.contains_key(KUBEVIRT) && changed.iter().any(under) {
            affected.insert(KUBEVIRT.to_owned());
        }
        Self {
            changed,
            packages: affected,
            on_clusters: (!all_tests).then_some(on_clusters),
        }
    }

    /// Returns true if tests of a package may be affected.
    pub(super) fn takes(&self, package: &str) -> bool {
        self.packages.contains(package)
    }

    pub(super) fn takes_test(&self, package: &str, test: &str) -> bool {
        let affected = |parts: &BTreeSet<&str>| parts.iter().any(|part| test.starts_with(part));
        self.takes(package) && (package != E2E || self.on_clusters.as_ref().is_none_or(affected))
    }

    pub(super) fn description(&self) -> String {
        let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if self.changed.is_empty() {
            return "nothing has changed that a test depends on\n".to_owned();
        }
        let further: BTreeSet<String> = self.packages.difference(&self.changed).cloned().collect();
        let on_clusters = match &self.on_clusters {
            None => "all".to_owned(),
            Some(tests) if tests.is_empty() => "none".to_owned(),
            Some(tests) => tests.iter().copied().collect::<Vec<_>>().join(", "),
        };
        format!(
            "changed: {}\naffected too: {}\ntests on clusters: {on_clusters}\n",
            list(&self.changed),
            list(&further)
        )
    }
}

fn packages(metadata: &Value) -> Packages {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut found = Packages::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let (Some(name), Some(manifest)) = (package["name"].as_str(), package["manifest_path"].as_str())
        else {
            continue;
        };
        let folder = manifest
            .trim_start_matches(root)
            .trim_start_matches('/')
            .trim_end_matches("/Cargo.toml");
        let needs = package["dependencies"].as_array().into_iter().flatten();
        let needs = needs.filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned()));
        found.insert(name.to_owned(), (folder.to_owned(), needs.collect()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Packages {
        let package = |name: &str, folder: &str, needs: &[&str]| {
            let needs = needs.iter().map(|name| (*name).to_owned()).collect();
            (name.to_owned(), (folder.to_owned(), needs))
        };
        Packages::from([
            package("linux", "crates/linux", &["rustix"]),
            package("kubemacpool", "crates/kubemacpool", &["linux"]),
            package("operator", "crates/operator", &["manifests"]),
            package("manifests", "crates/manifests", &["operator"]),
            package("weft", "crates/weft", &["kubemacpool", "operator"]),
            package(E2E, "testing/e2e", &["cluster"]),
            package("cluster", "testing/cluster", &[]),
            package(KUBEVIRT, "testing/kubevirt", &["cluster"]),
        ])
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn component_affects_its_dependants_and_its_tests_on_clusters() {
        let affected = Affected::by("crates/kubemacpool/src/pool.rs\n", &workspace());
        assert_eq!(affected.changed, names(&["kubemacpool"]));
        assert_eq!(affected.packages, names(&["kubemacpool", "weft", E2E, KUBEVIRT]));
        assert!(affected.takes_test(E2E, "mac_pool::a"));
        assert!(!affected.takes_test(E2E, "attach::a"));
        assert!(affected.takes_test("weft", "anything") && !affected.takes_test("operator", "anything"));
    }

    #[test]
    fn common_package_affects_all_tests() {
        let affected = Affected::by("crates/linux/src/lib.rs\n", &workspace());
        assert!(affected.takes_test(E2E, "storm::a"));
        assert!(!affected.takes("operator"));
        let affected = Affected::by("Cargo.lock\n", &workspace());
        assert_eq!(affected.packages, workspace().into_keys().collect());
    }

    #[test]
    fn file_outside_of_packages_affects_its_readers() {
        let affected = Affected::by("README.md\n", &workspace());
        assert_eq!(
            affected.description(),
            "nothing has changed that a test depends on\n"
        );
        let affected = Affected::by("deploy/operator.yaml\n", &workspace());
        assert!(affected.takes("operator") && affected.takes("weft"));
    }

    #[test]
    fn table_names_every_package_of_the_product() {
        let metadata = run::output(paths::cargo().args(["metadata", "--no-deps", "--format-version", "1"]));
        let metadata = serde_json::from_str(&metadata.unwrap()).unwrap();
        let known = |name: &str| ON_CLUSTERS.iter().any(|(it, _)| *it == name) || UNDER_ALL.contains(&name);
        for (name, (folder, _)) in packages(&metadata) {
            assert!(
                !folder.starts_with("crates/") || known(&name),
                "{name} is missing"
            );
        }
    }
}
