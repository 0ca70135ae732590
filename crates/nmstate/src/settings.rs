//! Settings from flags and environment (nmstate §13.1, §13.2).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use linux::backoff::Backoff;
use program::logging::{self, Format};
use program::zap;
use thiserror::Error;

use crate::engine::Backend;
use crate::names::{self, env};
use crate::policy::slots;

/// Flags of the handler, the operator, the webhook, the certificate manager and the metrics; each program accepts all.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Deprecated, use --zap-log-level: info, or debug for human-readable debug output
    #[arg(long = "v", value_name = "LEVEL")]
    pub v: Option<String>,
    /// Print the metric families as JSON, and exit
    #[arg(long)]
    pub dump_metric_families: bool,
    /// controller runs until SIGTERM; client reports and applies once, and exits
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
    /// Until SIGTERM.
    #[default]
    Controller,
    /// Until everything was reported and applied once.
    Client,
}

impl Args {
    /// Starts the log with these flags.
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

/// A required variable is missing. The texts are those of upstream.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub(crate) enum Missing {
    /// The name of this node.
    #[error("NODE_NAME is mandatory")]
    Node,
    /// The lock file of the node's handler.
    #[error("Failed to find NMSTATE_INSTANCE_NODE_LOCK_FILE ENV var")]
    LockFile,
}

/// Settings of the handler from the environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Namespace of the handlers' pods; empty if unknown.
    pub namespace: String,
    /// Lock file of the node's handler.
    pub lock_file: PathBuf,
    /// File that exists while the handler is ready.
    pub ready_file: PathBuf,
    /// Maximum number of attempts at a generation of a policy.
    pub max_retries: u32,
    /// Back-off before the second attempt.
    pub initial_backoff: Duration,
    /// Maximum back-off.
    pub max_backoff: Duration,
    /// Time after which a slot that no enactment holds counts as leaked. It has no variable.
    pub slot_grace: Duration,
    /// Name that the DNS probe resolves.
    pub probe_host: String,
    /// The configurator of the host.
    pub backend: Backend,
    /// Whether the original design is served: `NodeNetworkState.spec`, policies with `match` or `autoConfig`.
    pub original_design: bool,
    /// Interval at which policies are compared with the host, and applied again if it differs; `None` disables it.
    pub drift: Option<Duration>,
    /// Interval at which the host is read without an event.
    pub resync: Duration,
    /// Labels of all objects that the handler creates.
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
            slot_grace: slots::GRACE,
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
    /// Reads the settings; a missing or invalid value has upstream's default.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let defaults = Self::default();
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
            max_retries: number(env::MAX_RETRIES).unwrap_or(defaults.max_retries),
            initial_backoff: seconds(env::INITIAL_BACKOFF).unwrap_or(defaults.initial_backoff),
            max_backoff: seconds(env::MAX_BACKOFF).unwrap_or(defaults.max_backoff),
            slot_grace: defaults.slot_grace,
            probe_host: given(env::PROBE_DNS_HOST).unwrap_or(defaults.probe_host),
            backend: match given(env::BACKEND).as_deref() {
                Some(names::KERNEL) => Backend::Kernel,
                _ => Backend::NetworkManager,
            },
            original_design: given(env::ORIGINAL_DESIGN).as_deref() != Some("false"),
            drift: seconds(env::DRIFT_INTERVAL).filter(|interval| !interval.is_zero()),
            resync: seconds(env::RESYNC_INTERVAL)
                .filter(|interval| !interval.is_zero())
                .unwrap_or(defaults.resync),
            labels: labels.collect(),
            ready_file: given(env::READY_FILE).map_or(defaults.ready_file, PathBuf::from),
        }
    }

    /// The back-off after a number of failures in a row, at least 1.
    pub fn backoff(&self, failures: u32) -> Duration {
        Backoff::new(self.initial_backoff, self.max_backoff).after(failures)
    }
}

/// The name of this node.
pub(crate) fn node(variable: impl Fn(&str) -> Option<String>) -> Result<String, Missing> {
    variable(env::NODE_NAME)
        .filter(|name| !name.is_empty())
        .ok_or(Missing::Node)
}

/// The program that `manager` runs: a variable counts if it is set, whatever its value (nmstate §1).
pub(crate) fn program(is_set: impl Fn(&str) -> bool) -> &'static str {
    let chosen = names::RUN.iter().find(|(variable, _)| is_set(variable));
    chosen.map_or(names::HANDLER, |(_, program)| program)
}

/// A variable of the process.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Whether the process has a variable.
pub(crate) fn is_set(name: &str) -> bool {
    std::env::var_os(OsStr::new(name)).is_some()
}

#[cfg(test)]
mod tests;
