//! The programs of Kubernetes: found on the machine, or built once into the cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Result;
use crate::go;
use crate::home::Home;
use crate::progress::Progress;
use crate::run;

/// The version that is built, as a module version without the `v`.
pub const VERSION: &str = "1.34.4";
/// Prefix of usable versions of programs on the machine.
const MINOR: &str = "1.34.";
/// Older etcd lacks requirements of streaming lists: their clients never sync.
const ETCD_MINOR: &str = "3.6.";
/// A fixed time, which only `kubectl version` prints.
const BUILD_DATE: &str = "2026-01-01T00:00:00Z";

/// A program of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The key-value store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The command line client.
    Kubectl,
    /// The controllers of the control plane.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The node agent.
    Kubelet,
    /// The proxy for services on a node.
    Proxy,
}

impl Program {
    /// Programs of the api tier, which are built first.
    pub const API: [Self; 3] = [Self::Etcd, Self::ApiServer, Self::Kubectl];
    /// Programs of a whole cluster.
    pub const ALL: [Self; 7] = [
        Self::Etcd,
        Self::ApiServer,
        Self::Kubectl,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::Proxy,
    ];

    /// Name of the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
        }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            other => format!("k8s.io/kubernetes/cmd/{}", other.name()),
        }
    }

    fn is_right_version(self, file: &Path) -> bool {
        let argument: &[&str] = if self == Self::Kubectl {
            &["version", "--client"]
        } else {
            &["--version"]
        };
        let minor = if self == Self::Etcd { ETCD_MINOR } else { MINOR };
        run::output(Command::new(file).args(argument)).is_ok_and(|text| reports(&text, minor))
    }
}

/// Returns true if the output of a version command names a version that starts with `minor`.
fn reports(output: &str, minor: &str) -> bool {
    let first = output.lines().next().unwrap_or_default();
    first
        .split_whitespace()
        .any(|word| word.strip_prefix('v').unwrap_or(word).starts_with(minor))
}

/// Paths of programs.
#[derive(Debug, Clone)]
pub struct Programs(BTreeMap<Program, PathBuf>);

impl Programs {
    /// Returns the file of `program`, or its bare name if it was not requested.
    pub fn path(&self, program: Program) -> PathBuf {
        self.0
            .get(&program)
            .cloned()
            .unwrap_or_else(|| program.name().into())
    }

    /// Iterates over all files.
    pub fn iter(&self) -> impl Iterator<Item = (Program, &Path)> {
        self.0.iter().map(|(program, path)| (*program, path.as_path()))
    }

    /// Finds the programs in `$WEFT_KUBE_BIN`, `$KUBEBUILDER_ASSETS`, `$PATH` and the cache, and builds the missing
    /// ones.
    pub fn ensure(home: &Home, wanted: &[Program], progress: &mut dyn Progress) -> Result<Self> {
        let cache = cache(home)?;
        let mut found = BTreeMap::new();
        let mut lacking = Vec::new();
        for program in wanted {
            match find(*program, &cache) {
                Some(path) => {
                    found.insert(*program, path);
                }
                None => lacking.push(*program),
            }
        }
        if !lacking.is_empty() {
            let _lock = home.lock("kubernetes", progress)?;
            // Another process may have built them meanwhile.
            let unbuilt = lacking
                .iter()
                .filter(|program| !cache.join(program.name()).exists());
            let unbuilt: Vec<Program> = unbuilt.copied().collect();
            if !unbuilt.is_empty() {
                let names: Vec<_> = unbuilt.iter().map(|program| program.name()).collect();
                progress.step(&format!(
                    "building Kubernetes {VERSION}, once: {}",
                    names.join(", ")
                ));
                build(&unbuilt, &cache, progress)?;
            }
            found.extend(
                lacking
                    .into_iter()
                    .map(|program| (program, cache.join(program.name()))),
            );
        }
        Ok(Self(found))
    }
}

/// Returns a usable program. Programs in the cache are always usable.
fn find(program: Program, cache: &Path) -> Option<PathBuf> {
    let named = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = ["WEFT_KUBE_BIN", "KUBEBUILDER_ASSETS"]
        .into_iter()
        .filter_map(named)
        .map(PathBuf::from);
    let cached = cache.join(program.name());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = |dir: PathBuf| Some(dir.join(program.name())).filter(|file| file.is_file());
    if let Some(file) = named
        .filter_map(elsewhere)
        .find(|file| program.is_right_version(file))
    {
        return Some(file);
    }
    // The cache precedes PATH, because asking a program for its version takes time.
    if cached.is_file() {
        return Some(cached);
    }
    std::env::split_paths(&path)
        .filter_map(elsewhere)
        .find(|file| program.is_right_version(file))
}

