//! Metrics of the checks (cluster-network §13.4).

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
/// The check skipped the step.
const NONE: &str = "";

/// A check and its endpoint.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    check: String,
    endpoint: String,
}

#[derive(Clone, Debug, Default)]
struct Values {
    /// Numbers of checks by the results of their steps: connection, and resolution of the host name.
    counts: BTreeMap<(&'static str, &'static str), u64>,
    tcp: Option<Duration>,
    dns: Option<Duration>,
}

/// Metrics of all checks. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Requests to the API server.
    pub requests: Requests,
    checks: Arc<Mutex<BTreeMap<Key, Values>>>,
    component: Arc<str>,
}

impl Metrics {
    /// Metrics without checks. `component` is the namespace of the checks.
    pub fn new(component: &str) -> Self {
        Self {
            requests: Requests::default(),
            checks: Arc::default(),
            component: component.into(),
        }
    }

    /// Counts a result.
    pub(crate) fn count(&self, check: &str, endpoint: &str, outcome: &Outcome) {
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
        let values = checks.entry(key).or_default();
        *values.counts.entry((tcp, dns)).or_default() += 1;
        if outcome.is_unresolved() {
            values.dns = Some(outcome.last.latency);
        } else {
            values.tcp = Some(outcome.last.latency);
            values.dns = outcome.resolved.as_ref().map(|step| step.latency);
        }
    }

    /// Removes the metrics of a check that was deleted or has another endpoint now.
    pub(crate) fn forget(&self, check: &str) {
        lock(&self.checks).retain(|key, _| key.check != check);
    }

    /// Serves the metrics.
    pub(crate) fn router(&self) -> Router {
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
        // Upstream's name is no name of a counter in OpenMetrics, which requires the suffix `_total`.
        let help = "Connectivity checks by their results";
        let mut count = encoder.encode_descriptor(COUNT, help, None, MetricType::Unknown)?;
        for (key, values) in &*checks {
            for ((tcp, dns), value) in &values.counts {
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
        let connect: fn(&Values) -> Option<Duration> = |values| values.tcp;
        let resolve: fn(&Values) -> Option<Duration> = |values| values.dns;
        for (name, help, latency) in [
            (
                TCP_LATENCY,
                "Duration of the latest connection in nanoseconds",
                connect,
            ),
            (
                DNS_LATENCY,
                "Duration of the latest resolution of the host name in nanoseconds",
                resolve,
            ),
        ] {
            let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (key, values) in &*checks {
                let Some(took) = latency(values) else { continue };
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

    fn encoded(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        text
    }

    #[test]
    fn metrics_have_the_names_of_upstream() {
        let metrics = Metrics::new("ns");
        metrics.count("a-to-b", "h:80", &success(1));
        metrics.count("a-to-b", "h:80", &success(2));
        metrics.count("a-to-b", "h:80", &failure(3));
        let text = encoded(&metrics);
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
        assert!(!encoded(&metrics).contains("a-to-b"));
    }
}
