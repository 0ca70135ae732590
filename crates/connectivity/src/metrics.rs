//! What Prometheus is told about checks (cluster-network §13.4).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use kube_kit::lock;
use kube_kit::metrics::{Process, Requests};
use kube_kit::serve;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::outage::Outcome;

const COUNT: &str = "pod_network_connectivity_check_count";
const TCP_LATENCY: &str = "pod_network_connectivity_check_tcp_connect_latency_gauge";
const DNS_LATENCY: &str = "pod_network_connectivity_check_dns_resolve_latency_gauge";

const SUCCESS: &str = "success";
const FAILURE: &str = "failure";
/// The step was not made.
const NONE: &str = "";

/// A check and its endpoint.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    check: String,
    endpoint: String,
}

#[derive(Clone, Debug, Default)]
struct Figures {
    /// Checks by how their steps ended: connection, and resolution of the name.
    counts: BTreeMap<(&'static str, &'static str), u64>,
    tcp: Option<Duration>,
    dns: Option<Duration>,
}

/// Figures of all checks. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Requests to the API server.
    pub requests: Requests,
    checks: Arc<Mutex<BTreeMap<Key, Figures>>>,
    component: Arc<str>,
}

impl Metrics {
    /// None yet; `component` is the namespace of the checks.
    pub fn new(component: &str) -> Self {
        Self {
            requests: Requests::default(),
            checks: Arc::default(),
            component: component.into(),
        }
    }

    /// Counts a result.
    pub fn count(&self, check: &str, endpoint: &str, outcome: &Outcome) {
        let key = Key {
            check: check.to_owned(),
            endpoint: endpoint.to_owned(),
        };
        let (tcp, dns) = match (&outcome.resolved, outcome.success()) {
            _ if outcome.is_unresolved() => (NONE, FAILURE),
            (None, true) => (SUCCESS, NONE),
            (Some(_), true) => (SUCCESS, SUCCESS),
            (None, false) => (FAILURE, NONE),
            (Some(_), false) => (FAILURE, SUCCESS),
        };
        let mut checks = lock(&self.checks);
        let figures = checks.entry(key).or_default();
        *figures.counts.entry((tcp, dns)).or_default() += 1;
        if outcome.is_unresolved() {
            figures.dns = Some(outcome.last.latency);
        } else {
            figures.tcp = Some(outcome.last.latency);
            figures.dns = outcome.resolved.as_ref().map(|step| step.latency);
        }
    }

    /// Forgets a check that is gone, or that leads elsewhere now.
    pub fn forget(&self, check: &str) {
        lock(&self.checks).retain(|key, _| key.check != check);
    }

    /// Serves them.
    pub fn router(&self) -> Router {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        self.requests.register(&mut registry);
        Process.register(&mut registry);
        serve::metrics(Arc::new(registry))
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let checks = lock(&self.checks);
        let component = &*self.component;
        // The established name is no counter's for OpenMetrics, which wants `_total` at its end.
        let help = "Count of connectivity checks by how they ended";
        let mut count = encoder.encode_descriptor(COUNT, help, None, MetricType::Unknown)?;
        for (key, figures) in &*checks {
            for ((tcp, dns), value) in &figures.counts {
                let labels = [
                    ("component", component),
                    ("checkName", &key.check),
                    ("targetEndpoint", &key.endpoint),
                    ("tcpConnect", tcp),
                    ("dnsResolve", dns),
                ];
                count.encode_family(&labels)?.encode_gauge(value)?;
            }
        }
        let connect: fn(&Figures) -> Option<Duration> = |figures| figures.tcp;
        let resolve: fn(&Figures) -> Option<Duration> = |figures| figures.dns;
        for (name, help, latency) in [
            (
                TCP_LATENCY,
                "Time in nanoseconds that the latest connection took",
                connect,
            ),
            (
                DNS_LATENCY,
                "Time in nanoseconds that the latest resolution of the name took",
                resolve,
            ),
        ] {
            let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (key, figures) in &*checks {
                let Some(took) = latency(figures) else { continue };
                let labels = [
                    ("component", component),
                    ("checkName", &key.check),
                    ("targetEndpoint", &key.endpoint),
                ];
                let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                gauge.encode_family(&labels)?.encode_gauge(&nanoseconds)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::tests::{failure, success};

    fn told(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        text
    }

    #[test]
    fn figures_have_the_established_names() {
        let metrics = Metrics::new("ns");
        metrics.count("a-to-b", "h:80", &success(1));
        metrics.count("a-to-b", "h:80", &success(2));
        metrics.count("a-to-b", "h:80", &failure(3));
        let text = told(&metrics);
        let labels = r#"component="ns",checkName="a-to-b",targetEndpoint="h:80""#;
        for line in [
            format!(
                r#"pod_network_connectivity_check_count{{{labels},tcpConnect="success",dnsResolve=""}} 2"#
            ),
            format!(
                r#"pod_network_connectivity_check_count{{{labels},tcpConnect="failure",dnsResolve=""}} 1"#
            ),
            format!("pod_network_connectivity_check_tcp_connect_latency_gauge{{{labels}}} 1000000"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        metrics.forget("a-to-b");
        assert!(!told(&metrics).contains("a-to-b"));
    }
}
