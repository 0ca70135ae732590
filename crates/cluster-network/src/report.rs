//! Reports of the controllers beside the main loop: failures, for condition `Degraded` (§10.3), notes for
//! other conditions, and metrics (§16).

use std::{collections::BTreeMap, time::Duration};

use kube_kit::queue::Queue;
use tokio::sync::watch;

use crate::{metrics::Metrics, observability};

/// A controller that reports failures. The order is the precedence of the failures.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// The cluster-wide proxy.
    ProxyConfig,
    /// Bundles of certificate authorities in labelled `ConfigMaps`.
    InjectorConfig,
    /// Certificates of `OperatorPKI`s.
    PkiConfig,
    /// Egress routers.
    EgressRouterConfig,
    /// Certificate signing requests of nodes.
    CertificateSigner,
    /// Addresses of the API and of the ingress in the `Infrastructure`.
    InfrastructureConfig,
    /// The migration of the MTU by node network policies.
    MtuMigration,
}

/// Failure of a controller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// Reason of the condition, in one word.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// True if the failure is reported only after it has lasted for two minutes.
    pub is_debounced: bool,
}

impl Failure {
    /// A failure that is reported at once.
    pub fn at_once(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_debounced: false,
        }
    }

    /// A failure that is reported after the debounce time.
    pub fn debounced(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_debounced: true,
        }
    }
}

/// Notes of controllers for conditions other than `Degraded`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// Progress of a migration of the MTU.
    pub migration: Option<String>,
    /// State of the installation of network observability. `None` leaves its condition unchanged.
    pub observability: Option<observability::State>,
}

/// Failures by controller, notes, and metrics. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    failures: watch::Sender<BTreeMap<Level, Failure>>,
    notes: watch::Sender<Notes>,
    metrics: Metrics,
}

impl Reports {
    /// Reports whose queues are counted in these metrics.
    pub fn counted(metrics: Metrics) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// The queue of a controller with this name in metrics, and this maximum back-off.
    pub fn queue<Key: Ord + Clone>(&self, controller: &'static str, longest: Duration) -> Queue<Key> {
        self.metrics.controller().queue_beside(controller, longest)
    }

    /// Records the failure of a controller, or `None` after a success.
    pub fn set(&self, level: Level, failure: Option<&Failure>) {
        self.failures.send_if_modified(|failures| {
            let before = match failure {
                Some(failure) => failures.insert(level, failure.clone()),
                None => failures.remove(&level),
            };
            before.as_ref() != failure
        });
    }

    /// Receiver of all failures and of their changes.
    pub fn follow(&self) -> watch::Receiver<BTreeMap<Level, Failure>> {
        self.failures.subscribe()
    }

    /// Records the progress of the migration of the MTU, or `None` without one.
    pub fn set_migration(&self, progress: Option<String>) {
        self.note(|notes| notes.migration = progress);
    }

    /// Records the state of the installation of network observability. `None` leaves its condition unchanged.
    pub fn set_observability(&self, state: Option<observability::State>) {
        self.note(|notes| notes.observability = state);
    }

    fn note(&self, change: impl FnOnce(&mut Notes)) {
        self.notes.send_if_modified(|notes| {
            let before = notes.clone();
            change(notes);
            *notes != before
        });
    }

    /// Receiver of all notes and of their changes.
    pub fn follow_notes(&self) -> watch::Receiver<Notes> {
        self.notes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_contains_changes_alone() {
        let reports = Reports::default();
        let mut following = reports.follow();
        reports.set(Level::ProxyConfig, None);
        assert!(!following.has_changed().expect("a sender"));
        let failure = Failure::at_once("InvalidProxyConfig", "no");
        reports.set(Level::ProxyConfig, Some(&failure));
        assert!(following.has_changed().expect("a sender"));
        assert_eq!(
            following.borrow_and_update().get(&Level::ProxyConfig),
            Some(&failure)
        );
        reports.set(Level::ProxyConfig, Some(&failure));
        assert!(!following.has_changed().expect("a sender"));
        reports.set(Level::ProxyConfig, None);
        assert!(following.borrow_and_update().is_empty());
    }
}
