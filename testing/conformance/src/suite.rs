//! Runs Kubernetes' tests with Ginkgo, their framework, and reads the results.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use cluster::kubernetes::Suite;
use cluster::{Cluster, Progress, run};

use crate::error::{At, Error, Result};
use crate::report::{Outcome, Results};
use crate::selection::{self, Excluded};

/// The network of the tests: that of the control plane, which reaches nodes and pods.
const PLACE: &str = "control";
/// Timeout of the whole run.
const LIMIT: &str = "--timeout=2h";
/// Ginkgo's report of a run, in the run's directory.
const REPORT: &str = "report.json";
/// The output of the tests.
const LOG: &str = "e2e.log";
/// Interval between reads of the log.
const PERIOD: Duration = Duration::from_millis(300);

/// A run of the tests.
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) cluster: &'a Cluster,
    /// Go regular expressions. A spec runs if one of them matches.
    pub(crate) focus: &'a [String],
    pub(crate) excluded: &'a [Excluded],
    /// Number of concurrent specs.
    pub(crate) processes: usize,
    /// Directory of report and log.
    pub(crate) dir: &'a Path,
}

impl Run<'_> {
    /// Returns the log of the tests.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Lists the specs that match the focus. Excluded specs have their reason, and the others have no result yet.
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
            if let Some(reason) = selection::reason(self.excluded, &spec.name) {
                spec.outcome = Outcome::Excluded(reason.to_owned());
            }
        }
        Ok(selected)
    }

    /// Runs the specs of `selected` that are not excluded, and returns the results of all specs.
    pub(crate) fn run(&self, selected: Results, progress: &mut dyn Progress) -> Result<Results> {
        let is_excluded = |outcome: &Outcome| matches!(outcome, Outcome::Excluded(_));
        let (excluded, to_run): (Vec<_>, Vec<_>) = selected
            .specs
            .into_iter()
            .partition(|spec| is_excluded(&spec.outcome));
        if to_run.is_empty() {
            return Err(Error::NothingSelected);
        }
        progress.step(&format!(
            "running {} specs, {} at a time; {} are excluded",
            to_run.len(),
            self.processes,
            excluded.len()
        ));
        let report = self.dir.join(REPORT);
        // A report of an earlier run must not be mistaken for this one's.
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
                .push(format!("{missing} specs did not finish ({status})"));
        }
        if !status.success() && !results.has_failures() {
            results
                .around
                .push(format!("the tests failed without a reason ({status})"));
        }
        results.specs.extend(excluded);
        results.specs.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(results)
    }

    /// Runs the program, and counts specs in its output.
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
        let parts = self.excluded.iter().flat_map(|group| &group.parts);
        argv.extend(parts.map(|part| format!("--skip={}", selection::literally(part))));
        argv.push(self.suite.tests.display().to_string());
        argv.push("--".to_owned());
        argv.push(format!("--kubeconfig={}", kubectl.kubeconfig().display()));
        let program = kubectl.command::<&str>([]).get_program().to_owned();
        argv.push(format!("--kubectl-path={}", program.display()));
        argv.push("--provider=skeleton".to_owned());
        // Without this flag, specs that need two nodes are skipped.
        argv.push(format!("--num-nodes={}", self.cluster.nodes().len()));
        let mut command = self.cluster.network_command(PLACE, argv)?;
        // The cluster is on this machine, so the user's proxies do not apply.
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

/// Counts specs by the line that Ginkgo prints after each.
#[derive(Debug, Default)]
struct Count {
    /// The incomplete last line.
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
    fn finished_specs_are_counted() {
        let mut count = Count::default();
        count.read("Will run 3 of 7000 specs\n• [3.2 secon".as_bytes());
        assert_eq!(count.shown(3), "0 of 3 specs");
        count.read("ds]\n[sig-network] DNS\nS [SKIPPED] [0.1 seconds]\n".as_bytes());
        assert_eq!(count.shown(3), "2 of 3 specs");
        count.read("• [FAILED] [9.0 seconds]\n".as_bytes());
        assert_eq!(count.shown(3), "3 of 3 specs, 1 failed");
    }
}
