//! A call of a plugin, as by a runtime, and its cost.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use crate::stage::Host;
use crate::statistics::Sample;

/// A set of plugins.
#[derive(Debug)]
pub(crate) struct Plugins {
    /// The directory of the plugins.
    pub(crate) dir: PathBuf,
    /// Variables for programs that the plugins start.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The CNI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) verb: Verb,
    pub(crate) plugin: &'a str,
    pub(crate) container_id: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) netns: &'a Path,
    /// `CNI_ARGS`.
    pub(crate) args: &'a str,
    pub(crate) config: &'a str,
}

/// `CNI_ARGS` of plugins that ignore them.
pub(crate) const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod";

impl Plugins {
    /// Calls a plugin in the namespace of `host`, or else like [`Plugins::call_here`].
    pub(crate) fn call(&self, host: &Host, call: &Call<'_>) -> Result<Sample, String> {
        host.ns
            .run(|| self.call_here(call))
            .map_err(|error| error.to_string())?
    }

    /// Calls a plugin in the namespace of this thread. The measured time starts before the process, and ends when its
    /// output and status are read. The error is the plugin's.
    pub(crate) fn call_here(&self, call: &Call<'_>) -> Result<Sample, String> {
        let mut command = Command::new(self.dir.join(call.plugin));
        command
            .env_clear()
            .env("CNI_COMMAND", call.verb.name())
            .env("CNI_CONTAINERID", call.container_id)
            .env("CNI_NETNS", call.netns)
            .env("CNI_IFNAME", call.ifname)
            .env("CNI_PATH", &self.dir)
            .env("CNI_ARGS", call.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (output, sample) = measured(UsageWho::RUSAGE_CHILDREN, || run(&mut command, call.config));
        let output = output.map_err(|error| format!("cannot run {}: {error}", self.dir.display()))?;
        if output.status.success() {
            Ok(sample)
        } else {
            Err(complaint(&output))
        }
    }
}

/// Runs a command with this standard input. Without a hook between fork and exec, the standard library uses
/// `posix_spawn`, which copies no page tables.
fn run(command: &mut Command, stdin: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // The exit status explains the failure of a plugin that does not read its input.
        let _ = pipe.write_all(stdin.as_bytes());
    }
    child.wait_with_output()
}

/// Runs `work` and returns its cost: duration, and processor time of this process or of children that ended meanwhile.
pub(crate) fn measured<T>(who: UsageWho, work: impl FnOnce() -> T) -> (T, Sample) {
    let before = cpu(who);
    let began = Instant::now();
    let done = work();
    let wall = began.elapsed();
    let cpu = cpu(who).saturating_sub(before);
    (done, Sample { wall, cpu })
}

fn cpu(who: UsageWho) -> Duration {
    let Ok(usage) = getrusage(who) else {
        return Duration::ZERO;
    };
    let microseconds: i64 = [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .sum();
    Duration::from_micros(microseconds.unsigned_abs())
}

/// Returns the error of a failed plugin: the message of its error object, or else its output.
fn complaint(output: &Output) -> String {
    let said = serde_json::from_slice::<Value>(&output.stdout)
        .ok()
        .and_then(|error| {
            let message = error["msg"].as_str()?;
            Some(match error["details"].as_str() {
                Some(details) => format!("{message}: {details}"),
                None => message.to_owned(),
            })
        });
    said.unwrap_or_else(|| {
        format!(
            "{}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn failed(stdout: &str, stderr: &str) -> String {
        complaint(&Output {
            status: ExitStatus::from_raw(256),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn error_of_a_plugin_is_its_error_object_or_its_output() {
        assert_eq!(
            failed(r#"{"code":999,"msg":"no","details":"really"}"#, "noise"),
            "no: really"
        );
        assert_eq!(failed(r#"{"code":999,"msg":"no"}"#, ""), "no");
        assert_eq!(failed("half a {", "panic"), "exit status: 1: panichalf a {");
    }

    #[test]
    fn cost_of_work_has_duration_and_processor_time() {
        let ((), sample) = measured(UsageWho::RUSAGE_SELF, || {
            std::hint::black_box((0..1_000_000_u64).map(std::hint::black_box).sum::<u64>());
        });
        assert!(
            sample.wall > Duration::ZERO && sample.cpu > Duration::ZERO,
            "{sample:?}"
        );
    }
}
