//! Metrics of every controller, under their usual names: reconciles and their queue as in controller-runtime and
//! client-go, requests to the API server, and the process; and watches, under a name of this product.
//!
//! Each group of metrics is a cheap handle whose clones share them, with a `register` that adds them to a registry.
//! Names of counters get their `_total` when they are rendered.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

mod controller;
mod process;
mod requests;
mod watches;

pub use controller::Controller;
pub use process::Process;
pub use requests::Requests;
pub use watches::Watches;

/// Buckets of the duration of a reconcile, in seconds.
const RECONCILE_TIMES: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Buckets of times in a queue, in seconds: the first one, the factor, their number.
const QUEUE_TIMES: (f64, f64, u16) = (1e-8, 10.0, 12);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    controller: &'static str,
    name: &'static str,
}

/// Results of a reconcile.
const RESULTS: [&str; 2] = ["success", "error"];

/// Metrics of the reconciles of one controller.
#[derive(Debug, Clone)]
pub struct Reconciles {
    controller: &'static str,
    total: Family<ResultLabels, Counter>,
    errors: Family<ControllerLabels, Counter>,
    time: Family<ControllerLabels, Histogram>,
    active: Family<ControllerLabels, Gauge>,
    workers: Family<ControllerLabels, Gauge>,
}

impl Reconciles {
    /// Metrics of the controller with this name, initially 0.
    pub fn new(controller: &'static str) -> Self {
        let metrics = Self {
            controller,
            total: Family::default(),
            errors: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(RECONCILE_TIMES)),
            active: Family::default(),
            workers: Family::default(),
        };
        metrics.begin();
        metrics
    }

    /// Metrics of another controller of the process, initially 0. They are registered together with these.
    #[must_use]
    pub fn beside(&self, controller: &'static str) -> Self {
        let beside = Self {
            controller,
            ..self.clone()
        };
        beside.begin();
        beside
    }

    /// Sets the number of workers of this controller, which is 1 otherwise.
    pub fn workers(&self, workers: usize) {
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        self.workers.get_or_create(&self.labels()).set(workers);
    }

    /// Creates the counters with 0, so that they are not absent before the first event.
    fn begin(&self) {
        let (controller, labels) = (self.controller, self.labels());
        for result in RESULTS {
            drop(self.total.get_or_create(&ResultLabels { controller, result }));
        }
        drop(self.errors.get_or_create(&labels));
        drop(self.time.get_or_create(&labels));
        drop(self.active.get_or_create(&labels));
        self.workers.get_or_create(&labels).set(1);
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "controller_runtime_reconcile",
            "Total number of reconciliations per controller",
            self.total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Total number of reconciliation errors per controller",
            self.errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Length of time per reconciliation per controller",
            self.time.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Number of currently used workers per controller",
            self.active.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciles per controller",
            self.workers.clone(),
        );
    }

    /// Records the start of a reconcile.
    pub fn started(&self) {
        self.active.get_or_create(&self.labels()).inc();
    }

    /// Records the end of a reconcile.
    pub fn ended(&self, succeeded: bool, took: Duration) {
        let [success, error] = RESULTS;
        let result = ResultLabels {
            controller: self.controller,
            result: if succeeded { success } else { error },
        };
        self.total.get_or_create(&result).inc();
        if !succeeded {
            self.errors.get_or_create(&self.labels()).inc();
        }
        self.time
            .get_or_create(&self.labels())
            .observe(took.as_secs_f64());
        self.active.get_or_create(&self.labels()).dec();
    }

    fn labels(&self) -> ControllerLabels {
        ControllerLabels {
            controller: self.controller,
        }
    }
}

/// Metrics of a [queue](crate::queue::Queue).
#[derive(Debug, Clone)]
pub struct Workqueue {
    labels: QueueLabels,
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    waited: Family<QueueLabels, Histogram>,
    worked: Family<QueueLabels, Histogram>,
}

impl Workqueue {
    /// Metrics of the queue of this controller, initially 0.
    pub fn new(controller: &'static str) -> Self {
        let histogram: fn() -> Histogram = || {
            let (first, factor, count) = QUEUE_TIMES;
            Histogram::new(exponential_buckets(first, factor, count))
        };
        let metrics = Self {
            labels: QueueLabels {
                controller,
                name: controller,
            },
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(histogram),
            worked: Family::new_with_constructor(histogram),
        };
        metrics.begin();
        metrics
    }

    /// Metrics of the queue of another controller of the process, initially 0. They are registered together with these.
    #[must_use]
    pub fn beside(&self, controller: &'static str) -> Self {
        let labels = QueueLabels {
            controller,
            name: controller,
        };
        let beside = Self {
            labels,
            ..self.clone()
        };
        beside.begin();
        beside
    }

