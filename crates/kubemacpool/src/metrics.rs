//! What Prometheus is told (kubemacpool §16): collisions, how full the range is, the webhooks, the process. Told over TLS,
//! to whom the cluster lets read it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
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

use crate::mac::Mac;
use crate::messages::help;
use crate::names::{self, metric};

pub use kube_kit::serve::{Bind, InvalidBind, Serving};

#[cfg(test)]
mod tests;

/// The metrics can't be served.
#[derive(Debug, thiserror::Error)]
#[error("the metrics")]
pub struct Error(#[from] NoServer);

/// What is so at the moment of a scrape.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Figures {
    /// Addresses that collide, and how many objects have each of them.
    pub collisions: Vec<(Mac, usize)>,
    /// Addresses that were found at two objects at the start.
    pub duplicates: u64,
    /// How full the range is.
    pub range: RangeFigures,
}

/// How full the range is, in addresses; those that are free are left.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RangeFigures {
    /// May be handed out at all.
    pub addresses: u64,
    /// Objects in managed namespaces have them.
    pub used: u64,
    /// Only objects in other namespaces have them.
    pub reserved: u64,
    /// Admitted and not seen yet.
    pub pending: u64,
}

/// Tells how things are; called at each scrape, so it must be quick.
pub type Source = Arc<dyn Fn() -> Figures + Send + Sync>;

/// All figures. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    pool: Pool,
    reviews: Reviews,
    requests: Requests,
}

impl Metrics {
    /// Figures of which `source` tells how things are in the pool, and all others are 0.
    pub fn new(source: Source) -> Self {
        Self {
            pool: Pool(source),
            reviews: Reviews::new(&names::WEBHOOKS),
            requests: Requests::default(),
        }
    }

    /// Figures of the requests to the API server.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Counts the requests that are answered by the routes of `router`, each of which is a webhook.
    pub fn counted(&self, router: Router) -> Router {
        self.reviews.counted(router)
    }

    /// Serves the figures where `bind` says, to whom the API server lets `get` their path. Known by the certificate in
    /// the directory `certificates` if there is one, and follows it; else by one of its own for the names of the Service
    /// in `namespace`. `None` when they are not to be served.
    ///
    /// # Errors
    /// When it can't listen there, or TLS can't be set up.
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

/// How things are in the pool, looked at whenever somebody asks.
#[derive(Clone)]
struct Pool(Source);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Collector for Pool {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Figures {
            collisions,
            duplicates,
            range,
        } = (self.0)();
        // Registered figures would get a full stop behind their help texts, which users know without, and a counter
        // `_total` behind its name.
        let mut gauges =
            encoder.encode_descriptor(metric::COLLISIONS, help::COLLISIONS, None, MetricType::Gauge)?;
        for (mac, objects) in collisions {
            let labels = [(metric::MAC, mac.to_string())];
            gauges.encode_family(&labels)?.encode_gauge(&objects)?;
        }
        let mut single = |name: &str, help: &str, kind: MetricType, value: u64| {
            let mut figure = encoder.encode_descriptor(name, help, None, kind)?;
            figure.encode_gauge(&value)
        };
        single(
            metric::DUPLICATES,
            help::DUPLICATES,
            MetricType::Counter,
            duplicates,
        )?;
        let RangeFigures {
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
