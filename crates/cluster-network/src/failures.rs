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
    /// Bundles of authorities in `ConfigMaps` of others.
    InjectorConfig,
    /// Certificates of `OperatorPKI`s.
    PkiConfig,
    /// Workloads that make no progress.
    RolloutHung,
    /// Pods that end again and again.
    PodCrashLoopBackOff,
    /// Signing requests of nodes.
    CertificateSigner,
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

    /// Notes what the parts say that work beside the main loop.
    pub fn take(&mut self, reports: &BTreeMap<Level, report::Failure>, now: Instant) {
        const BESIDE: [Level; 4] = [
            Level::ProxyConfig,
            Level::InjectorConfig,
            Level::PkiConfig,
            Level::CertificateSigner,
        ];
        for level in BESIDE {
            match reports.get(&level) {
                None => self.clear(level),
                Some(failure) if failure.is_debounced => {
                    self.debounced(level, failure.reason, &failure.message, now);
                }
                Some(failure) => self.immediate(level, failure.reason, &failure.message, now),
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

    #[test]
    fn what_parts_beside_the_loop_report_is_told_until_they_take_it_back() {
        let (mut failures, begin) = (Failures::default(), Instant::now());
        let lasting = report::Failure::debounced("StatusError", "a");
        let mut reports = BTreeMap::from([(Level::ProxyConfig, lasting)]);
        failures.take(&reports, begin);
        assert_eq!(failures.told(begin), None);
        failures.take(&reports, begin + DEBOUNCE / 2);
        let told = |failures: &Failures, at| failures.told(at).map(|failure| failure.reason);
        assert_eq!(told(&failures, begin + DEBOUNCE), Some("StatusError"));
        reports.insert(
            Level::InjectorConfig,
            report::Failure::at_once("InvalidInjectorConfig", "b"),
        );
        reports.remove(&Level::ProxyConfig);
        failures.take(&reports, begin);
        assert_eq!(told(&failures, begin), Some("InvalidInjectorConfig"));
        failures.take(&BTreeMap::new(), begin);
        assert_eq!(told(&failures, begin + DEBOUNCE), None);
    }

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
