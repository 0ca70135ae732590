//! Metrics of the daemon (multus.md §7.9): calls, networks, caches, files.

use crate::names;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Histogram buckets in seconds: plugins take milliseconds, network waits such as DHCP take seconds, and runtimes
/// give up after minutes.
const TIMES: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0,
];

/// Limit of networks with their own series: a series costs memory here and in Prometheus, and users may create any
/// number of NADs.
const NETWORKS: usize = 100;
/// Label of all further networks. Not the name of a NAD, which contains a slash.
const OTHERS: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    handler: String,
    code: u32,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InFlightLabels {
    handler: &'static str,
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    handler: &'static str,
    verb: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabels {
    network: String,
    verb: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
}

/// The steps of ADD, in order.
pub(crate) mod step {
    /// Lookup of the pod and its networks.
    pub(crate) const LOOK_UP: &str = "look-up";
    /// Wait for a slot.
    pub(crate) const QUEUE: &str = "queue";
    /// Hand-over to a worker thread and back.
    pub(crate) const THREAD: &str = "thread";
    /// Write of the scratch file.
    pub(crate) const RECORD: &str = "record";
    /// Plugin calls.
    pub(crate) const PLUGINS: &str = "plugins";
    /// Write of the pod's network status.
    pub(crate) const STATUS: &str = "status";
    /// Remaining wait for the disk, which works in parallel to plugins and status.
    pub(crate) const DISK: &str = "disk";
}

/// Metrics of calls that were given up. Clones share the values.
#[derive(Debug, Clone, Default)]
pub struct Overdue {
    all: Counter,
    now: Gauge,
}

impl Overdue {
    /// A call was given up.
    pub fn given_up(&self) {
        self.all.inc();
    }

    /// Its plugin still runs, without a slot.
    pub fn began(&self) {
        self.now.inc();
    }

    /// Its plugin ended.
    pub fn ended(&self) {
        self.now.dec();
    }

    #[cfg(test)]
    pub(crate) fn now(&self) -> i64 {
        self.now.get()
    }
}

/// Metrics of the daemon. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    in_flight: Family<InFlightLabels, Gauge>,
    calls: Family<CallLabels, Histogram>,
    networks: Family<NetworkLabels, Histogram>,
    steps: Family<StepLabels, Histogram>,
    overdue: Overdue,
    named: Arc<Mutex<BTreeSet<String>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(TIMES);
        Self {
            requests: Family::default(),
            in_flight: Family::default(),
            calls: Family::new_with_constructor(histogram),
            networks: Family::new_with_constructor(histogram),
            steps: Family::new_with_constructor(histogram),
            overdue: Overdue::default(),
            named: Arc::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics. The encoder appends `_total` to the names of counters.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "multus_server_request",
            "Counter of HTTP requests",
            self.requests.clone(),
        );
        registry.register(
            "multus_server_requests_in_flight",
            "Calls in progress, including those that wait in the queue",
            self.in_flight.clone(),
        );
        registry.register(
            "multus_server_request_duration_seconds",
            "Duration of calls, including the wait in the queue",
            self.calls.clone(),
        );
        registry.register(
            "multus_network_duration_seconds",
            "Duration of attaching, detaching or checking one network of a pod",
            self.networks.clone(),
        );
        registry.register(
            "multus_add_step_duration_seconds",
            "Duration of each step of attaching a pod",
            self.steps.clone(),
        );
        registry.register(
            "multus_calls_given_up",
            "Calls that were given up because they took too long",
            self.overdue.all.clone(),
        );
        registry.register(
            "multus_calls_hanging",
            "Calls that were given up and whose plugin still runs",
            self.overdue.now.clone(),
        );
    }

    /// The metrics of calls that were given up.
    pub(crate) fn overdue(&self) -> Overdue {
        self.overdue.clone()
    }

    /// Counts an answered request.
    pub(crate) fn count(&self, handler: &str, code: u16, method: String) {
        let labels = RequestLabels {
            handler: handler.to_owned(),
            code: code.into(),
            method,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Starts the measurement of a call.
    pub(crate) fn call(&self, handler: &'static str, verb: &'static str) -> Call {
        let call = Call {
            metrics: self.clone(),
            handler,
            verb,
            begun: Instant::now(),
            succeeded: false,
        };
        self.in_flight.get_or_create(&call.in_flight()).inc();
        call
    }

    /// Measures work on one network, labelled with its display name.
    pub(crate) fn network<T, E>(
        &self,
        verb: &'static str,
        display_name: &str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let outcome = work();
        let labels = NetworkLabels {
            network: self.bounded(display_name),
            verb,
            result: result(outcome.is_ok()),
        };
        self.networks
            .get_or_create(&labels)
            .observe(begun.elapsed().as_secs_f64());
        outcome
    }

    /// Starts the measurement of consecutive [`step`]s.
    pub(crate) fn steps(&self) -> Steps<'_> {
        Steps {
            metrics: self,
            begun: Instant::now(),
        }
    }

    /// Records the duration of a [`step`].
    pub(crate) fn step(&self, step: &'static str, took: Duration) {
        self.steps
            .get_or_create(&StepLabels { step })
            .observe(took.as_secs_f64());
    }

    fn bounded(&self, network: &str) -> String {
        let mut named = kube_kit::lock(&self.named);
        if !named.contains(network) {
            if named.len() >= NETWORKS {
                return OTHERS.to_owned();
            }
            named.insert(network.to_owned());
        }
        network.to_owned()
    }
}

