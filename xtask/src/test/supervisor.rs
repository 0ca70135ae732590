//! Runs the tests in a separate process, so that an interrupted run leaves nothing behind.
//!
//! ```text
//! supervisor ──┬── guard    leads a process group, and kills it once the supervisor is gone
//!              └── run      is in that group with all its processes: builds, test programs, the virtual machine
//! ```
//!
//! The programs of a cluster are in no such group: a cluster without an owner is removed after the run, or else by the
//! next run.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use anyhow::Context;
use cluster::{Cluster, Home, Progress, Steps};
use nix::sys::signal::{SigSet, Signal};

use super::{guest, is_root};
use crate::paths;

/// Signals that interrupt a run.
const INTERRUPTS: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];
/// This program, even if a build replaced its file.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The flag of a supervised run.
const SUPERVISED: &str = "--supervised";
/// Waits for the end of its input, which means the end of the supervisor, and kills its process group.
const GUARD: &str = "read -r line; kill -s KILL 0";
/// Offset of exit codes for signals, as in shells.
const BY_SIGNAL: i32 = 128;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// By itself, or by a signal to the run.
    Itself(ExitStatus),
    /// By a signal to the supervisor.
    Interrupted(Signal),
}

impl Ended {
    /// Returns the exit code, as in shells.
    fn code(self) -> i32 {
        match self {
            Self::Itself(status) => status
                .code()
                .unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or_default()),
            Self::Interrupted(signal) => BY_SIGNAL + signal as i32,
        }
    }
}

/// Runs this program with the same arguments, supervised.
pub(super) fn run(keep: bool) -> anyhow::Result<ExitCode> {
    let mut steps = Steps::new();
    remove_leftovers(&mut steps);
    let mut words = std::env::args_os().skip(1);
    let mut command = Command::new(THIS_PROGRAM);
    command.args(words.by_ref().take(1)).arg(SUPERVISED).args(words);
    let ended = supervise(command)?;
    match ended {
        Ended::Itself(status) => {
            if let Some(signal) = status.signal() {
                eprintln!("\nthe tests were ended by signal {signal}");
            }
        }
        Ended::Interrupted(_) if keep => eprintln!("the clusters are kept because of --keep"),
        Ended::Interrupted(_) => {}
    }
    remove_leftovers(&mut steps);
    if let Ended::Interrupted(signal) = ended {
        steps.step(&format!("ended by {signal}"));
    }
    Ok(ExitCode::from(u8::try_from(ended.code()).unwrap_or(1)))
}

/// Runs a command, and ends it with all its processes when this process is interrupted. Another signal ends this
/// process at once.
fn supervise(command: Command) -> anyhow::Result<Ended> {
    let mut group = Group::start(command)?;
    let mut signals: SigSet = INTERRUPTS.into_iter().collect();
    signals.add(Signal::SIGCHLD);
    // Signals are blocked after the start, because programs inherit the mask. An earlier signal ended this process.
    signals.thread_block().context("cannot block signals")?;
    let ended = loop {
        if let Some(status) = group.run.try_wait().context("cannot wait for the tests")? {
            break Ended::Itself(status);
        }
        let signal = signals.wait().context("cannot wait for signals")?;
        if signal != Signal::SIGCHLD {
            break Ended::Interrupted(signal);
        }
    };
    signals.thread_unblock().context("cannot unblock signals")?;
    if let Ended::Interrupted(signal) = ended {
        eprintln!(
            "\ninterrupted by {signal}: ending the test programs and removing what they left; the next signal ends this at \
             once"
        );
    }
    group.end();
    Ok(ended)
}

/// A process group, killed when this process ends.
struct Group {
    guard: Child,
    run: Child,
}

