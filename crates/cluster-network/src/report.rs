//! How the parts of the operator are doing that work beside its main loop, for the condition `Degraded` (§10.3).

use std::collections::BTreeMap;

use tokio::sync::watch;

/// A part that can fail by itself, in the order in which failures are told.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// The cluster's proxy.
    ProxyConfig,
    /// Bundles of authorities in `ConfigMaps` of others.
    InjectorConfig,
    /// Certificates of `OperatorPKI`s.
    PkiConfig,
    /// Signing requests of nodes.
    CertificateSigner,
    /// Labels that follow the platform.
    InfrastructureConfig,
}

/// Why a part is degraded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// In one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Whether it is told only when it has lasted for two minutes.
    pub is_debounced: bool,
}

impl Failure {
    /// One that is told at once.
    pub fn at_once(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_debounced: false,
        }
    }

    /// One that is told when it has lasted.
    pub fn debounced(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_debounced: true,
        }
    }
}

/// Failures by part. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reports(watch::Sender<BTreeMap<Level, Failure>>);

impl Reports {
    /// What a part has to say now; nothing when it is fine.
    pub fn set(&self, level: Level, failure: Option<&Failure>) {
        self.0.send_if_modified(|failures| {
            let before = match failure {
                Some(failure) => failures.insert(level, failure.clone()),
                None => failures.remove(&level),
            };
            before.as_ref() != failure
        });
    }

    /// All failures, and a way to wait for changes.
    pub fn follow(&self) -> watch::Receiver<BTreeMap<Level, Failure>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
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
