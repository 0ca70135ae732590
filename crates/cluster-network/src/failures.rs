//! Failures by level, and the time at which each one is reported (§10.2, §10.3).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::report;

/// Time that a transient failure lasts before it is reported.
pub const DEBOUNCE: Duration = Duration::from_mins(2);

/// Component of a failure. The first failing level decides the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The cluster configuration.
    ClusterConfig,
    /// The operator configuration, and its application.
    OperatorConfig,
    /// Rendering of the operator configuration.
    OperatorRender,
    /// The cluster-wide proxy.
    ProxyConfig,
    /// Bundles of certificate authorities in labelled `ConfigMap`s.
    InjectorConfig,
    /// Pools of machines that carry the operator's machine configurations.
    MachineConfig,
    /// Certificates of `OperatorPKI`s.
    PkiConfig,
    /// Egress routers.
    EgressRouterConfig,
    /// Workloads whose rollout makes no progress.
    RolloutHung,
    /// Pods in a crash loop.
    PodCrashLoopBackOff,
    /// Certificate signing requests of nodes.
    CertificateSigner,
    /// Addresses of the API and of the ingress in the `Infrastructure`.
    InfrastructureConfig,
    /// Dashboards of the web console.
    DashboardConfig,
    /// The migration of the MTU by node network policies.
    MtuMigration,
}

impl Level {
    /// Levels of the controllers beside the main loop.
    const REPORTED: [(report::Level, Self); 7] = [
        (report::Level::ProxyConfig, Self::ProxyConfig),
        (report::Level::InjectorConfig, Self::InjectorConfig),
        (report::Level::PkiConfig, Self::PkiConfig),
        (report::Level::EgressRouterConfig, Self::EgressRouterConfig),
        (report::Level::CertificateSigner, Self::CertificateSigner),
        (report::Level::InfrastructureConfig, Self::InfrastructureConfig),
        (report::Level::MtuMigration, Self::MtuMigration),
    ];
}

/// A failure, as reported in condition `Degraded`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason of the condition, in one word.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

#[derive(Clone, Debug)]
struct Entry {
    failure: Failure,
    /// Time of the report: in the past for a failure that is reported at once.
    due: Instant,
}

/// The current failures.
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
    /// No failures. Transient failures are reported after `debounce`.
    pub fn debounced_for(debounce: Duration) -> Self {
        Self {
            levels: BTreeMap::new(),
            debounce,
        }
    }

    /// Records a failure that is reported at once.
    pub fn immediate(
        &mut self,
        level: Level,
        reason: &'static str,
        message: impl Into<String>,
        now: Instant,
    ) {
        self.record(level, reason, message.into(), now);
    }

    /// Records a failure that is reported after the level has failed for the debounce time.
    pub fn debounced(
        &mut self,
        level: Level,
        reason: &'static str,
        message: impl Into<String>,
        now: Instant,
    ) {
        let due = self
            .levels
            .get(&level)
            .map_or(now + self.debounce, |before| before.due);
        self.record(level, reason, message.into(), due);
    }

    fn record(&mut self, level: Level, reason: &'static str, message: String, due: Instant) {
        let failure = Failure { reason, message };
        self.levels.insert(level, Entry { failure, due });
    }

    /// Records the reports of the controllers beside the main loop.
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

    /// Records the success of a level.
    pub fn clear(&mut self, level: Level) {
        self.levels.remove(&level);
    }

    /// The failure to report.
    pub fn current(&self, now: Instant) -> Option<&Failure> {
        self.levels
            .values()
            .find(|entry| entry.due <= now)
            .map(|entry| &entry.failure)
    }

    /// Time at which the next pending failure is reported.
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
    fn failures_are_reported_by_level_after_the_debounce() {
        assert_eq!(DEBOUNCE.as_secs(), 120);
        let (mut failures, begin) = (Failures::default(), Instant::now());
        let (config, render) = (Level::OperatorConfig, Level::OperatorRender);
        let reported = |failures: &Failures, at: Instant| failures.current(at).map(|failure| failure.reason);
        failures.debounced(render, "RenderError", "a", begin);
        let later = begin + DEBOUNCE / 2;
        failures.debounced(config, "ApplyOperatorConfig", "b", later);
        assert_eq!(reported(&failures, later), None);
        assert_eq!(failures.due(later), Some(begin + DEBOUNCE));
        // A new message does not restart the debounce time, and each level has its own.
        failures.debounced(render, "RenderError", "c", later);
        let due = begin + DEBOUNCE;
        assert_eq!(
            failures.current(due).map(|failure| failure.message.as_str()),
            Some("c")
        );
        assert_eq!(reported(&failures, later + DEBOUNCE), Some("ApplyOperatorConfig"));
        // Success restarts the debounce time.
        failures.clear(render);
        failures.clear(config);
        failures.debounced(render, "RenderError", "d", due);
        assert_eq!(reported(&failures, due), None);
        // An immediate failure is reported at once.
        failures.immediate(config, "InvalidOperatorConfig", "e", due);
        assert_eq!(reported(&failures, due), Some("InvalidOperatorConfig"));
        failures.clear(config);
        assert_eq!(reported(&failures, due), None);
        assert_eq!(reported(&failures, due + DEBOUNCE), Some("RenderError"));
    }
}
