//! The measured multus daemon.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use cluster::wait;
use serde_json::{Value, json};

use super::api;

/// Timeout of its readiness.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Port of its metrics.
const METRICS: u16 = 9100;
/// Prefix of the names of the steps' metric.
const STEPS: &str = "multus_add_step_duration_seconds_";

/// Paths of a daemon's environment.
pub(super) struct Place {
    /// The program of all daemons.
    pub(super) program: PathBuf,
    /// A directory in memory, with everything except persistent files.
    pub(super) dir: PathBuf,
    /// The persistent files of the daemon and its plugins, on a real file system.
    pub(super) state: PathBuf,
    /// Plugins.
    pub(super) bin: PathBuf,
    /// The host's root, as in a container.
    pub(super) root: PathBuf,
    /// Kubeconfig of the API server.
    pub(super) kubeconfig: PathBuf,
}

/// A running daemon. A drop kills it.
pub(super) struct Daemon {
    child: Child,
    /// The shim's configuration for runtimes.
    pub(super) config: String,
}

impl Daemon {
    /// Starts a daemon whose pods all get `network`, and waits until it is ready.
    pub(super) fn start(place: &Place, network: &Value) -> anyhow::Result<Self> {
        let configs = place.dir.join("net.d");
        let _ = fs::remove_dir_all(&configs);
        fs::create_dir_all(&configs).context("no directory for configurations")?;
        let primary =
            json!({ "cniVersion": network["cniVersion"], "name": network["name"], "plugins": [network] });
        fs::write(configs.join("10-primary.conflist"), primary.to_string()).context("no primary network")?;
        let sockets = place.dir.join("multus");
        let config = json!({
            "cniVersion": "1.0.0", "chrootDir": place.root, "binDir": place.bin, "cniDir": place.state.join("multus"),
            "cniConfigDir": configs, "multusAutoconfigDir": configs, "multusConfigFile": "auto",
            "socketDir": sockets, "daemonSocketDir": sockets, "logToStderr": true, "logLevel": "verbose",
            "metricsPort": METRICS,
        });
        let file = place.dir.join("daemon-config.json");
        fs::write(&file, config.to_string()).context("no configuration")?;
        let log = place.dir.join("daemon.log");
        let output = File::create(&log).context("no log")?;
        let child = Command::new(&place.program)
            .args(["multus-daemon", "--config"])
            .arg(&file)
            .env("KUBECONFIG", &place.kubeconfig)
            .env("MULTUS_NODE_NAME", api::NODE)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("no log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {}", place.program.display()))?;
        let mut daemon = Self {
            child,
            config: String::new(),
        };
        let written = configs.join("00-multus.conf");
        let ready = wait::until("the readiness of the daemon", TIMEOUT, || {
            UnixStream::connect(sockets.join("multus.sock")).map_err(|error| error.to_string())?;
            fs::read_to_string(&written).map_err(|error| error.to_string())
        });
        daemon.config = ready.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        Ok(daemon)
    }

    /// Returns the memory in kibibytes: proportional, and anonymous.
    pub(super) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let rollup = self.proc("smaps_rollup")?;
        Ok((field(&rollup, "Pss:"), field(&rollup, "Anonymous:")))
    }

    /// Returns the durations of ADD's steps so far.
    pub(super) fn steps() -> anyhow::Result<Spent> {
        let mut connection = TcpStream::connect(("127.0.0.1", METRICS)).context("no metrics")?;
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .context("no metrics")?;
        let mut text = String::new();
        connection.read_to_string(&mut text).context("no metrics")?;
        Ok(Spent::read(&text))
    }

    /// Returns the processor time so far.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let ticks: u64 = self.stat(11, 2)?.iter().sum();
        Ok(Duration::from_micros(
            ticks * 1_000_000 / rustix::param::clock_ticks_per_second(),
        ))
    }

    /// Returns the number of page faults without I/O so far.
    pub(super) fn faults(&self) -> anyhow::Result<u64> {
        Ok(self.stat(7, 1)?.iter().sum())
    }

    /// Returns fields of the kernel's `stat`, counted from the one after the name.
    fn stat(&self, from: usize, count: usize) -> anyhow::Result<Vec<u64>> {
        let stat = self.proc("stat")?;
        // The second field, a name, may contain spaces. The others cannot.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let fields = fields.split(' ').skip(from).take(count);
        Ok(fields.filter_map(|field| field.parse().ok()).collect())
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        read_proc(self.child.id(), file)
    }
}

/// Name, seconds and count of each step, in the order of the metrics.
#[derive(Debug, Default)]
pub(super) struct Spent(Vec<(String, f64, f64)>);

impl Spent {
    /// Parses the text of the metrics.
    fn read(text: &str) -> Self {
        let mut spent = Self::default();
        for line in text.lines() {
            let Some((kind, rest)) = line
                .strip_prefix(STEPS)
                .and_then(|line| line.split_once("{step=\""))
            else {
                continue;
            };
            let Some((step, value)) = rest.split_once("\"} ") else {
                continue;
            };
            let value: f64 = value.parse().unwrap_or_default();
            let place = spent.0.iter().position(|(name, ..)| name == step);
            let place = place.unwrap_or_else(|| {
                spent.0.push((step.to_owned(), 0.0, 0.0));
                spent.0.len() - 1
            });
            match kind {
                "sum" => spent.0[place].1 = value,
                "count" => spent.0[place].2 = value,
                _ => {}
            }
        }
        spent
    }

    /// Returns the means in milliseconds since another moment, longest first.
    pub(super) fn since(&self, before: &Self) -> String {
        let mut means: Vec<_> = self
            .0
            .iter()
            .map(|(name, sum, count)| {
                let (earlier, times) = before
                    .0
                    .iter()
                    .find(|(other, ..)| other == name)
                    .map_or((0.0, 0.0), |(_, sum, count)| (*sum, *count));
                (name, (sum - earlier) / (count - times).max(1.0) * 1e3)
            })
            .collect();
        means.sort_by(|one, other| other.1.total_cmp(&one.1));
        let texts: Vec<_> = means
            .iter()
            .map(|(name, mean)| format!("{name} {mean:.2}"))
            .collect();
        texts.join(", ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a file of the kernel about a process.
pub(super) fn read_proc(process: u32, file: &str) -> anyhow::Result<String> {
    let path = Path::new("/proc").join(process.to_string()).join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the number after a name.
pub(super) fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_means_between_two_moments() {
        let text = |status: f64, times: u8| {
            format!(
                "multus_add_step_duration_seconds_sum{{step=\"status\"}} {status}\n\
                 multus_add_step_duration_seconds_count{{step=\"status\"}} {times}\n\
                 multus_add_step_duration_seconds_bucket{{le=\"0.001\",step=\"status\"}} 1\n\
                 multus_add_step_duration_seconds_sum{{step=\"plugins\"}} 0.5\n\
                 multus_add_step_duration_seconds_count{{step=\"plugins\"}} {times}\n"
            )
        };
        let (before, after) = (Spent::read(&text(1.0, 1)), Spent::read(&text(1.5, 101)));
        assert_eq!(after.since(&before), "status 5.00, plugins 0.00");
        assert_eq!(before.since(&Spent::default()), "status 1000.00, plugins 500.00");
    }
}
