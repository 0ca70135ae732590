//! Leader election: the operator that holds Lease `network-operator-lock` works (§1).
//!
//! ```text
//! Lease ──> next ──┬─> take it: it has no holder, or its holder has not renewed it for its whole duration
//!                  └─> wait
//! ```
//!
//! The clock of this process measures the age of a Lease, so that the clocks of the nodes may differ.

use std::time::{Duration, SystemTime};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use kube_kit::{client, lease, shutdown::Shutdown};
use tokio::time::Instant;

use crate::names;

/// Duration of the Lease, and the interval of renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Duration of the Lease.
    pub lease: Duration,
    /// Interval of renewals and of attempts.
    pub renewal: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_mins(1),
            renewal: Duration::from_secs(10),
        }
    }
}

/// Limit of the release. Afterwards the process has to end, before it is killed.
const RELEASE: Duration = Duration::from_secs(5);

/// An operator that takes part in the election.
#[derive(Debug)]
pub struct Candidate {
    api: Api<Lease>,
    identity: String,
    timing: Timing,
    /// Resource version of the Lease at the last read, and the time since which the Lease is unchanged.
    seen: Option<(String, Instant)>,
    /// Begin of the last successful attempt. The Lease lasts from then at least.
    renewed: Instant,
}

/// True if the candidate may take the Lease. `unchanged` is the time without a change of the Lease.
fn is_free(spec: &LeaseSpec, identity: &str, unchanged: Duration) -> bool {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    let lease = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    holder.is_empty() || holder == identity || unchanged >= lease
}

impl Candidate {
    /// A candidate with this identity, for the Lease in this namespace.
    pub fn new(client: Client, namespace: &str, identity: &str, timing: Timing) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity: identity.to_owned(),
            timing,
            seen: None,
            renewed: Instant::now(),
        }
    }

    /// Waits until this candidate is the leader. Returns false after a shutdown.
    pub async fn elected(&mut self, shutdown: &Shutdown) -> bool {
        let mut is_waiting = false;
        loop {
            let begun = Instant::now();
            let attempted = tokio::select! {
                () = shutdown.wait() => {
                    // The API server may have stored the interrupted write.
                    self.release().await;
                    return false;
                }
                attempted = self.attempt() => attempted,
            };
            match attempted {
                Ok(true) => {
                    self.renewed = begun;
                    tracing::info!(identity = self.identity, "this operator is the leader");
                    return true;
                }
                Ok(false) if !is_waiting => {
                    is_waiting = true;
                    tracing::info!("waiting: another operator is the leader");
                }
                Ok(false) => {}
                Err(error) => {
                    let error = client::message(&error);
                    tracing::warn!(error, "cannot acquire Lease {}", names::LEADER_LEASE);
                }
            }
            tokio::select! {
                () = shutdown.wait() => return false,
                () = tokio::time::sleep(self.timing.renewal) => {}
            }
        }
    }

    /// Renews the Lease. Returns when another candidate holds the Lease, or when the Lease would expire before the next
    /// renewal.
    pub async fn lost(&mut self) {
        loop {
            tokio::time::sleep(self.timing.renewal).await;
            // Another candidate may take the Lease once it has expired, even if the API server does not answer this one.
            let end = self.renewed + self.timing.lease.saturating_sub(self.timing.renewal * 2);
            let begun = Instant::now();
            match tokio::time::timeout_at(end, self.attempt()).await {
                Ok(Ok(true)) => self.renewed = begun,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => {
                    let error = client::message(&error);
                    tracing::warn!(error, "cannot renew Lease {}", names::LEADER_LEASE);
                }
            }
        }
    }

    /// Releases the Lease, so that the next operator need not wait for its expiry. Gives up after a few seconds.
    pub async fn release(&self) {
        let released = lease::release(&self.api, names::LEADER_LEASE, &self.identity);
        let error = match tokio::time::timeout(RELEASE, released).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => client::message(&error),
            Err(_) => "no answer".to_owned(),
        };
        tracing::warn!(error, "cannot release Lease {}", names::LEADER_LEASE);
    }

    async fn replace(&self, lease: &Lease) -> Result<(), kube::Error> {
        let parameters = PostParams::default();
        self.api
            .replace(names::LEADER_LEASE, &parameters, lease)
            .await
            .map(drop)
    }

    /// Takes or renews the Lease if it is free. Returns true if this candidate holds it.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(names::LEADER_LEASE).await?;
        let Some(mut lease) = lease else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(names::LEADER_LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(&LeaseSpec::default())),
            };
            let created = self.api.create(&PostParams::default(), &lease).await;
            return unless_conflict(created.map(drop));
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => Instant::now(),
        };
        self.seen = Some((version, since));
        let spec = lease.spec.clone().unwrap_or_default();
        if !is_free(&spec, &self.identity, since.elapsed()) {
            return Ok(false);
        }
        lease.spec = Some(self.held(&spec));
        unless_conflict(self.replace(&lease).await)
    }

    /// The Lease, held by this candidate.
    fn held(&self, before: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(Timestamp::try_from(SystemTime::now()).unwrap_or_default());
        let is_renewal = before.holder_identity.as_deref() == Some(&self.identity);
        let transitions = before.lease_transitions.unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.lease.as_secs()).ok(),
            acquire_time: if is_renewal {
                before.acquire_time.clone()
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(transitions + i32::from(!is_renewal)),
            ..before.clone()
        }
    }
}