/// Returns linker flags that set the version, without which the API server refuses to start.
fn linker_flags() -> String {
    let mut flags = "-s -w".to_owned();
    let (major, minor) = VERSION.split_once('.').unwrap_or((VERSION, ""));
    let minor = minor.split('.').next().unwrap_or_default();
    // Programs without these variables, such as etcd, ignore the flags.
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", format!("v{VERSION}")),
            ("gitMajor", major.to_owned()),
            ("gitMinor", minor.to_owned()),
            ("gitCommit", format!("v{VERSION}")),
            ("gitTreeState", "clean".to_owned()),
            ("buildDate", BUILD_DATE.to_owned()),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
}

/// Returns the module that pins the sources.
fn module() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("go/kubernetes")
}

/// Returns the directory of built programs.
fn cache(home: &Home) -> Result<PathBuf> {
    home.dir(&format!("kubernetes/v{VERSION}"))
}

fn build(programs: &[Program], cache: &Path, progress: &mut dyn Progress) -> Result<()> {
    let files: Vec<PathBuf> = programs
        .iter()
        .map(|program| cache.join(program.name()))
        .collect();
    let wanted: Vec<_> = programs
        .iter()
        .zip(&files)
        .map(|(program, file)| (program.package(), file.as_path()))
        .collect();
    let otherwise = "set WEFT_KUBE_BIN to a directory with the programs of Kubernetes 1.34 and etcd 3.6";
    go::build(&module(), &wanted, &linker_flags(), otherwise, progress)
}

/// Kubernetes' end-to-end tests, and their runner.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The program with the tests.
    pub tests: PathBuf,
    /// The runner, for concurrent tests.
    pub ginkgo: PathBuf,
    /// The program of most test pods, with many subcommands.
    pub agnhost: PathBuf,
}

impl Suite {
    /// Finds the suite in the cache, or builds it, which takes minutes and happens once.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if it is not built and Go is missing.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        let cache = cache(home)?;
        let suite = Self {
            tests: cache.join("e2e.test"),
            ginkgo: cache.join("ginkgo"),
            agnhost: cache.join("agnhost"),
        };
        if suite.is_built() {
            return Ok(suite);
        }
        let _lock = home.lock("kubernetes", progress)?;
        // Another process may have built it meanwhile.
        if !suite.is_built() {
            progress.step(&format!(
                "building the tests of Kubernetes {VERSION}, once: e2e.test, ginkgo, agnhost"
            ));
            suite.build(progress)?;
        }
        Ok(suite)
    }

    fn is_built(&self) -> bool {
        [&self.tests, &self.ginkgo, &self.agnhost]
            .iter()
            .all(|file| file.is_file())
    }

    fn build(&self, progress: &mut dyn Progress) -> Result<()> {
        let otherwise = "do without Kubernetes' tests";
        let programs = [
            (
                "github.com/onsi/ginkgo/v2/ginkgo".to_owned(),
                self.ginkgo.as_path(),
            ),
            (
                "k8s.io/kubernetes/test/images/agnhost".to_owned(),
                self.agnhost.as_path(),
            ),
        ];
        go::build(&module(), &programs, &linker_flags(), otherwise, progress)?;
        let tests = ("k8s.io/kubernetes/test/e2e".to_owned(), self.tests.as_path());
        go::build_tests(&module(), &tests, &linker_flags(), otherwise, progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_minor_version_is_refused() {
        assert!(reports("Kubernetes v1.34.4\n", MINOR));
        assert!(reports(
            "Client Version: v1.34.0\nKustomize Version: v5.7.1\n",
            MINOR
        ));
        assert!(!reports(
            "Client Version: v1.32.4-dispatcher\nKustomize Version: v1.34.1\n",
            MINOR
        ));
        assert!(!reports("Kubernetes v1.3.4\n", MINOR));
        assert!(reports("etcd Version: 3.6.4\nGit SHA: x\n", ETCD_MINOR));
        assert!(!reports("etcd Version: 3.4.23\n", ETCD_MINOR));
    }
}
