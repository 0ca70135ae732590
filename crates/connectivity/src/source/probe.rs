//! Probes the endpoints, each once in an interval and after a request.

use std::sync::Arc;
use std::time::Duration;

use api::connectivity_check::{
    PodNetworkConnectivityCheck as Check, PodNetworkConnectivityCheckSpec as Spec,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use kube_kit::client::message;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::schedule::Schedule;
use super::{Settings, Writer};
use crate::dial::{self, Endpoint, Identity};
use crate::messages;
use crate::metrics::Metrics;
use crate::names::REQUESTED;

/// Maximum number of concurrent probes: all checks are due at the start.
const AT_A_TIME: usize = 16;

/// Maximum time to read a client certificate. Without the API server, each check would wait for the client's repetitions.
const SECRET_TIMEOUT: Duration = Duration::from_secs(2);

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
    fn of(spec: Spec) -> Self {
        Self {
            source_pod: spec.source_pod,
            endpoint: spec.target_endpoint,
            secret: spec.tls_client_cert.map(|secret| secret.name),
        }
    }
}

/// A check, and the latest request to run it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Observed {
    pub(super) wanted: Wanted,
    request: Option<String>,
}

impl Observed {
    pub(super) fn of(check: Check) -> Self {
        let annotations = check.metadata.annotations;
        Self {
            request: annotations.and_then(|mut annotations| annotations.remove(REQUESTED)),
            wanted: Wanted::of(check.spec),
        }
    }

    /// True if a run is requested that was not requested before.
    pub(super) fn is_requested_since(&self, before: &Self) -> bool {
        self.request.is_some() && self.request != before.request
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
    pub(super) async fn run(&self, check: &str, wanted: &Wanted, requests: Arc<Notify>) {
        let mut schedule = Schedule::new(self.interval, requests);
        loop {
            schedule.next().await;
            // Before the check takes a place: a slow API server delays no other check.
            let secret = match &wanted.secret {
                Some(name) => read_secret(name, self.secrets.get_opt(name)).await,
                None => None,
            };
            // The semaphore is never closed.
            let place = self.places.acquire().await.ok();
            let bytes = |key: &str| Some(secret.as_ref()?.data.as_ref()?.get(key)?.0.as_slice());
            let identity = bytes(CERTIFICATE)
                .zip(bytes(KEY))
                .map(|(certificate, key)| Identity { certificate, key });
            let endpoint = Endpoint {
                target: messages::target(check),
                address: &wanted.endpoint,
            };
            schedule.begin();
            let outcome = dial::check(endpoint, identity).await;
            drop(place);
            if !outcome.success() {
                tracing::info!(check, failure = outcome.last.message, "endpoint unreachable");
            }
            self.metrics.count(check, &wanted.endpoint, &outcome);
            // A client that requested a run takes the next result for its answer.
            if !schedule.is_superseded() {
                self.writer.push(check, outcome);
            }
        }
    }

    /// Removes the metrics and pending results of a deleted check.
    pub(super) fn forget(&self, check: &str) {
        self.metrics.forget(check);
        self.writer.forget(check);
    }
}

/// The Secret with a client certificate, if it can be read in time.
async fn read_secret(name: &str, read: impl Future<Output = kube::Result<Option<Secret>>>) -> Option<Secret> {
    match timeout(SECRET_TIMEOUT, read).await {
        Ok(Ok(Some(secret))) => return Some(secret),
        Ok(Ok(None)) => tracing::debug!(
            secret = name,
            "Secret is missing, connecting without a client certificate"
        ),
        Ok(Err(error)) => tracing::debug!(
            secret = name,
            error = message(&error),
            "cannot read the Secret, connecting without a client certificate"
        ),
        Err(_) => tracing::debug!(
            secret = name,
            "no answer with the Secret in time, connecting without a client certificate"
        ),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn secret_without_an_answer_delays_its_check_for_two_seconds() {
        let begin = Instant::now();
        assert_eq!(read_secret("client", future::pending()).await, None);
        assert_eq!(begin.elapsed().as_secs(), SECRET_TIMEOUT.as_secs());
        let read = future::ready(Ok(Some(Secret::default())));
        assert_eq!(read_secret("client", read).await, Some(Secret::default()));
    }

    #[test]
    fn only_a_new_value_of_the_annotation_is_a_request() {
        let observed = |request: Option<&str>| {
            let mut check = Check::new("a-to-b", Spec::default());
            check.metadata.annotations =
                request.map(|request| [(REQUESTED.to_owned(), request.to_owned())].into());
            Observed::of(check)
        };
        for (before, after, requested) in [
            (None, None, false),
            (None, Some("1"), true),
            (Some("1"), Some("1"), false),
            (Some("1"), Some("2"), true),
            (Some("1"), None, false),
        ] {
            assert_eq!(
                observed(after).is_requested_since(&observed(before)),
                requested,
                "{before:?} {after:?}"
            );
        }
    }
}
