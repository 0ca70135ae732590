//! Calls of plugins, and their ends.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{PLUGINS, Pod};

/// The end of a plugin's call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The result of a call that succeeded.
    pub(crate) fn success(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        if self.stdout.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }

    /// Code and text of a call that failed.
    pub(crate) fn failure(&self) -> (u64, String) {
        assert_eq!(self.code, 1, "{self:?}");
        let error = self.json();
        (
            error["code"].as_u64().unwrap(),
            error["msg"].as_str().unwrap().to_owned(),
        )
    }

    /// The text of a call that failed with the plugin's own error.
    pub(crate) fn message(&self) -> String {
        let (code, message) = self.failure();
        assert_eq!(code, 999, "{self:?}");
        message
    }
}

/// A call that any thread can make.
pub(super) struct Prepared {
    plugin: String,
    variables: Vec<(&'static str, String)>,
    stdin: String,
}

impl Prepared {
    pub(super) fn new(verb: &str, pod: &Pod, config: &Value) -> Self {
        let owned = |(name, value): (&'static str, &str)| (name, value.to_owned());
        Prepared {
            plugin: config["type"].as_str().unwrap().to_owned(),
            variables: variables(verb, pod, "net1", "").into_iter().map(owned).collect(),
            stdin: config.to_string(),
        }
    }

    pub(super) fn start(&self) -> Child {
        let variables: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        start(&self.plugin, &variables, &self.stdin)
    }
}

/// Starts a plugin with exactly these variables.
pub(crate) fn start(plugin: &str, variables: &[(&str, &str)], stdin: &str) -> Child {
    let mut child = Command::new(Path::new(PLUGINS).join(plugin))
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A plugin that refuses its environment does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child
}

/// The variables of a call for an interface of a container.
pub(crate) fn variables<'a>(
    verb: &'a str,
    pod: &'a Pod,
    ifname: &'a str,
    args: &'a str,
) -> [(&'static str, &'a str); 6] {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", &pod.id),
        ("CNI_NETNS", &pod.path),
        ("CNI_IFNAME", ifname),
        ("CNI_PATH", PLUGINS),
        ("CNI_ARGS", args),
    ]
}

/// Waits for the end of a plugin that was started.
pub(crate) fn finish(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
