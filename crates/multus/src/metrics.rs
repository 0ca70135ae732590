//! Figures of the daemon (multus.md §7.9): calls, networks, caches, files.

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

/// Limits in seconds: plugins take milliseconds, those that wait for the network (DHCP, a pod that is not known yet)
/// seconds, and runtimes give up after minutes.
const TIMES: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0,
];

/// How many networks have figures of their own. A series costs memory here and in every database that reads it, and
/// whoever may create NADs could have any number.
const NETWORKS: usize = 100;
/// Where all further ones are counted. Not the name of a NAD, which has a slash.
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

/// The steps of ADD, in their order.
pub mod step {
    /// The pod and its networks are looked up.
    pub const LOOK_UP: &str = "look-up";
    /// The call waits for a place.
    pub const QUEUE: &str = "queue";
    /// A thread takes the work on, and hands its result back.
    pub const THREAD: &str = "thread";
    /// The networks are written down.
    pub const RECORD: &str = "record";
    /// Plugins attach the networks.
    pub const PLUGINS: &str = "plugins";
    /// The pod's network status is written.
    pub const STATUS: &str = "status";
    /// The disk has the record; plugins and status run meanwhile.
    pub const DISK: &str = "disk";
}

/// Calls that were given up. Clones share the figures.
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

    /// Its plugin still works, in a place of its own.
    pub fn began(&self) {
        self.now.inc();
    }

    /// It does no more.
    pub fn ended(&self) {
        self.now.dec();
    }

    #[cfg(test)]
    pub(crate) fn now(&self) -> i64 {
        self.now.get()
    }
}

/// Figures of the daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
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
    /// Adds the figures to a registry. A counter's name gets its `_total` when it is written.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "multus_server_request",
            "Counter of HTTP requests",
            self.requests.clone(),
        );
        registry.register(
            "multus_server_requests_in_flight",
            "Calls that are being worked on, or wait for their turn",
            self.in_flight.clone(),
        );
        registry.register(
            "multus_server_request_duration_seconds",
            "How long calls took in all, waiting included",
            self.calls.clone(),
        );
        registry.register(
            "multus_network_duration_seconds",
            "How long one network of a pod took to be attached, detached or checked",
            self.networks.clone(),
        );
        registry.register(
            "multus_add_step_duration_seconds",
            "How long each step of attaching a pod took",
            self.steps.clone(),
        );
        registry.register(
            "multus_calls_given_up",
            "Calls that took too long",
            self.overdue.all.clone(),
        );
        registry.register(
            "multus_calls_hanging",
            "Calls that were given up, and that a plugin is still at",
            self.overdue.now.clone(),
        );
    }

    /// Where calls that were given up are counted.
    pub fn overdue(&self) -> Overdue {
        self.overdue.clone()
    }

    /// Counts one answered request.
    pub fn count(&self, handler: &str, code: u16, method: String) {
        let labels = RequestLabels {
            handler: handler.to_owned(),
            code: code.into(),
            method,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// A call begins.
    pub fn call(&self, handler: &'static str, verb: &'static str) -> Call {
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

    /// Measures what is done about one network, which users know by this name.
    pub fn network<T, E>(
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

    /// Measures one [`step`] after the other from now on.
    pub fn steps(&self) -> Steps<'_> {
        Steps {
            metrics: self,
            begun: Instant::now(),
        }
    }

    /// A [`step`] took this long.
    pub fn step(&self, step: &'static str, took: Duration) {
        self.steps
            .get_or_create(&StepLabels { step })
            .observe(took.as_secs_f64());
    }

    fn bounded(&self, network: &str) -> String {
        // A panic elsewhere leaves the set as good as it was.
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

/// Measures steps that follow each other.
#[derive(Debug)]
pub struct Steps<'a> {
    metrics: &'a Metrics,
    begun: Instant,
}

impl Steps<'_> {
    /// A [`step`] ends; the next one begins.
    pub fn end(&mut self, step: &'static str) {
        let now = Instant::now();
        self.metrics.step(step, now - self.begun);
        self.begun = now;
    }
}

fn result(succeeded: bool) -> &'static str {
    if succeeded { "success" } else { "error" }
}

/// A call that is being worked on. It counts as failed when it goes before it ended.
#[derive(Debug)]
pub struct Call {
    metrics: Metrics,
    handler: &'static str,
    verb: &'static str,
    begun: Instant,
    succeeded: bool,
}

impl Call {
    /// The call is answered.
    pub fn end(mut self, succeeded: bool) {
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

/// How much is remembered: looked at whenever somebody asks.
pub struct Sizes {
    cni_dir: PathBuf,
    caches: Vec<(&'static str, Count)>,
}

/// How many objects a cache holds now.
pub type Count = Box<dyn Fn() -> usize + Send + Sync>;

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
    /// Of the state below `cni_dir`, and of these caches by their names.
    pub fn of(cni_dir: PathBuf, caches: Vec<(&'static str, Count)>) -> Self {
        Self { cni_dir, caches }
    }

    /// Adds the figures to a registry.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = (
            "multus_cache_objects",
            "Objects of the API server that are remembered",
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

/// Files in a directory; 0 when it is not there. Those that begin with a dot are being written, or are no state.
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
    fn one_line_for_each_handler_code_and_method() {
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
    fn calls_count_while_they_last_and_by_their_end() {
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
    fn networks_have_figures_of_their_own_up_to_a_bound() {
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
    fn calls_that_were_given_up_are_counted() {
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
    fn what_is_remembered() {
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
