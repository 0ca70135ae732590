//! What the programs are told by flags and environment (nmstate §13.1, §13.2).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use program::logging::{self, Format};
use program::zap;
use thiserror::Error;

use crate::engine::Backend;
use crate::names::{self, env};

/// Flags of the handler, the operator, the webhook, the certificate manager and the metrics: all of them take all.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Deprecated: info, or debug for more log lines that are for people
    #[arg(long = "v", value_name = "LEVEL")]
    pub v: Option<String>,
    /// Print the metric families as JSON, and end
    #[arg(long)]
    pub dump_metric_families: bool,
    /// controller runs for ever; client reports and applies once, and ends
    #[arg(long, value_name = "TYPE", default_value = "controller")]
    pub execution_type: ExecutionType,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "documented where it is defined")]
    pub zap: zap::Flags,
}

/// How long the handler runs (nmstate §3.2).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum ExecutionType {
    /// Until it is told to end.
    #[default]
    Controller,
    /// Until everything was reported and applied once.
    Client,
}

impl Args {
    /// Starts the log that these flags ask for.
    pub fn start_log(&self) {
        let debug = self.v.as_deref() == Some("debug");
        let mut lines = self.zap.lines();
        let mut level = self.zap.level(None);
        if debug {
            lines.encoder = zap::Encoder::Console;
            level = "debug";
        }
        logging::start(Format::Zap(lines), level);
    }
}

/// A variable that has to be there is not. The texts are those of the established handler.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Missing {
    /// Nobody says which node this is.
    #[error("NODE_NAME is mandatory")]
    Node,
    /// Nobody says which file keeps a second handler of the node waiting.
    #[error("Failed to find NMSTATE_INSTANCE_NODE_LOCK_FILE ENV var")]
    LockFile,
}

/// What the environment tells the handler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Namespace of the handlers' pods; empty when nobody says it.
    pub namespace: String,
    /// File that one handler of a node holds.
    pub lock_file: PathBuf,
    /// File that is there when the handler is ready.
    pub ready_file: PathBuf,
    /// Attempts at a generation of a policy.
    pub max_retries: u32,
    /// The wait before the second attempt.
    pub initial_backoff: Duration,
    /// The longest wait before another attempt.
    pub max_backoff: Duration,
    /// Name that the DNS probe looks up.
    pub probe_host: String,
    /// How the host is configured.
    pub backend: Backend,
    /// Whether the original design is served: `NodeNetworkState.spec`, policies with `match` or `autoConfig`.
    pub original_design: bool,
    /// How often policies are compared with the host and applied again where it differs; never where nothing is said.
    pub drift: Option<Duration>,
    /// How often the host is read though nobody tells of a change.
    pub resync: Duration,
    /// Labels that go onto all objects that the handler creates.
    pub labels: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            lock_file: PathBuf::new(),
            ready_file: names::READY_FILE.into(),
            max_retries: 5,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            probe_host: names::PROBE_HOST.to_owned(),
            backend: Backend::default(),
            original_design: true,
            drift: None,
            resync: Duration::from_secs(100),
            labels: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// What `variable` says, the established defaults where it says nothing or nothing that can be understood.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let usual = Self::default();
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let number = |name: &str| given(name).and_then(|value| value.parse::<u32>().ok());
        let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.into()));
        let labels = names::RELATIONSHIP_LABELS.iter();
        let labels = labels.filter_map(|(name, label)| Some(((*label).to_owned(), given(name)?)));
        Self {
            namespace: given(env::POD_NAMESPACE)
                .or_else(|| given(env::HANDLER_NAMESPACE))
                .unwrap_or_default(),
            lock_file: given(env::LOCK_FILE).map(PathBuf::from).unwrap_or_default(),
            max_retries: number(env::MAX_RETRIES).unwrap_or(usual.max_retries),
            initial_backoff: seconds(env::INITIAL_BACKOFF).unwrap_or(usual.initial_backoff),
            max_backoff: seconds(env::MAX_BACKOFF).unwrap_or(usual.max_backoff),
            probe_host: given(env::PROBE_DNS_HOST).unwrap_or(usual.probe_host),
            backend: match given(env::BACKEND).as_deref() {
                Some(names::KERNEL) => Backend::Kernel,
                _ => Backend::NetworkManager,
            },
            original_design: given(env::ORIGINAL_DESIGN).as_deref() != Some("false"),
            drift: seconds(env::DRIFT_INTERVAL).filter(|interval| !interval.is_zero()),
            resync: seconds(env::RESYNC_INTERVAL)
                .filter(|interval| !interval.is_zero())
                .unwrap_or(usual.resync),
            labels: labels.collect(),
            ready_file: given(env::READY_FILE).map_or(usual.ready_file, PathBuf::from),
        }
    }

    /// The pause after so many failed attempts in a row (1 and up).
    pub fn backoff(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial_backoff
            .saturating_mul(1 << doublings)
            .min(self.max_backoff)
    }
}

/// The node that this runs on.
///
/// # Errors
/// When nobody says it.
pub fn node(variable: impl Fn(&str) -> Option<String>) -> Result<String, Missing> {
    variable(env::NODE_NAME)
        .filter(|name| !name.is_empty())
        .ok_or(Missing::Node)
}

/// Which program `manager` is: variables count when they are there, whatever they hold (nmstate §1).
pub fn program(is_set: impl Fn(&str) -> bool) -> &'static str {
    let chosen = names::RUN.iter().find(|(variable, _)| is_set(variable));
    chosen.map_or(names::HANDLER, |(_, program)| program)
}

/// A variable of the process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Whether the process has a variable.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(OsStr::new(name)).is_some()
}

#[cfg(test)]
mod tests;
