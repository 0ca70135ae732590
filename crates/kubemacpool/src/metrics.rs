//! Metrics (kubemacpool §16) of collisions, the range, the webhooks and the process, served over TLS to clients that
//! the cluster authorizes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use cni::mac::Mac;
use kube::Client;
use kube_kit::auth;
use kube_kit::metrics::{Process, Requests};
use kube_kit::serve::{self, Certified, Limits, NoServer, Readiness};
use kube_kit::tls::{self, Profile};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use webhook::reviews::Reviews;

use crate::messages::help;
use crate::names::{self, metric};

pub use kube_kit::serve::{Bind, InvalidBind, Serving};

#[cfg(test)]
mod tests;

/// The metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("the metrics")]
pub struct Error(#[from] NoServer);

/// The values at a scrape.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// Colliding addresses with their numbers of objects.
    pub collisions: Vec<(Mac, usize)>,
    /// Number of addresses that two objects had at the start.
    pub duplicates: u64,
    /// Usage of the range.
    pub range: RangeSnapshot,
}

/// Usage of the range, in addresses; the others are free.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RangeSnapshot {
    /// Allocatable addresses.
    pub addresses: u64,
    /// Held by objects in managed namespaces.
    pub used: u64,
    /// Held only by objects in other namespaces.
    pub reserved: u64,
    /// Admitted and not observed yet.
    pub pending: u64,
}

/// Reads the values; called at each scrape, so it must be quick.
pub type Source = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    pool: Pool,
    reviews: Reviews,
    requests: Requests,
}

impl Metrics {
    /// Metrics of the pool from `source`; all others are 0.
    pub fn new(source: Source) -> Self {
        Self {
            pool: Pool(source),
            reviews: Reviews::new(&names::WEBHOOKS),
            requests: Requests::default(),
        }
    }

    /// Metrics of the requests to the API server.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Counts the requests to `router`, each of whose routes is a webhook.
    pub fn counted(&self, router: Router) -> Router {
        self.reviews.counted(router)
    }

    /// Serves the metrics on `bind`, to clients that may `get` their path. The certificate comes from the directory
    /// `certificates` if it exists, and is reloaded; otherwise it is self-signed for the names of the Service in
    /// `namespace`. `None` if the metrics are disabled.
    ///
    /// # Errors
    /// If the address is taken, or TLS cannot be set up.
    pub async fn serve(
        &self,
        client: Client,
        bind: &Bind,
        profile: Profile,
        certificates: &Path,
        namespace: &str,
    ) -> Result<Option<Serving>, Error> {
        let router = serve::metrics(self.registry().into());
        let router = auth::guarded(router, client, names::METRICS_PATH);
        let server = Certified {
            certificates: certificates.is_dir().then(|| certificates.to_owned()),
            names: tls::service_names(names::METRICS_SERVICE, namespace),
            profile,
            http2: false,
            authorities: None,
            limits: Limits::default(),
        };
        Ok(server.serve(bind, router, &Readiness::new()).await?)
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.pool.clone()));
        self.reviews.register(&mut registry);
        self.requests.register(&mut registry);
        Process.register(&mut registry);
        registry
    }
}

/// Reads the pool's values at each scrape.
#[derive(Clone)]
struct Pool(Source);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Collector for Pool {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot {
            collisions,
            duplicates,
            range,
        } = (self.0)();
        // Registered metrics would get a full stop after their help texts and, for a counter, the suffix `_total`,
        // unlike upstream's.
        let mut gauges =
            encoder.encode_descriptor(metric::COLLISIONS, help::COLLISIONS, None, MetricType::Gauge)?;
        for (mac, objects) in collisions {
            let labels = [(metric::MAC, mac.to_string())];
            gauges.encode_family(&labels)?.encode_gauge(&objects)?;
        }
        let mut single = |name: &str, help: &str, kind: MetricType, value: u64| {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            metric.encode_gauge(&value)
        };
        single(
            metric::DUPLICATES,
            help::DUPLICATES,
            MetricType::Counter,
            duplicates,
        )?;
        let RangeSnapshot {
            addresses,
            used,
            reserved,
            pending,
        } = range;
        single(metric::RANGE, help::RANGE, MetricType::Gauge, addresses)?;
        single(metric::USED, help::USED, MetricType::Gauge, used)?;
        single(metric::RESERVED, help::RESERVED, MetricType::Gauge, reserved)?;
        single(metric::PENDING, help::PENDING, MetricType::Gauge, pending)
    }
}
