//! Probes the endpoints, each once in an interval.

use std::sync::Arc;
use std::time::Duration;

use api::connectivity_check::PodNetworkConnectivityCheck as Check;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use kube_kit::client::message;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use super::{Settings, Writer};
use crate::dial::{self, Endpoint, Identity};
use crate::messages;
use crate::metrics::Metrics;

/// Maximum number of concurrent probes: all checks are due at the start.
const AT_A_TIME: usize = 16;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The relevant fields of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Wanted {
    pub(super) source_pod: String,
    endpoint: String,
    /// Name of the Secret with the client certificate.
    secret: Option<String>,
}

impl Wanted {
    pub(super) fn of(check: Check) -> Self {
        Self {
            source_pod: check.spec.source_pod,
            endpoint: check.spec.target_endpoint,
            secret: check.spec.tls_client_cert.map(|secret| secret.name),
        }
    }
}

pub(super) struct Prober {
    secrets: Api<Secret>,
    interval: Duration,
    metrics: Metrics,
    writer: Arc<Writer>,
    places: Semaphore,
}

impl Prober {
    pub(super) fn new(client: Client, settings: &Settings, metrics: Metrics, writer: Arc<Writer>) -> Self {
        Self {
            secrets: Api::namespaced(client, &settings.namespace),
            interval: settings.interval,
            metrics,
            writer,
            places: Semaphore::new(AT_A_TIME),
        }
    }

    /// Probes the endpoint of a check without end.
    pub(super) async fn run(&self, check: &str, wanted: &Wanted) {
        let mut due = tokio::time::interval(self.interval);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            // The semaphore is never closed.
            let place = self.places.acquire().await.ok();
            let secret = match &wanted.secret {
                Some(name) => self.secret(name).await,
                None => None,
            };
            let bytes = |key: &str| Some(secret.as_ref()?.data.as_ref()?.get(key)?.0.as_slice());
            let identity = bytes(CERTIFICATE)
                .zip(bytes(KEY))
                .map(|(certificate, key)| Identity { certificate, key });
            let endpoint = Endpoint {
                target: messages::target(check),
                address: &wanted.endpoint,
            };
            let outcome = dial::check(endpoint, identity).await;
            drop(place);
            if !outcome.success() {
                tracing::info!(check, failure = outcome.last.message, "endpoint unreachable");
            }
            self.metrics.count(check, &wanted.endpoint, &outcome);
            self.writer.push(check, outcome);
        }
    }

    async fn secret(&self, name: &str) -> Option<Secret> {
        match self.secrets.get_opt(name).await {
            Ok(Some(secret)) => return Some(secret),
            Ok(None) => tracing::debug!(
                secret = name,
                "Secret is missing, connecting without a client certificate"
            ),
            Err(error) => tracing::debug!(
                secret = name,
                error = message(&error),
                "cannot read the Secret, connecting without a client certificate"
            ),
        }
        None
    }

    /// Removes the metrics and pending results of a deleted check.
    pub(super) fn forget(&self, check: &str) {
        self.metrics.forget(check);
        self.writer.forget(check);
    }
}
