//! Runs Kubernetes' tests by Ginkgo, which they are written with, and reads what came of it.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use cluster::kubernetes::Suite;
use cluster::{Cluster, Progress, run};

use crate::error::{At, Error, Result};
use crate::report::{Outcome, Results};
use crate::selection::{self, LeftOut};

/// Where the tests run: in the network of the control plane, from which nodes and pods can be reached.
const PLACE: &str = "control";
/// After this the rest of the specs is given up.
const LIMIT: &str = "--timeout=4h";
/// Ginkgo's report of a run, in the folder of the run.
const REPORT: &str = "report.json";
/// What the tests print.
const LOG: &str = "e2e.log";
/// How often the log is looked at.
const PERIOD: Duration = Duration::from_millis(300);

/// One run of the tests.
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) cluster: &'a Cluster,
    /// Regular expressions of Go; a spec that one of them matches is run.
    pub(crate) focus: &'a [String],
    pub(crate) left_out: &'a [LeftOut],
    /// How many specs run at the same time.
    pub(crate) processes: usize,
    /// Where report and log go.
    pub(crate) dir: &'a Path,
}

impl Run<'_> {
    /// Where the tests' own words are.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Names the specs that the focus matches. Those that are left out have their reason, the others are yet to be run.
    pub(crate) fn selected(&self) -> Result<Results> {
        let report = self.dir.join("selected.json");
        let mut command = Command::new(&self.suite.tests);
        command.arg("--ginkgo.dry-run").arg("--ginkgo.no-color");
        command.arg(format!("--ginkgo.json-report={}", report.display()));
        for focus in self.focus {
            command.arg(format!("--ginkgo.focus={focus}"));
        }
        run::output(&mut command)?;
        let mut selected = read(&report)?;
        for spec in &mut selected.specs {
            if let Some(reason) = selection::reason(self.left_out, &spec.name) {
                spec.outcome = Outcome::LeftOut(reason.to_owned());
            }
        }
        Ok(selected)
    }

    /// Runs what `selected` does not leave out, and returns what became of all of it.
    pub(crate) fn run(&self, selected: Results, progress: &mut dyn Progress) -> Result<Results> {
        let is_left_out = |outcome: &Outcome| matches!(outcome, Outcome::LeftOut(_));
        let (left_out, to_run): (Vec<_>, Vec<_>) = selected
            .specs
            .into_iter()
            .partition(|spec| is_left_out(&spec.outcome));
        if to_run.is_empty() {
            return Err(Error::NothingSelected);
        }
        progress.step(&format!(
            "running {} specs, {} at a time; {} are left out",
            to_run.len(),
            self.processes,
            left_out.len()
        ));
        let report = self.dir.join(REPORT);
        // One of an earlier run must not be taken for that of this one.
        let _ = fs::remove_file(&report);
        let status = self.watch(to_run.len(), progress)?;
        if !report.is_file() {
            let output = fs::read_to_string(self.log()).unwrap_or_default();
            return Err(Error::NoReport {
                status: status.to_string(),
                log: self.log(),
                output: run::tail(&output),
            });
        }
        let mut results = read(&report)?;
        let missing = to_run.len().saturating_sub(results.specs.len());
        if missing > 0 {
            results
                .around
                .push(format!("{missing} specs were not run to their end ({status})"));
        }
        if !status.success() && !results.has_failures() {
            results
                .around
                .push(format!("the tests failed without saying why ({status})"));
        }
        results.specs.extend(left_out);
        results.specs.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(results)
    }

    /// Runs the program to its end, counting specs in what it prints.
    fn watch(&self, all: usize, progress: &mut dyn Progress) -> Result<ExitStatus> {
        let path = self.log();
        let log = File::create(&path).at("create", &path)?;
        let copy = log.try_clone().at("write", &path)?;
        let mut child = self
            .command()?
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .spawn()
            .at("run", &self.suite.ginkgo)?;
        let mut reader = File::open(&path).at("read", &path)?;
        let mut count = Count::default();
        loop {
            let ended = child.try_wait().at("wait for", &self.suite.ginkgo)?;
            let mut fresh = Vec::new();
            reader.read_to_end(&mut fresh).at("read", &path)?;
            count.read(&fresh);
            progress.tick(&count.shown(all));
            if let Some(status) = ended {
                return Ok(status);
            }
            std::thread::sleep(PERIOD);
        }
    }

    fn command(&self) -> Result<Command> {
        let kubectl = self.cluster.kubectl();
        let mut argv: Vec<String> = vec![
            self.suite.ginkgo.display().to_string(),
            format!("--procs={}", self.processes),
            "--no-color".to_owned(),
            "-v".to_owned(),
            "--silence-skips".to_owned(),
            LIMIT.to_owned(),
            format!("--json-report={REPORT}"),
            format!("--output-dir={}", self.dir.display()),
        ];
        argv.extend(self.focus.iter().map(|focus| format!("--focus={focus}")));
        let parts = self.left_out.iter().flat_map(|group| &group.parts);
        argv.extend(parts.map(|part| format!("--skip={}", selection::literally(part))));
        argv.push(self.suite.tests.display().to_string());
        argv.push("--".to_owned());
        argv.push(format!("--kubeconfig={}", kubectl.kubeconfig().display()));
        let program = kubectl.command::<&str>([]).get_program().to_owned();
        argv.push(format!("--kubectl-path={}", program.display()));
        argv.push("--provider=skeleton".to_owned());
        // Without the number, specs that need two nodes skip themselves.
        argv.push(format!("--num-nodes={}", self.cluster.nodes().len()));
        let mut command = self.cluster.network_command(PLACE, argv)?;
        // The cluster is on this machine, whatever the way to the rest of the world.
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        Ok(command)
    }
}

fn read(report: &Path) -> Result<Results> {
    let text = fs::read_to_string(report).at("read", report)?;
    Results::parse(&text).map_err(|source| Error::Report {
        path: report.to_owned(),
        source,
    })
}

/// Counts specs by the lines that Ginkgo ends each of them with.
#[derive(Debug, Default)]
struct Count {
    /// The part of the last line that is there.
    partial: Vec<u8>,
    ended: usize,
    failed: usize,
}

impl Count {
    fn read(&mut self, fresh: &[u8]) {
        for byte in fresh {
            if *byte != b'\n' {
                self.partial.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial).into_owned();
            self.partial.clear();
            // `• [3.2 seconds]`, `• [FAILED] [3.2 seconds]`, `S [SKIPPED] [0.1 seconds]`
            if line.starts_with("• [") || line.starts_with("S [SKIPPED]") {
                self.ended += 1;
            }
            if line.starts_with("• [FAILED]") || line.starts_with("• [PANICKED]") {
                self.failed += 1;
            }
        }
    }

    fn shown(&self, all: usize) -> String {
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{} of {all} specs{failed}", self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_counted_as_they_end() {
        let mut count = Count::default();
        count.read("Will run 3 of 7000 specs\n• [3.2 secon".as_bytes());
        assert_eq!(count.shown(3), "0 of 3 specs");
        count.read("ds]\n[sig-network] DNS\nS [SKIPPED] [0.1 seconds]\n".as_bytes());
        assert_eq!(count.shown(3), "2 of 3 specs");
        count.read("• [FAILED] [9.0 seconds]\n".as_bytes());
        assert_eq!(count.shown(3), "3 of 3 specs, 1 failed");
    }
}