/// Measures consecutive steps.
#[derive(Debug)]
pub(crate) struct Steps<'a> {
    metrics: &'a Metrics,
    begun: Instant,
}

impl Steps<'_> {
    /// Ends a [`step`] and starts the next one.
    pub(crate) fn end(&mut self, step: &'static str) {
        let now = Instant::now();
        self.metrics.step(step, now - self.begun);
        self.begun = now;
    }
}

fn result(succeeded: bool) -> &'static str {
    if succeeded { "success" } else { "error" }
}

/// A call in progress. Counts as failed if it is dropped before [`Self::end`].
#[derive(Debug)]
pub(crate) struct Call {
    metrics: Metrics,
    handler: &'static str,
    verb: &'static str,
    begun: Instant,
    succeeded: bool,
}

impl Call {
    /// Records the call's result.
    pub(crate) fn end(mut self, succeeded: bool) {
        self.succeeded = succeeded;
    }

    fn in_flight(&self) -> InFlightLabels {
        InFlightLabels {
            handler: self.handler,
            verb: self.verb,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let labels = CallLabels {
            handler: self.handler,
            verb: self.verb,
            result: result(self.succeeded),
        };
        let took = self.begun.elapsed().as_secs_f64();
        self.metrics.calls.get_or_create(&labels).observe(took);
        self.metrics.in_flight.get_or_create(&self.in_flight()).dec();
    }
}

/// Sizes of caches and state, computed at each scrape.
pub(crate) struct Sizes {
    cni_dir: PathBuf,
    caches: Vec<(&'static str, Count)>,
}

/// Returns the number of objects in a cache.
pub(crate) type Count = Box<dyn Fn() -> usize + Send + Sync>;

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caches: Vec<_> = self.caches.iter().map(|(name, _)| name).collect();
        f.debug_struct("Sizes")
            .field("cni_dir", &self.cni_dir)
            .field("caches", &caches)
            .finish()
    }
}

impl Sizes {
    /// Sizes of the state below `cni_dir`, and of these caches by name.
    pub(crate) fn of(cni_dir: PathBuf, caches: Vec<(&'static str, Count)>) -> Self {
        Self { cni_dir, caches }
    }

    /// Registers the metrics.
    pub(crate) fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = (
            "multus_cache_objects",
            "Objects of the API server in the daemon's caches",
        );
        let gauge = ConstGauge::new(0_u64);
        let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        for (cache, count) in &self.caches {
            ConstGauge::new(count() as u64).encode(metric.encode_family(&[("cache", *cache)])?)?;
        }
        let (name, help) = ("multus_state_files", "Files about sandboxes on this node's disk");
        let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        let results = self.cni_dir.join(names::RESULTS);
        for (kind, dir) in [("sandbox", self.cni_dir.as_path()), ("result", &results)] {
            ConstGauge::new(files(dir)).encode(metric.encode_family(&[("kind", kind)])?)?;
        }
        Ok(())
    }
}

