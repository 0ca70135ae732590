//! What is wrong, level by level, and whether it is told already (§10.2, §10.3).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::report;

/// How long a failure that may pass lasts before it is told.
pub const DEBOUNCE: Duration = Duration::from_mins(2);

/// Where something is wrong. The first one that is decides the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The cluster configuration.
    ClusterConfig,
    /// The operator configuration, and its application.
    OperatorConfig,
    /// What is rendered of it.
    OperatorRender,
    /// The cluster's proxy.
    ProxyConfig,
    /// Bundles of authorities in `ConfigMap`s of others.
    InjectorConfig,
    /// Certificates of `OperatorPKI`s.
    PkiConfig,
    /// Workloads that make no progress.
    RolloutHung,
    /// Pods that end again and again.
    PodCrashLoopBackOff,
    /// Signing requests of nodes.
    CertificateSigner,
    /// Labels that follow the platform.
    InfrastructureConfig,
}

impl Level {
    /// Levels of the parts that work beside the main loop.
    const REPORTED: [(report::Level, Self); 5] = [
        (report::Level::ProxyConfig, Self::ProxyConfig),
        (report::Level::InjectorConfig, Self::InjectorConfig),
        (report::Level::PkiConfig, Self::PkiConfig),
        (report::Level::CertificateSigner, Self::CertificateSigner),
        (report::Level::InfrastructureConfig, Self::InfrastructureConfig),
    ];
}

/// Why the network is degraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

#[derive(Clone, Debug)]
struct Entry {
    failure: Failure,
    /// When it is told; in the past for what can't wait.
    due: Instant,
}

/// What is wrong.
#[derive(Clone, Debug)]
pub struct Failures {
    levels: BTreeMap<Level, Entry>,
    debounce: Duration,
}

impl Default for Failures {
    fn default() -> Self {
        Self::debounced_for(DEBOUNCE)
    }
}

impl Failures {
    /// Nothing is wrong; what may pass is told when it has lasted for so long.
    pub fn debounced_for(debounce: Duration) -> Self {
        Self {
            levels: BTreeMap::new(),
            debounce,
        }
    }

    /// Notes a failure that is told at once.
    pub fn immediate(
        &mut self,
        level: Level,
        reason: &'static str,
        message: impl Into<String>,
        now: Instant,
    ) {
        let failure = Failure {
            reason,
            message: message.into(),
        };
        self.levels.insert(level, Entry { failure, due: now });
    }

    /// Notes a failure that is told when the level has been failing for a while.
    pub fn debounced(
        &mut self,
        level: Level,
        reason: &'static str,
        message: impl Into<String>,
        now: Instant,
    ) {
        let failure = Failure {
            reason,
            message: message.into(),
        };
        let due = self
            .levels
            .get(&level)
            .map_or(now + self.debounce, |before| before.due);
        self.levels.insert(level, Entry { failure, due });
    }

    /// Notes what the parts have to say that work beside the main loop.
    pub fn reported(&mut self, reports: &BTreeMap<report::Level, report::Failure>, now: Instant) {
        for (reported, level) in Level::REPORTED {
            match reports.get(&reported) {
                Some(failure) if failure.is_debounced => {
                    self.debounced(level, failure.reason, &failure.message, now);
                }
                Some(failure) => self.immediate(level, failure.reason, &failure.message, now),
                None => self.clear(level),
            }
        }
    }

    /// Notes that a level is in order.
    pub fn clear(&mut self, level: Level) {
        self.levels.remove(&level);
    }

    /// What is told.
    pub fn told(&self, now: Instant) -> Option<&Failure> {
        self.levels
            .values()
            .find(|entry| entry.due <= now)
            .map(|entry| &entry.failure)
    }

    /// When something that waits has to be told.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.levels
            .values()
            .map(|entry| entry.due)
            .filter(|due| *due > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // cluster-network#65
    #[test]
    fn failures_are_told_by_level_and_after_a_while() {
        assert_eq!(DEBOUNCE.as_secs(), 120);
        let (mut failures, begin) = (Failures::default(), Instant::now());
        let (config, render) = (Level::OperatorConfig, Level::OperatorRender);
        let told = |failures: &Failures, at: Instant| failures.told(at).map(|failure| failure.reason);
        failures.debounced(render, "RenderError", "a", begin);
        let later = begin + DEBOUNCE / 2;
        failures.debounced(config, "ApplyOperatorConfig", "b", later);
        assert_eq!(told(&failures, later), None);
        assert_eq!(failures.due(later), Some(begin + DEBOUNCE));
        // Another text does not begin anew, and each level waits for itself.
        failures.debounced(render, "RenderError", "c", later);
        let due = begin + DEBOUNCE;
        assert_eq!(
            failures.told(due).map(|failure| failure.message.as_str()),
            Some("c")
        );
        assert_eq!(told(&failures, later + DEBOUNCE), Some("ApplyOperatorConfig"));
        // Success begins anew.
        failures.clear(render);
        failures.clear(config);
        failures.debounced(render, "RenderError", "d", due);
        assert_eq!(told(&failures, due), None);
        // What can't wait does not.
        failures.immediate(config, "InvalidOperatorConfig", "e", due);
        assert_eq!(told(&failures, due), Some("InvalidOperatorConfig"));
        failures.clear(config);
        assert_eq!(told(&failures, due), None);
        assert_eq!(told(&failures, due + DEBOUNCE), Some("RenderError"));
    }
}
