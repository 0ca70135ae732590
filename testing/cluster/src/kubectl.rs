//! The command line client as a helper for tests and for the demo.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::{run, wait};

/// `kubectl` bound to one cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// The client at `program`, speaking to the cluster of `kubeconfig`.
    pub fn new(program: &Path, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// The file that names cluster and user.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command with the given arguments, ready to be run.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig).args(args);
        // The cluster is on this machine, whatever the way to the rest of the world.
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

    /// Runs to the end and returns what it printed.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        run::output(&mut self.command(args))
    }

    /// Runs with `--output json` and returns the object.
    pub fn json<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Value> {
        let mut command = self.command(args);
        command.args(["--output", "json"]);
        let text = run::output(&mut command)?;
        serde_json::from_str(&text).map_err(|source| Error::Json {
            what: format!("no JSON from `{}`", run::shown(&command)),
            source,
        })
    }

    /// Like [`Self::json`], but `None` for an object that does not exist.
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

    /// Applies the objects of a file, or of all files of a directory.
    pub fn apply_file(&self, path: &Path) -> Result<String> {
        let mut command = self.command(["apply", "--filename"]);
        run::output(command.arg(path))
    }

    /// Deletes and waits for the end of what the arguments name; nothing happens if it does not exist. Not for what
    /// somebody makes again at once: kubectl may take that for what it deleted, and wait for ever.
    pub fn delete<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = self.command(["delete", "--ignore-not-found", "--wait"]);
        run::output(command.args(args))
    }

    /// Waits until `condition` is satisfied with the object that `args` name (`pod`, `-n`, `ns`, `name`).
    /// The condition complains with what it sees; a missing object is complained about by itself.
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

    /// What explains a pod that does not come up: its description and its events.
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

/// Whether an object says that it is Ready.
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
