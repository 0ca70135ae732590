//! Leader election: only the holder of a Lease writes (kubevirt-ipam §3).
//!
//! A holder may write for [`RENEW_DEADLINE`] from the start of its last successful renewal. Another replica takes the
//! Lease when it has observed no renewal for the Lease's whole duration by its own clock. Clocks of hosts are never
//! compared.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::lease;
use kube_kit::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::names;

#[cfg(test)]
pub(crate) mod tests;

/// A Lease is valid for this time after its last observed renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// A holder may write for this time after its last renewal.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of the holder's renewals, and of the others' reads.
const RETRY: Duration = Duration::from_secs(2);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time until which this replica may write; `None` if it may not.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Leadership of a replica without election.
    pub fn of_one() -> Self {
        let (sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_hours(24 * 365 * 100)));
        // The receiver keeps the last value.
        drop(sender);
        Self(receiver)
    }

    /// Whether this replica may write now.
    pub fn may_write(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this replica may write.
    pub async fn won(&mut self) {
        if self.0.wait_for(Option::is_some).await.is_err() {
            // The election has ended: this replica never becomes the leader.
            std::future::pending::<()>().await;
        }
    }
}

/// Another replica took the Lease, or its renewal missed the deadline.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("leader election lost")]
pub struct Lost;

/// The fields of a Lease that matter to the election.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The holder; empty for a released Lease.
    holder: String,
    duration: Duration,
    /// Changes with each renewal.
    version: String,
}

/// The next step of a candidate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Create the missing Lease.
    Create,
    /// Take the Lease from its former holder.
    Take,
    /// Renew the own Lease.
    Renew,
    /// Another replica holds the Lease.
    Wait,
}

/// A replica that competes for the Lease.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: String,
    /// The last observed record, and the time of its first observation.
    seen: Option<(Record, Instant)>,
}

impl Candidate {
    /// A candidate without any observation.
    pub fn new(me: impl Into<String>) -> Self {
        Self {
            me: me.into(),
            seen: None,
        }
    }

    /// Takes the present record in, and returns the next step.
    pub fn observe(&mut self, record: Option<Record>, now: Instant) -> Step {
        let Some(record) = record else {
            self.seen = None;
            return Step::Create;
        };
        let since = match &self.seen {
            Some((known, since)) if *known == record => *since,
            _ => now,
        };
        let step = if record.holder == self.me {
            Step::Renew
        } else if record.holder.is_empty() || now >= since + record.duration {
            Step::Take
        } else {
            Step::Wait
        };
        self.seen = Some((record, since));
        step
    }
}

impl Record {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or_default();
        let duration = u64::try_from(seconds).map(Duration::from_secs);
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: duration.unwrap_or(DURATION),
            version: lease.metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// The election from the side of one replica.
pub struct Election {
    leases: Api<Lease>,
    candidate: Candidate,
    until: watch::Sender<Option<Instant>>,
    /// The last written Lease.
    held: Option<Lease>,
}

impl Election {
    /// Competes as `me` for the Lease in this namespace.
    pub fn new(client: Client, namespace: &str, me: impl Into<String>) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            candidate: Candidate::new(me),
            until: watch::Sender::new(None),
            held: None,
        }
    }

    /// The leadership, updated with each attempt.
    pub fn leadership(&self) -> Leadership {
        Leadership(self.until.subscribe())
    }

    /// Competes until the shutdown. The caller releases the Lease afterwards with [`Election::give_back`].
    ///
    /// # Errors
    /// If the Lease is lost.
    pub async fn run(&mut self, shutdown: &Shutdown) -> Result<(), Lost> {
        loop {
            let began = Instant::now();
            let attempt = tokio::select! {
                () = shutdown.wait() => return Ok(()),
                attempt = timeout(TIMEOUT, self.attempt(began)) => attempt,
            };
            match attempt {
                Ok(Ok(true)) => {
                    let until = began + RENEW_DEADLINE;
                    if self.until.send_replace(Some(until)).is_none() {
                        tracing::info!(
                            lease = names::LEASE,
                            me = self.candidate.me,
                            "successfully acquired lease"
                        );
                    }
                }
                Ok(Ok(false)) if self.until.borrow().is_some() => return Err(self.lost()),
                Ok(Ok(false)) => {}
                failed => {
                    self.held = None;
                    let error = match failed {
                        Ok(Err(error)) => message(&error),
                        _ => "the API server takes too long".to_owned(),
                    };
                    tracing::warn!(lease = names::LEASE, error, "cannot acquire or renew the lease");
                }
            }
            let until = *self.until.borrow();
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(self.lost());
            }
            tokio::select! {
                () = shutdown.wait() => return Ok(()),
                () = sleep(RETRY) => {}
            }
        }
    }

    fn lost(&self) -> Lost {
        self.until.send_replace(None);
        Lost
    }

    /// Whether this replica holds the Lease now.
    async fn attempt(&mut self, now: Instant) -> kube::Result<bool> {
        let lease = match self.held.take() {
            Some(held) => Some(held),
            None => self.leases.get_opt(names::LEASE).await?,
        };
        let step = self.candidate.observe(lease.as_ref().map(Record::of), now);
        let written = match (step, lease) {
            (Step::Wait, _) => return Ok(false),
            (_, None) => {
                let lease = self.taken(Lease::default());
                self.leases.create(&PostParams::default(), &lease).await
            }
            (Step::Renew, Some(mut lease)) => {
                if let Some(spec) = lease.spec.as_mut() {
                    spec.renew_time = Some(MicroTime(Timestamp::now()));
                }
                self.replace(&lease).await
            }
            (Step::Create | Step::Take, Some(lease)) => {
                let lease = self.taken(lease);
                self.replace(&lease).await
            }
        };
        match written {
            Ok(lease) => {
                self.candidate.observe(Some(Record::of(&lease)), now);
                self.held = Some(lease);
                Ok(true)
            }
            // Another replica was faster. The next read shows the holder.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let held = self.until.borrow().is_some();
                if held {
                    Err(kube::Error::Api(status))
                } else {
                    Ok(false)
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn replace(&self, lease: &Lease) -> kube::Result<Lease> {
        self.leases
            .replace(names::LEASE, &PostParams::default(), lease)
            .await
    }

    /// The Lease with this replica as its new holder.
    fn taken(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = lease.spec.unwrap_or_default();
        let changed = before.holder_identity.as_deref().is_some_and(|it| !it.is_empty());
        lease.metadata = ObjectMeta {
            name: Some(names::LEASE.to_owned()),
            ..lease.metadata
        };
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.candidate.me.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or_default() + i32::from(changed)),
            ..LeaseSpec::default()
        });
        lease
    }

    /// Releases the Lease, if this replica holds it, so that another replica need not wait for the expiry. The replica
    /// must not write afterwards.
    pub async fn give_back(&mut self) {
        self.until.send_replace(None);
        match lease::release(&self.leases, names::LEASE, &self.candidate.me).await {
            Ok(true) => tracing::info!(lease = names::LEASE, "lease given back"),
            Ok(false) => {}
            Err(error) => {
                let error = message(&error);
                tracing::warn!(lease = names::LEASE, error, "cannot give the lease back");
            }
        }
    }
}
