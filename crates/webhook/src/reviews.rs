//! Metrics of admission reviews, with upstream's names.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Histogram buckets in seconds: the usual ones, and smaller ones for the times of most reviews.
const REVIEW_TIMES: [f64; 15] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0,
];
/// Codes with a counter from the start.
const CODES: [u16; 2] = [200, 500];

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Webhook {
    webhook: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Answer {
    webhook: String,
    code: u16,
}

/// Metrics of reviews by the webhook's path. Clones share the values.
#[derive(Clone, Debug)]
pub struct Reviews {
    total: Family<Answer, Counter>,
    time: Family<Webhook, Histogram>,
    running: Family<Webhook, Gauge>,
}

impl Reviews {
    /// Metrics of the webhooks at these paths, all present with 0.
    pub fn new(paths: &[&str]) -> Self {
        let reviews = Self {
            total: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(REVIEW_TIMES)),
            running: Family::default(),
        };
        for webhook in paths.iter().map(|path| (*path).to_owned()) {
            for code in CODES {
                let webhook = webhook.clone();
                drop(reviews.total.get_or_create(&Answer { webhook, code }));
            }
            let labels = Webhook { webhook };
            drop(reviews.time.get_or_create(&labels));
            drop(reviews.running.get_or_create(&labels));
        }
        reviews
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "controller_runtime_webhook_requests",
            "Total number of admission requests by HTTP status code",
            self.total.clone(),
        );
        registry.register(
            "controller_runtime_webhook_latency_seconds",
            "Histogram of the latency of processing admission requests",
            self.time.clone(),
        );
        registry.register(
            "controller_runtime_webhook_requests_in_flight",
            "Current number of admission requests being served",
            self.running.clone(),
        );
    }

    /// Counts the requests to the routes of `router`, each of which is a webhook.
    pub fn counted(&self, router: Router) -> Router {
        router.route_layer(middleware::from_fn_with_state(self.clone(), count))
    }
}

/// Counts a running review until it is dropped: its client may disconnect.
struct Running<'a> {
    reviews: &'a Reviews,
    labels: Webhook,
}

impl<'a> Running<'a> {
    fn begin(reviews: &'a Reviews, labels: Webhook) -> Self {
        reviews.running.get_or_create(&labels).inc();
        Self { reviews, labels }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.reviews.running.get_or_create(&self.labels).dec();
    }
}

async fn count(State(reviews): State<Reviews>, request: Request, next: Next) -> Response {
    let webhook = request.uri().path().to_owned();
    let began = Instant::now();
    let running = Running::begin(&reviews, Webhook { webhook });
    let response = next.run(request).await;
    let took = began.elapsed().as_secs_f64();
    reviews.time.get_or_create(&running.labels).observe(took);
    let answer = Answer {
        webhook: running.labels.webhook.clone(),
        code: response.status().as_u16(),
    };
    reviews.total.get_or_create(&answer).inc();
    response
}
