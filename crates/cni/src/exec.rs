//! Runs plugins as programs (multus §10.3).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::env::Variables;
use crate::error::Error;
use crate::interpreter;
use crate::limit;

/// Modifies a command before it is started. A closure between fork and exec makes the start slower, because the
/// kernel then copies this process' memory.
pub type Prepare = Arc<dyn Fn(&mut Command) + Send + Sync>;

/// Finds plugins in directories and runs them.
#[derive(Clone, Default)]
pub struct Invoker {
    /// Directories of plugins, in order.
    pub dirs: Vec<PathBuf>,
    /// The base environment of plugins; the call's `CNI_*` variables override it.
    pub base: Variables,
    /// Modifies the command before it is started.
    pub prepare: Option<Prepare>,
    /// Timeout, after which the plugin and its process group are killed. `None` for no limit.
    pub limit: Option<Duration>,
}

impl fmt::Debug for Invoker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invoker")
            .field("dirs", &self.dirs)
            .finish_non_exhaustive()
    }
}

/// Settings of a process that continues after its in-process plugin calls.
#[derive(Clone)]
pub struct Resident {
    /// Modifies a program that a plugin starts.
    pub prepare: Option<Prepare>,
    /// Deadline of the call.
    pub deadline: Instant,
    /// The process repeats a failed DEL. It does not delay the end of the pod.
    pub repeats_dels: bool,
}

impl Resident {
    /// The remaining time of the call.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Timeout of a plugin, less than the runtime's timeout of the whole call: a hanging plugin must not block other
/// pods, nor the DEL of its own.
pub const RESIDENT_LIMIT: Duration = Duration::from_mins(2);

/// Attempts and delay for a binary that is being replaced ("text file busy").
const BUSY_TRIES: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

impl Invoker {
    /// The binary of a plugin: the first regular file of that name in the directories. Follows links.
    pub fn find(&self, plugin: &str) -> Result<PathBuf, Error> {
        if plugin.is_empty() {
            return Err(Error::internal("no plugin name provided"));
        }
        if plugin.contains('/') {
            return Err(Error::internal(format!("invalid plugin name: {plugin}")));
        }
        self.dirs
            .iter()
            .map(|dir| dir.join(plugin))
            .find(|path| path.is_file())
            .ok_or_else(|| {
                let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
                Error::internal(format!(
                    "failed to find plugin \"{plugin}\" in path [{}]",
                    dirs.join(" ")
                ))
            })
    }

    /// [Finds](Self::find) a plugin and [runs](Self::run_at) it.
    pub fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        self.run_at(&self.find(plugin)?, variables, config)
    }

    /// Runs a plugin with the given `CNI_*` variables over [`base`](Self::base) and `config` on standard input.
    /// Returns its standard output, and copies its standard error.
    pub fn run_at(&self, path: &Path, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        let output = self.output(path, variables, config)?;
        if !output.stderr.is_empty() {
            // Our own standard error may be closed.
            let _ = io::stderr().write_all(&output.stderr);
        }
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(failure(&output))
    }

    fn output(&self, path: &Path, variables: &Variables, config: &[u8]) -> Result<Output, Error> {
        let mut tries = 1;
        loop {
            match self.attempt(path, variables, config) {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                    tries += 1;
                    // The kernel does not notify when the writer closes the file.
                    thread::sleep(BUSY_PAUSE);
                }
                outcome => {
                    return outcome.map_err(|error| {
                        Error::internal(format!("failed to run plugin {}: {error}", path.display()))
                    });
                }
            }
        }
    }

    fn attempt(&self, path: &Path, variables: &Variables, config: &[u8]) -> io::Result<Output> {
        let mut command = Command::new(path);
        command.env_clear().envs(&self.base).envs(variables);
        if let Some(prepare) = &self.prepare {
            prepare(&mut command);
        }
        run(&mut command, config, self.limit)
    }
}

/// Runs a program with `input` on standard input and returns its output. With a limit, the program gets its own
/// process group, which is killed at the timeout. It is also killed when it prints too much.
///
/// # Errors
/// The program cannot be started, for example without its interpreter, or was killed.
pub fn run(command: &mut Command, input: &[u8], limit: Option<Duration>) -> io::Result<Output> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if limit.is_some() {
        command.process_group(0);
    }
    let child = command
        .spawn()
        .map_err(|error| explained(command.get_program(), error))?;
    limit::communicate(child, input, limit)
}

