//! Helm, for tests of the chart: found on the machine, or built once into the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Result;
use crate::go;
use crate::home::Home;
use crate::kubectl::Kubectl;
use crate::progress::Progress;
use crate::run;

/// The version that is built, as a module version without the `v`.
const VERSION: &str = "3.19.5";
/// Prefix of usable versions of a Helm on the machine.
const MAJOR: &str = "v3.";
/// Variable with the path of a Helm.
const VARIABLE: &str = "WEFT_HELM";

/// The package manager.
#[derive(Debug, Clone)]
pub struct Helm {
    program: PathBuf,
    home: PathBuf,
}

impl Helm {
    /// Returns the Helm of `$WEFT_HELM` or the cache, or builds it.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        let cache = home.dir(&format!("helm/v{VERSION}"))?;
        let program = match named() {
            Some(program) => program,
            None => built(home, &cache, progress)?,
        };
        Ok(Self { program, home: cache })
    }

    /// Returns a command without access to a cluster.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        // The command ignores the user's settings: repositories, plugins and clusters.
        for (name, dir) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(name, self.home.join(dir));
        }
        command
            .env_remove("HELM_NAMESPACE")
            .env("KUBECONFIG", "/dev/null")
            .args(args);
        command
    }

    /// Runs on the cluster of `kubectl`, and returns the output.
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        kubectl: &Kubectl,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        let mut command = self.command(args);
        command.env("KUBECONFIG", kubectl.kubeconfig());
        // The cluster is on this machine, so the user's proxies do not apply.
        for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(name);
        }
        run::output(&mut command)
    }
}

/// Returns the program of the variable, if its version is usable.
fn named() -> Option<PathBuf> {
    let program = PathBuf::from(std::env::var_os(VARIABLE).filter(|value| !value.is_empty())?);
    let version = run::output(Command::new(&program).args(["version", "--short"])).ok()?;
    version.starts_with(MAJOR).then_some(program)
}

fn built(home: &Home, cache: &Path, progress: &mut dyn Progress) -> Result<PathBuf> {
    let file = cache.join("helm");
    if !file.is_file() {
        let _lock = home.lock("helm", progress)?;
        if !file.is_file() {
            progress.step(&format!("building Helm {VERSION}, once"));
            let otherwise = format!("set {VARIABLE} to a Helm 3");
            let program = ("helm.sh/helm/v3/cmd/helm".to_owned(), file.as_path());
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/helm");
            go::build(&source, &[program], "-s -w", &otherwise, progress)?;
        }
    }
    Ok(file)
}
