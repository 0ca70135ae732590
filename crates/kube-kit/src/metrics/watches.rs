//! Metrics of the watches of caches.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::cache::{Cache, WATCH_TIMEOUT};
use crate::lock;

const NAME: &str = "weft_watch_up";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    resource: String,
    namespace: String,
}

/// Whether the watches of a process are up to date, computed at each scrape. Clones share the caches.
#[derive(Debug, Clone, Default)]
pub struct Watches(Arc<Mutex<Watched>>);

#[derive(Debug)]
struct Watched {
    caches: Vec<Cache>,
    timeout: Duration,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            caches: Vec::new(),
            timeout: WATCH_TIMEOUT,
        }
    }
}

impl Watches {
    /// Adds the watches of a cache.
    pub fn of(&self, cache: &Cache) {
        lock(&self.0).caches.push(cache.clone());
    }

    /// Sets how long a watch may fail before its gauge is 0; half a minute by default.
    pub fn set_timeout(&self, timeout: Duration) {
        lock(&self.0).timeout = timeout;
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// By resource and namespace: 0 if any of several watches is not up to date.
    fn values(&self) -> Family<Labels, Gauge> {
        let mut all = BTreeMap::new();
        let watched = lock(&self.0);
        for cache in &watched.caches {
            for (resource, namespace, is_up) in cache.health(watched.timeout) {
                *all.entry((resource, namespace)).or_insert(true) &= is_up;
            }
        }
        drop(watched);
        let family = Family::<Labels, Gauge>::default();
        for ((resource, namespace), is_up) in all {
            let labels = Labels { resource, namespace };
            family.get_or_create(&labels).set(is_up.into());
        }
        family
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the watch of a resource is up to date: 0 while it is refused, fails or is stale";
        let gauges = self.values();
        gauges.encode(encoder.encode_descriptor(NAME, help, None, gauges.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::keep_all;
    use crate::object;
    use crate::watch::Options;
    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use std::convert::Infallible;
    use std::future::pending;
    use tower::service_fn;

    // operator#92, the metric
    #[tokio::test(start_paused = true)]
    async fn watch_without_answer_is_not_up() {
        let silent = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let cache = Cache::new();
        let client = Client::new(silent, "default");
        let _watch = cache.watch(client, object::SECRET, Some("ns"), &Options::all(), keep_all);
        let (watches, mut registry) = (Watches::default(), Registry::default());
        watches.of(&cache);
        watches.register(&mut registry);
        for expected in ["1", "0"] {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let line = format!(r#"weft_watch_up{{resource="secrets",namespace="ns"}} {expected}"#);
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
            tokio::time::advance(WATCH_TIMEOUT).await;
        }
    }
}