/// Maps a conflict to false: another candidate wrote first.
fn unless_conflict(written: Result<(), kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_taken_once_its_holder_does_not_renew_it() {
        let lease = |holder: Option<&str>| LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(60),
            ..LeaseSpec::default()
        };
        let (soon, late) = (Duration::from_secs(59), Duration::from_secs(60));
        for (holder, unchanged, expected) in [
            (None, soon, true),
            (Some(""), soon, true),
            (Some("me"), soon, true),
            (Some("other"), soon, false),
            (Some("other"), late, true),
        ] {
            assert_eq!(
                is_free(&lease(holder), "me", unchanged),
                expected,
                "{holder:?} {unchanged:?}"
            );
        }
    }

    /// A candidate whose API server does not answer.
    fn unanswered() -> Candidate {
        let silent = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, tower::BoxError>>()
        });
        Candidate::new(Client::new(silent, "ns"), "ns", "me", Timing::default())
    }

    #[tokio::test(start_paused = true)]
    async fn leader_without_an_answer_resigns_before_its_lease_expires() {
        let mut candidate = unanswered();
        let timing = candidate.timing;
        let began = Instant::now();
        candidate.lost().await;
        assert_eq!(began.elapsed() + timing.renewal * 2, timing.lease);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_runs_from_the_begin_of_a_slow_election() {
        let late = Duration::from_secs(15);
        let slow = tower::service_fn(
            move |request: axum::http::Request<kube::client::Body>| async move {
                if request.method() == axum::http::Method::POST {
                    tokio::time::sleep(late).await;
                    let lease = serde_json::to_vec(&Lease::default()).unwrap_or_default();
                    return Ok(axum::http::Response::new(kube::client::Body::from(lease)));
                }
                let status = serde_json::json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" });
                let answer = axum::http::Response::builder().status(404);
                let answer = answer.body(kube::client::Body::from(status.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer?)
            },
        );
        let mut candidate = Candidate::new(Client::new(slow, "ns"), "ns", "me", Timing::default());
        let began = Instant::now();
        assert!(candidate.elected(&Shutdown::new()).await);
        assert_eq!((began.elapsed(), candidate.renewed), (late, began));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_does_not_wait_for_a_silent_api_server() {
        let mut candidate = unanswered();
        let began = Instant::now();
        candidate.release().await;
        assert_eq!(began.elapsed(), RELEASE);
        let shutdown = Shutdown::new();
        shutdown.trigger();
        assert!(!candidate.elected(&shutdown).await);
        assert_eq!(began.elapsed(), RELEASE * 2);
    }
}
