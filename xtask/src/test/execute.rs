//! Runs a test program like Cargo.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cluster::{Progress, run};

use super::libtest::Reader;
use crate::build::{Kind, Program};
use crate::paths;

/// Variable with the number of concurrent tests of a program.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Variable that asserts that all programs of the workspace are beside the directory of the test program, and up to
/// date.
const BUILT: &str = "WEFT_BUILT";
/// Interval of progress reports.
const POLL: Duration = Duration::from_millis(200);
/// A program hangs if no test ends for this time.
const SILENCE: Duration = Duration::from_mins(40);

/// A program and the settings of its run.
#[derive(Debug)]
pub(super) struct Execution<'a> {
    pub(super) program: &'a Program,
    /// Names of tests, or parts of them. Empty for all tests.
    pub(super) filters: Vec<String>,
    /// True if the filters are whole names.
    pub(super) exact: bool,
    /// Number of concurrent tests.
    pub(super) threads: usize,
    /// Runs with lower priority.
    pub(super) gives_way: bool,
    pub(super) environment: Vec<(&'static str, OsString)>,
}

/// The result.
#[derive(Debug)]
pub(super) struct Executed {
    pub(super) reader: Reader,
    /// The output to print.
    pub(super) shown: String,
    pub(super) took: Duration,
}

/// Returns the name of a program in output.
pub(super) fn label(program: &Program) -> String {
    match program.kind {
        Kind::IntegrationTests => format!("{} {}", program.package, program.target),
        Kind::Binary | Kind::UnitTests => program.package.clone(),
    }
}

impl<'a> Execution<'a> {
    /// Returns a run of all tests of a program.
    pub(super) fn of(program: &'a Program, threads: usize) -> Self {
        Self {
            program,
            filters: Vec::new(),
            exact: false,
            threads,
            gives_way: true,
            environment: Vec::new(),
        }
    }

    /// Returns the names of its tests.
    pub(super) fn list(&self) -> anyhow::Result<Vec<String>> {
        let mut command = self.command();
        let output = run::output(command.arg("--list"))?;
        Ok(super::libtest::listed(&output).map(str::to_owned).collect())
    }

    /// Runs the program. An error means that it could not be run. Failed tests are counted.
    pub(super) fn run(&self, progress: &mut dyn Progress) -> anyhow::Result<Executed> {
        let label = label(self.program);
        let dir = paths::target().join("tests");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let log = dir.join(format!("{}-{}.log", label.replace(' ', "-"), std::process::id()));
        let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = self.command();
        command
            .arg("--show-output")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let began = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.file.display()))?;
        let lines = lines(&mut child)?;
        let mut reader = Reader::default();
        let mut shown = String::new();
        let mut heard = Instant::now();
        loop {
            match lines.recv_timeout(POLL) {
                Ok(line) => {
                    heard = Instant::now();
                    if let Some(line) = reader.line(&line, began.elapsed()) {
                        shown.push_str(&line);
                        shown.push('\n');
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (ended, all) = reader.progress();
                    // The user named the test.
                    let detail = if self.exact && all == 1 {
                        String::new()
                    } else {
                        format!("{label}: test {ended} of {all}")
                    };
                    progress.tick(&detail);
                    if heard.elapsed() > SILENCE {
                        let _ = child.kill();
                        shown.push_str(&format!(
                            "no test has ended for {} s: it was killed\n",
                            SILENCE.as_secs()
                        ));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().with_context(|| format!("cannot wait for {label}"))?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        if !status.success() {
            shown.push_str(&run::tail(&said));
            shown.push('\n');
        }
        if !status.success() && reader.totals().failed == 0 {
            bail!("{label} ended early ({status})\n{shown}");
        }
        Ok(Executed {
            reader,
            shown,
            took: began.elapsed(),
        })
    }

    fn command(&self) -> Command {
        let mut command = if self.gives_way {
            let mut nice = Command::new("nice");
            nice.args(["-n", "10"]).arg(&self.program.file);
            nice
        } else {
            Command::new(&self.program.file)
        };
        command
            .current_dir(&self.program.dir)
            .env("CARGO_MANIFEST_DIR", &self.program.dir);
        command.args(&self.filters);
        if self.exact {
            command.arg("--exact");
        }
        command.env(TEST_THREADS, self.threads.to_string());
        command.env(BUILT, "1");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

fn lines(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let stdout = child.stdout.take().context("a test program without output")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use cluster::Quiet;

    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, Program) {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            package: "operator".to_owned(),
            target: "api".to_owned(),
            kind: Kind::IntegrationTests,
            file,
            dir: dir.path().to_owned(),
        };
        (dir, program)
    }

    #[test]
    fn program_that_dies_between_its_tests_is_an_error_with_its_output() {
        let (_dir, program) =
            script("echo 'running 2 tests'; echo 'test a ... ok'; echo overflow >&2; exit 134");
        let error = Execution::of(&program, 1)
            .run(&mut Quiet)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("operator api ended early") && error.contains("overflow"),
            "{error}"
        );
    }

    #[test]
    fn failed_tests_are_counted_and_printed() {
        let result = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let (_dir, program) = script(&format!(
            "echo \"threads $RUST_TEST_THREADS\"; echo 'test a ... ok'; echo 'test b ... FAILED'; echo '{result}'; exit 101"
        ));
        let executed = Execution::of(&program, 3).run(&mut Quiet).unwrap();
        assert_eq!(
            executed.reader.totals().to_string(),
            "1 passed, 1 failed, 0 skipped"
        );
        assert!(
            executed.shown.contains("threads 3\ntest b ... FAILED\n"),
            "{}",
            executed.shown
        );
    }

    #[test]
    fn tests_are_listed() {
        let (_dir, program) = script("echo 'a::b: test'; echo; echo '1 test, 0 benchmarks'");
        assert_eq!(Execution::of(&program, 1).list().unwrap(), ["a::b"]);
    }
}