    fn begin(&self) {
        drop(self.depth.get_or_create(&self.labels));
        drop(self.adds.get_or_create(&self.labels));
        drop(self.retries.get_or_create(&self.labels));
        drop(self.waited.get_or_create(&self.labels));
        drop(self.worked.get_or_create(&self.labels));
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "workqueue_depth",
            "Current depth of workqueue",
            self.depth.clone(),
        );
        registry.register(
            "workqueue_adds",
            "Total number of adds handled by workqueue",
            self.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Total number of retries handled by workqueue",
            self.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
            self.waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes",
            self.worked.clone(),
        );
    }

    /// Records that a key became ready.
    pub(crate) fn added(&self) {
        self.adds.get_or_create(&self.labels).inc();
        self.depth.get_or_create(&self.labels).inc();
    }

    /// Records the start of work on a key after this wait.
    pub(crate) fn started(&self, waited: Duration) {
        self.depth.get_or_create(&self.labels).dec();
        self.waited
            .get_or_create(&self.labels)
            .observe(waited.as_secs_f64());
    }

    /// Records the end of work on a key.
    pub(crate) fn ended(&self, worked: Duration) {
        self.worked
            .get_or_create(&self.labels)
            .observe(worked.as_secs_f64());
    }

    /// Records that a key is requeued after a failure.
    pub(crate) fn retried(&self) {
        self.retries.get_or_create(&self.labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[track_caller]
    fn assert_lines(registry: &Registry, expected: &[&str]) {
        let text = text(registry);
        for line in expected {
            assert!(
                text.lines().any(|found| found == *line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn reconciles_are_counted_by_result() {
        let (metrics, mut registry) = (Reconciles::new("c"), Registry::default());
        metrics.register(&mut registry);
        let never = r#"controller_runtime_reconcile_total{controller="c",result="error"} 0"#;
        assert_lines(&registry, &[never]);
        metrics.started();
        assert_lines(
            &registry,
            &[r#"controller_runtime_active_workers{controller="c"} 1"#],
        );
        metrics.ended(true, Duration::from_millis(30));
        metrics.started();
        metrics.ended(false, Duration::from_millis(70));
        assert_lines(
            &registry,
            &[
                r#"controller_runtime_reconcile_total{controller="c",result="success"} 1"#,
                r#"controller_runtime_reconcile_total{controller="c",result="error"} 1"#,
                r#"controller_runtime_reconcile_errors_total{controller="c"} 1"#,
                r#"controller_runtime_reconcile_time_seconds_bucket{le="0.05",controller="c"} 1"#,
                r#"controller_runtime_reconcile_time_seconds_count{controller="c"} 2"#,
                r#"controller_runtime_active_workers{controller="c"} 0"#,
                r#"controller_runtime_max_concurrent_reconciles{controller="c"} 1"#,
            ],
        );
    }

    #[tokio::test(start_paused = true)]
    async fn queue_beside_main_controller_counts_work_as_reconciles() {
        let (metrics, mut registry) = (Controller::new("c"), Registry::default());
        metrics.register(&mut registry);
        let queue = metrics.queue_beside("d", Duration::from_secs(1));
        queue.add(());
        queue.next().await;
        assert_lines(
            &registry,
            &[r#"controller_runtime_active_workers{controller="d"} 1"#],
        );
        queue.failed(());
        queue.next().await;
        queue.succeeded(&());
        // Only the end of work counts.
        queue.succeeded(&());
        assert_lines(
            &registry,
            &[
                r#"controller_runtime_reconcile_total{controller="d",result="success"} 1"#,
                r#"controller_runtime_reconcile_total{controller="d",result="error"} 1"#,
                r#"controller_runtime_reconcile_total{controller="c",result="success"} 0"#,
                r#"controller_runtime_active_workers{controller="d"} 0"#,
                r#"workqueue_retries_total{controller="d",name="d"} 1"#,
            ],
        );
    }

    #[test]
    fn controllers_of_process_share_metrics() {
        let (metrics, mut registry) = (Reconciles::new("c"), Registry::default());
        metrics.register(&mut registry);
        metrics.beside("d").ended(true, Duration::from_millis(30));
        let queue = Workqueue::new("c");
        queue.register(&mut registry);
        queue.beside("d").added();
        assert_lines(
            &registry,
            &[
                r#"controller_runtime_reconcile_total{controller="c",result="success"} 0"#,
                r#"controller_runtime_reconcile_total{controller="d",result="success"} 1"#,
                r#"workqueue_adds_total{controller="c",name="c"} 0"#,
                r#"workqueue_adds_total{controller="d",name="d"} 1"#,
            ],
        );
        let text = text(&registry);
        let heads = text.matches("# TYPE controller_runtime_reconcile ").count();
        assert_eq!(heads, 1, "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn queue_updates_its_metrics() {
        let (metrics, mut registry) = (Workqueue::new("c"), Registry::default());
        metrics.register(&mut registry);
        let queue = Queue::counted(metrics);
        queue.add("a");
        queue.add("a");
        let line =
            |name: &str, value: &str| format!(r#"workqueue_{name}{{controller="c",name="c"}} {value}"#);
        let lines = |lines: &[(&str, &str)]| {
            let lines: Vec<_> = lines.iter().map(|(name, value)| line(name, value)).collect();
            assert_lines(&registry, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        };
        lines(&[("adds_total", "1"), ("depth", "1")]);
        tokio::time::advance(Duration::from_secs(2)).await;
        let key = queue.next().await;
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.failed(key);
        lines(&[
            ("depth", "0"),
            ("retries_total", "1"),
            ("queue_duration_seconds_sum", "2.0"),
            ("queue_duration_seconds_count", "1"),
            ("work_duration_seconds_sum", "3.0"),
        ]);
        let key = queue.next().await;
        queue.succeeded(&key);
        lines(&[
            ("adds_total", "2"),
            ("depth", "0"),
            ("work_duration_seconds_count", "2"),
        ]);
    }
}