/// Counts the files of a directory; 0 without a directory. Names with a leading dot are temporary or set aside.
fn files(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let is_state = |entry: &fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_file())
            && !entry.file_name().as_encoded_bytes().starts_with(b".")
    };
    entries.filter_map(Result::ok).filter(is_state).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[track_caller]
    fn assert_lines(text: &str, expected: &[&str]) {
        for line in expected {
            assert!(
                text.lines().any(|found| found == *line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn requests_are_counted_by_handler_code_and_method() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        metrics.count("/cni", 200, "post".into());
        metrics.count("/cni", 200, "post".into());
        assert_lines(
            &text(&registry),
            &[r#"multus_server_request_total{handler="/cni",code="200",method="post"} 2"#],
        );
    }

    #[test]
    fn calls_are_counted_in_flight_and_by_result() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        let first = metrics.call("/cni", "ADD");
        let second = metrics.call("/cni", "ADD");
        let third = metrics.call("/cni", "ADD");
        let in_flight =
            |count: u8| format!(r#"multus_server_requests_in_flight{{handler="/cni",verb="ADD"}} {count}"#);
        assert_lines(&text(&registry), &[&in_flight(3)]);
        first.end(true);
        second.end(false);
        // As when the work panics.
        drop(third);
        assert_lines(
            &text(&registry),
            &[
                &in_flight(0),
                r#"multus_server_request_duration_seconds_count{handler="/cni",verb="ADD",result="success"} 1"#,
                r#"multus_server_request_duration_seconds_count{handler="/cni",verb="ADD",result="error"} 2"#,
            ],
        );
    }

    #[test]
    fn networks_have_own_series_up_to_limit() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        for number in 0..NETWORKS + 3 {
            let done: Result<(), ()> = metrics.network("ADD", &format!("ns/n{number}"), || Ok(()));
            done.unwrap();
        }
        let failed: Result<(), &str> = metrics.network("DEL", "ns/n0", || Err("no"));
        assert_eq!(failed, Err("no"));
        let text = text(&registry);
        assert_lines(
            &text,
            &[
                r#"multus_network_duration_seconds_count{network="ns/n0",verb="ADD",result="success"} 1"#,
                r#"multus_network_duration_seconds_count{network="ns/n0",verb="DEL",result="error"} 1"#,
                r#"multus_network_duration_seconds_count{network="ns/n99",verb="ADD",result="success"} 1"#,
                r#"multus_network_duration_seconds_count{network="other",verb="ADD",result="success"} 3"#,
            ],
        );
        let series = text
            .lines()
            .filter(|line| line.starts_with("multus_network_duration_seconds_count"));
        assert_eq!(series.count(), NETWORKS + 2);
    }

    #[test]
    fn abandoned_calls_are_counted() {
        // multus#109 (the figures)
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.overdue().given_up();
        metrics.overdue().began();
        assert_lines(
            &text(&registry),
            &["multus_calls_given_up_total 1", "multus_calls_hanging 1"],
        );
        metrics.overdue().ended();
        assert_lines(
            &text(&registry),
            &["multus_calls_given_up_total 1", "multus_calls_hanging 0"],
        );
    }

    #[test]
    fn cache_sizes_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::default();
        let caches: Vec<(&'static str, Count)> = vec![("pods", Box::new(|| 7))];
        Sizes::of(dir.path().to_owned(), caches).register(&mut registry);
        assert_lines(&text(&registry), &[r#"multus_state_files{kind="result"} 0"#]);
        fs::create_dir(dir.path().join("results")).unwrap();
        for file in ["c1", ".c2.tmp", "results/a-c1-eth0", "results/b-c1-net1"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        assert_lines(
            &text(&registry),
            &[
                r#"multus_cache_objects{cache="pods"} 7"#,
                r#"multus_state_files{kind="sandbox"} 1"#,
                r#"multus_state_files{kind="result"} 2"#,
            ],
        );
    }
}
