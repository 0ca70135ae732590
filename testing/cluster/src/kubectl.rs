//! The command line client, for tests and the demo.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::control_plane::GO_COLLECTOR;
use crate::error::{Error, Result};
use crate::{run, wait};

/// `kubectl` for one cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Returns the client at `program` for the cluster of `kubeconfig`.
    pub fn new(program: &Path, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// The kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns a command with these arguments.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        let (collector, rare) = GO_COLLECTOR;
        command.env("KUBECONFIG", &self.kubeconfig).env(collector, rare);
        command.args(args);
        // The cluster is on this machine, so the user's proxies do not apply.
        for name in [
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command and returns its output.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        run::output(&mut self.command(args))
    }

    /// Runs a command with `--output json` and returns the object.
    pub fn json<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Value> {
        let mut command = self.command(args);
        command.args(["--output", "json"]);
        let text = run::output(&mut command)?;
        serde_json::from_str(&text).map_err(|source| Error::Json {
            what: format!("no JSON from `{}`", run::shown(&command)),
            source,
        })
    }

    /// Like [`Self::json`], but returns `None` for a missing object.
    pub fn get<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Option<Value>> {
        let mut command = self.command(["get", "--ignore-not-found", "--output", "json"]);
        command.args(args);
        let text = run::output(&mut command)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let parsed = serde_json::from_str(&text);
        parsed.map(Some).map_err(|source| Error::Json {
            what: format!("no JSON from `{}`", run::shown(&command)),
            source,
        })
    }

    /// Applies the objects of a YAML or JSON text.
    pub fn apply(&self, objects: &str) -> Result<String> {
        run::output_with_input(
            &mut self.command(["apply", "--filename", "-"]),
            objects.as_bytes(),
        )
    }

    /// Applies the objects of a file, or of all files in a directory.
    pub fn apply_file(&self, path: &Path) -> Result<String> {
        let mut command = self.command(["apply", "--filename"]);
        run::output(command.arg(path))
    }

    /// Deletes objects and waits until they are gone. Missing objects are ignored. Not for objects that a controller
    /// creates again at once: kubectl may take the new object for the deleted one, and wait forever.
    pub fn delete<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = self.command(["delete", "--ignore-not-found", "--wait"]);
        run::output(command.args(args))
    }

    /// Waits until `condition` accepts the object that `args` name (`pod`, `-n`, `ns`, `name`). The error of the
    /// condition describes the object. A missing object has its own error.
    pub fn wait_for<T>(
        &self,
        args: &[&str],
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Value) -> std::result::Result<T, String>,
    ) -> Result<T> {
        wait::until(what, deadline, || match self.get(args) {
            Ok(Some(object)) => condition(&object),
            Ok(None) => Err(format!("{} does not exist", args.join(" "))),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Returns true if a DaemonSet or Deployment is rolled out, as `kubectl rollout status` defines it.
    pub fn is_rolled_out(&self, namespace: &str, workload: &str) -> Result<bool> {
        let status = [
            "--namespace",
            namespace,
            "rollout",
            "status",
            workload,
            "--watch=false",
        ];
        Ok(self.run(status)?.contains("successfully rolled out"))
    }

    /// Returns the descriptions and events that explain why a pod does not start.
    pub fn explain(&self, namespace: &str) -> String {
        let mut text = String::new();
        for args in [
            &["get", "pods", "--output", "wide", "--namespace", namespace][..],
            &[
                "get",
                "events",
                "--sort-by=.lastTimestamp",
                "--namespace",
                namespace,
            ],
        ] {
            let answer = self.run(args).unwrap_or_else(|error| error.to_string());
            text.push_str(&format!("\n  {}:{}", args.join(" "), run::tail(&answer)));
        }
        text
    }
}

/// Returns true if the condition Ready of an object is True.
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