/// Explains a failed start. The kernel returns the same error for a missing program and for a missing interpreter.
fn explained(program: &OsStr, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let Some(interpreter) = interpreter::missing(Path::new(program)) else {
        return error;
    };
    let text = format!(
        "it needs the interpreter {}, which does not exist in this file system: if multus runs the host's plugins in its \
         container, set chrootDir to the host's root",
        interpreter.to_string_lossy().escape_debug()
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// The error of a failed plugin: the printed one, or one by its exit status.
fn failure(output: &Output) -> Error {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if stdout.trim().is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Error::internal(if stderr.is_empty() {
            format!("netplugin failed with no error message: {}", ending(output))
        } else {
            format!("netplugin failed: {stderr:?}")
        });
    }
    crate::json::from_slice(&output.stdout).unwrap_or_else(|error| {
        Error::internal(format!(
            "netplugin failed but error parsing its diagnostic message {stdout:?}: {error}"
        ))
    })
}

fn ending(output: &Output) -> String {
    match (output.status.code(), output.status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => output.status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn with_plugin(script: &str, test: impl FnOnce(&Invoker)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fake");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        test(&Invoker {
            dirs: vec!["/nowhere".into(), folder.path().into()],
            ..Invoker::default()
        });
    }

    fn run(script: &str) -> Result<String, Error> {
        let mut outcome = None;
        with_plugin(script, |invoker| {
            let variables = [("CNI_COMMAND".to_owned(), "ADD".to_owned())].into();
            outcome = Some(invoker.run("fake", &variables, b"{\"in\": 1}"));
        });
        outcome
            .unwrap()
            .map(|printed| String::from_utf8(printed).unwrap())
    }

    #[test]
    fn input_and_environment_reach_the_plugin() {
        assert_eq!(
            run("echo \"$CNI_COMMAND\"; /bin/cat").unwrap(),
            "ADD\n{\"in\": 1}"
        );
    }

    #[test]
    fn failures_are_distinguished() {
        // multus#74
        let msg = |script: &str| run(script).unwrap_err().msg;
        assert_eq!(
            msg("exit 3"),
            "netplugin failed with no error message: exit status 3"
        );
        assert_eq!(
            msg("echo 'no luck' >&2; exit 1"),
            "netplugin failed: \"no luck\\n\""
        );
        assert!(
            msg("echo nonsense; exit 1")
                .starts_with("netplugin failed but error parsing its diagnostic message")
        );
        // cni-plugins#8
        let typed = run("echo '{\"code\":11,\"msg\":\"later\",\"other\":1}'; exit 1").unwrap_err();
        assert_eq!(typed, Error::new(11, "later"));
    }

    /// Whether there is such a process, and it has not ended.
    fn lives(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        !pid.is_empty() && stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn hanging_plugin_is_killed_with_its_children() {
        // multus#95 (plugins)
        assert_eq!(RESIDENT_LIMIT, Duration::from_mins(2));
        for script in [
            // Its child holds its outputs.
            "/bin/sleep 1000 & echo $! > $NOTE; wait",
            // It closed its outputs.
            "exec >&- 2>&-; echo $$ > $NOTE; /bin/sleep 1000",
        ] {
            with_plugin(script, |invoker| {
                let note = tempfile::NamedTempFile::new().unwrap();
                let invoker = Invoker {
                    limit: Some(Duration::from_millis(200)),
                    ..invoker.clone()
                };
                let variables = [("NOTE".to_owned(), note.path().display().to_string())].into();
                // A config that the plugin does not read, and that fits into no pipe.
                let error = invoker.run("fake", &variables, &vec![b' '; 300_000]).unwrap_err();
                assert!(
                    error.msg.ends_with("/fake: killed, it did not end within 0.2 s"),
                    "{error}"
                );
                let started = fs::read_to_string(note.path()).unwrap();
                // It is killed by now; on a busy machine its end takes a moment.
                let killed = Instant::now();
                while lives(started.trim()) {
                    assert!(killed.elapsed() < Duration::from_mins(1), "{started} lives");
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
    }

    #[test]
    fn plugin_within_limit_is_not_affected() {
        with_plugin("/bin/cat; echo oh >&2; exit 3", |invoker| {
            let invoker = Invoker {
                limit: Some(Duration::from_secs(600)),
                ..invoker.clone()
            };
            let config = format!("{{\"code\":7,\"msg\":\"{}\"}}", "x".repeat(300_000));
            let error = invoker
                .run("fake", &Variables::new(), config.as_bytes())
                .unwrap_err();
            assert_eq!((error.code, error.msg.len()), (7, 300_000));
        });
    }

    #[test]
    fn plugin_with_endless_output_is_killed() {
        // multus#107
        for limit in [None, Some(Duration::from_secs(600))] {
            for script in ["exec /bin/cat /dev/zero", "exec /bin/cat /dev/zero >&2"] {
                with_plugin(script, |invoker| {
                    let invoker = Invoker {
                        limit,
                        ..invoker.clone()
                    };
                    let error = invoker.run("fake", &Variables::new(), b"{}").unwrap_err();
                    assert!(
                        error.msg.ends_with("/fake: killed, it printed more than 1 MiB"),
                        "{error}"
                    );
                });
            }
        }
    }

    #[test]
    fn input_held_by_another_process_is_not_waited_for() {
        // multus#107: `setsid` takes it out of the process group, so that no kill reaches it.
        with_plugin(
            "exec 3<&0; (exec >&- 2>&-; exec /usr/bin/setsid /bin/sleep 60 <&3) & exit 0",
            |invoker| {
                let begun = Instant::now();
                let config = vec![b' '; 300_000];
                invoker.run("fake", &Variables::new(), &config).unwrap();
                assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
            },
        );
    }

    #[test]
    fn names_are_looked_up_only_in_directories() {
        let invoker = Invoker {
            dirs: vec!["/a".into(), "/b".into()],
            ..Invoker::default()
        };
        let msg = |name: &str| invoker.find(name).unwrap_err().msg;
        assert_eq!(msg(""), "no plugin name provided");
        assert_eq!(msg("../x"), "invalid plugin name: ../x");
        assert_eq!(msg("x"), "failed to find plugin \"x\" in path [/a /b]");
    }

    #[test]
    fn large_config_does_not_block() {
        with_plugin("/bin/cat", |invoker| {
            let config = vec![b' '; 300_000];
            assert_eq!(
                invoker.run("fake", &Variables::new(), &config).unwrap().len(),
                config.len()
            );
        });
        with_plugin("exit 0", |invoker| {
            assert!(
                invoker
                    .run("fake", &Variables::new(), &vec![b' '; 300_000])
                    .is_ok()
            );
        });
    }
}