impl Group {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let guard = Command::new("sh")
            .args(["-c", GUARD])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run sh")?;
        let group = i32::try_from(guard.id()).context("cannot name the process group")?;
        // Without input: a background program that reads from a terminal is stopped.
        let run = command
            .stdin(Stdio::null())
            .process_group(group)
            .spawn()
            .context("cannot run the tests")?;
        Ok(Self { guard, run })
    }

    /// Kills the rest of the group, and waits for the end of the run.
    fn end(mut self) {
        // Closes the guard's input.
        let _ = self.guard.wait();
        // The guard may have been killed.
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

/// Removes the clusters and directories of ended runs. Reports failures, and continues.
fn remove_leftovers(steps: &mut Steps) {
    guest::clear(&paths::target());
    // Only root creates clusters.
    if !is_root() {
        return;
    }
    let found = Home::from_env().and_then(|home| Cluster::abandoned(&home));
    let clusters = found.unwrap_or_else(|error| {
        eprintln!("cannot find the clusters of ended runs: {error:?}");
        Vec::new()
    });
    for cluster in clusters {
        let name = cluster.name();
        steps.step(&format!(
            "removing cluster {name}: the process that made it is gone"
        ));
        if let Err(error) = cluster.down_if_abandoned(steps) {
            eprintln!("cannot remove cluster {name}: {error:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use cluster::{Process, wait};
    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;

    /// Set in the supervisor's process, to the directory of the files that show its progress.
    const ROLE: &str = "WEFT_TEST_SUPERVISOR";
    const TIMEOUT: Duration = Duration::from_mins(1);

    /// A process that is the supervisor. A drop kills it, even if the test failed.
    struct Supervisor(Child);

    impl Drop for Supervisor {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// In the supervisor's process: supervises a shell that starts a program, calls `then`, and ends the process.
    fn play(then: impl FnOnce(&Path, Ended)) {
        let Some(folder) = std::env::var_os(ROLE) else {
            return;
        };
        let mut shell = Command::new("sh");
        let script = "sleep 1000 & echo $! >\"$0/new\"; mv \"$0/new\" \"$0/program\"; wait";
        shell.args(["-c", script]).arg(&folder);
        then(Path::new(&folder), supervise(shell).unwrap());
        // The rest of the test belongs to the parent process.
        std::process::exit(0);
    }

    /// Starts a process that runs `test` as the supervisor. Returns it with the program of the shell.
    fn start(test: &str, folder: &Path) -> (Supervisor, Process) {
        let mut supervisor = Command::new(std::env::current_exe().unwrap());
        let name = format!("test::supervisor::tests::{test}");
        supervisor.args(["--exact", &name, "--nocapture"]);
        supervisor.env(ROLE, folder).stdout(Stdio::null());
        // Its threads inherit the mask: otherwise another thread could receive the signals.
        let mut signals: SigSet = INTERRUPTS.into_iter().collect();
        signals.add(Signal::SIGCHLD);
        signals.thread_block().unwrap();
        let supervisor = Supervisor(supervisor.spawn().unwrap());
        signals.thread_unblock().unwrap();
        let program = wait::until("the shell's program", TIMEOUT, || {
            let number =
                std::fs::read_to_string(folder.join("program")).map_err(|error| error.to_string())?;
            let number = number.trim().parse().map_err(|_| number)?;
            Process::of(number).ok_or_else(|| "it is gone".to_owned())
        });
        (supervisor, program.unwrap())
    }

    fn send(to: &Child, signal: Signal) {
        kill(Pid::from_raw(to.id().try_into().unwrap()), signal).unwrap();
    }

    fn wait_gone(program: Process) {
        let gone = || if program.lives() { Err("it lives") } else { Ok(()) };
        wait::until("the end of the program", TIMEOUT, gone).unwrap();
    }

    #[test]
    fn supervisor_interrupted_ends_the_group_and_exits_with_the_signal() {
        play(|_, ended| std::process::exit(ended.code()));
        for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
            let folder = tempfile::tempdir().unwrap();
            let test = "supervisor_interrupted_ends_the_group_and_exits_with_the_signal";
            let (mut supervisor, program) = start(test, folder.path());
            send(&supervisor.0, signal);
            assert_eq!(supervisor.0.wait().unwrap().code(), Some(code));
            wait_gone(program);
        }
    }

    #[test]
    fn supervisor_interrupted_twice_ends_at_once() {
        play(|folder, _| {
            std::fs::write(folder.join("interrupted"), "").unwrap();
            // The removal of a cluster may take long.
            loop {
                std::thread::park();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let (mut supervisor, program) = start("supervisor_interrupted_twice_ends_at_once", folder.path());
        send(&supervisor.0, Signal::SIGTERM);
        let interrupted = folder.path().join("interrupted");
        let is_interrupted = || {
            if interrupted.exists() {
                Ok(())
            } else {
                Err("not yet")
            }
        };
        wait::until("the first signal", TIMEOUT, is_interrupted).unwrap();
        send(&supervisor.0, Signal::SIGTERM);
        let status = supervisor.0.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
        wait_gone(program);
    }

    #[test]
    fn supervisor_killed_leaves_no_program() {
        play(|_, _| {});
        let folder = tempfile::tempdir().unwrap();
        let (mut supervisor, program) = start("supervisor_killed_leaves_no_program", folder.path());
        send(&supervisor.0, Signal::SIGKILL);
        supervisor.0.wait().unwrap();
        wait_gone(program);
    }

    #[test]
    fn finished_run_leaves_no_program_and_returns_its_code() {
        let mut shell = Command::new("sh");
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        shell
            .args(["-c", "sleep 1000 & echo $! >\"$0\"; exit 7"])
            .arg(&program);
        let mut group = Group::start(shell).unwrap();
        let status = group.run.wait().unwrap();
        let number = std::fs::read_to_string(&program).unwrap();
        let program = Process::of(number.trim().parse().unwrap()).unwrap();
        group.end();
        assert_eq!(Ended::Itself(status).code(), 7);
        wait_gone(program);
        assert_eq!(Ended::Itself(ExitStatus::from_raw(9)).code(), 137);
    }
}
