//! Metrics (kubevirt-ipam §12).

use std::fmt;
use std::sync::Arc;

use axum::Router;
use kube_kit::metrics::{Process, Requests};
use kube_kit::serve;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use webhook::reviews::Reviews;

use crate::controller::Figures;
use crate::election::Leadership;
use crate::names;
use crate::state::{self, Shared};

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// Metrics of the controllers.
    pub(crate) controllers: Figures,
    /// Requests to the API server.
    pub(crate) requests: Requests,
    reviews: Reviews,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            controllers: Figures::new(),
            requests: Requests::default(),
            reviews: Reviews::new(&[names::MUTATE]),
        }
    }

    /// Counts the requests to the routes of `router`.
    pub(crate) fn counted(&self, router: Router) -> Router {
        self.reviews.counted(router)
    }

    /// Serves the metrics.
    pub(crate) fn router(&self, shared: &Shared, leadership: &Leadership) -> Router {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Claims {
            shared: Arc::clone(shared),
            leadership: leadership.clone(),
        }));
        self.controllers.register(&mut registry);
        self.reviews.register(&mut registry);
        self.requests.register(&mut registry);
        Process.register(&mut registry);
        serve::metrics(Arc::new(registry))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Gauges, computed at each scrape.
struct Claims {
    shared: Shared,
    leadership: Leadership,
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims")
    }
}

impl Collector for Claims {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state::Figures {
            held,
            deleting,
            in_the_way,
        } = state::lock(&self.shared).figures();
        let mut claims = encoder.encode_descriptor(
            "kubevirt_ipam_claims",
            "Count of IPAMClaims by their state",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [("held", held), ("deleting", deleting), ("conflict", in_the_way)] {
            claims.encode_family(&[("state", state)])?.encode_gauge(&count)?;
        }
        let mut master = encoder.encode_descriptor(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master",
            None,
            MetricType::Gauge,
        )?;
        let leads = u64::from(self.leadership.may_write());
        master
            .encode_family(&[("name", names::LEASE)])?
            .encode_gauge(&leads)
    }
}
