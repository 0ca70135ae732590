//! One reconciliation: observe, plan, apply, report (§2.2, §5).

pub(crate) mod apply;
mod console;
mod crashes;
pub(crate) mod hosted;
mod prober;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::cluster_network::{config, operator};
use crashes::Crashes;
use kube_kit::{
    apply::{Applier, Error as ApplyError},
    cache::{Blocked, Cache},
    object::ObjectId,
};
use prober::Prober;
use program::logging;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    cluster_config,
    facts::{ApiServer, Facts},
    failures::{Failures, Level},
    messages,
    metrics::Metrics,
    names,
    names::manager,
    observe::{self, Stored},
    ovn::machines,
    plan::{Input, Plan, Rejection},
    report,
    settings::Settings,
};

/// Cause of a retry, although no watch reported a change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] ApplyError),
    /// Another step failed and may succeed later. The status reports it too.
    #[error("{0}")]
    Failed(String),
}

/// Reconciles the network.
pub struct Reconciler {
    applier: Applier,
    /// Reads and writes the cluster that hosts the control plane.
    management: Option<Applier>,
    settings: Settings,
    /// Endpoint of the API server for clients without services.
    api_server: ApiServer,
    failures: Failures,
    /// The objects of the last rendering of this process. The status counts workloads only after the first one.
    rendered: Option<BTreeSet<ObjectId>>,
    /// The machine configurations of the last successful rendering of this process.
    machines: Option<BTreeSet<machines::Config>>,
    /// True after this process deleted upstream's objects from the management cluster.
    has_pruned_former: bool,
    /// Pods in a crash loop, or without their image.
    crashes: Crashes,
    /// Time of the next reconciliation, even without a change.
    look_again: Option<Instant>,
    /// Watches that are refused, failing or stale.
    blocked: Vec<Blocked>,
    /// State of the Job that probes the MTU of the nodes.
    prober: Prober,
    /// The configured log level. `None` for the level at the start.
    log_level: Option<&'static str>,
    /// Notes of the controllers beside the main loop.
    notes: report::Notes,
    metrics: Metrics,
}

/// End of an incomplete reconciliation, already recorded as a failure. With a message, the reconciliation is retried.
struct Stop(Option<String>);

impl Reconciler {
    /// A reconciler that reads from the caches of the appliers: of the cluster, and of the cluster that hosts its control
    /// plane, if another one does.
    pub fn new(
        applier: Applier,
        management: Option<Applier>,
        settings: Settings,
        api_server: ApiServer,
        metrics: Metrics,
    ) -> Self {
        Self {
            applier,
            management,
            settings,
            api_server,
            failures: Failures::default(),
            rendered: None,
            machines: None,
            has_pruned_former: false,
            crashes: Crashes::default(),
            look_again: None,
            blocked: Vec::new(),
            prober: Prober::default(),
            log_level: None,
            notes: report::Notes::default(),
            metrics,
        }
    }

    /// Sets the time until a transient failure is reported.
    pub fn debounced_for(&mut self, debounce: Duration) {
        self.failures = Failures::debounced_for(debounce);
    }

    /// Records the reports of the controllers beside the main loop.
    pub fn reported(&mut self, reports: &BTreeMap<report::Level, report::Failure>) {
        self.failures.reported(reports, Instant::now());
    }

    /// Records the notes of the controllers beside the main loop.
    pub fn noted(&mut self, notes: report::Notes) {
        self.notes = notes;
    }

    /// Sets the watches that are refused, failing or stale.
    pub fn set_blocked(&mut self, blocked: Vec<Blocked>) {
        if blocked != self.blocked {
            let watches: Vec<_> = blocked.iter().map(ToString::to_string).collect();
            tracing::warn!(?watches, "watches that are not up to date");
        }
        self.blocked = blocked;
    }

    /// True if a watch is refused, failing or stale.
    pub fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Time of the next reconciliation, even without a change.
    pub fn look_again(&self) -> Option<Instant> {
        self.look_again
    }

    fn cache(&self) -> &Cache {
        self.applier.cache()
    }

    /// Reconciles once: applies all that can be applied, and reports failures in the status.
    ///
    /// # Errors
    /// If the reconciliation has to be retried.
    pub async fn reconcile(&mut self) -> Result<(), Error> {
        self.look_again = None;
        let outcome = self.apply_configuration().await;
        let reported = self.report_status().await;
        match outcome {
            Err(Stop(Some(message))) => Err(Error::Failed(message)),
            Ok(()) | Err(Stop(None)) => Ok(reported?),
        }
    }

    async fn apply_configuration(&mut self) -> Result<(), Stop> {
        let management = self.management.as_ref().map(Applier::cache);
        let facts = observe::facts(self.cache(), management, &self.settings, &self.api_server);
        let cluster = self.cluster_config(&facts);
        let Some(stored) = self.operator_config(cluster.as_ref()).await? else {
            return Err(Stop(None));
        };
        self.set_log_level(&stored.spec.operator_log_level);
        if stored.spec.management_state == names::UNMANAGED {
            tracing::info!("the operator configuration is Unmanaged");
            return Err(Stop(None));
        }
        if facts.management.is_none()
            && let Some(hosted) = self.settings.hosted.clone()
        {
            return Err(self.without_control_plane(&hosted));
        }
        let mut merged = stored.spec.clone();
        if let Some(cluster) = &cluster {
            cluster_config::merge(&cluster.spec, &mut merged);
        }
        let previous = match observe::previous(self.cache(), &self.settings.namespace) {
            Ok(previous) => previous,
            Err(error) => return Err(Stop(Some(error))),
        };
        let diagnostics = cluster
            .as_ref()
            .map(|cluster| cluster.spec.network_diagnostics.clone());
        let settings = self.settings.clone();
        let input = Input {
            spec: &merged,
            previous: previous.as_ref(),
            diagnostics: &diagnostics.unwrap_or_default(),
            facts: &facts,
            settings: &settings,
        };
        let plan = Plan::of(&input);
        if matches!(plan, Ok(_) | Err(Rejection::Mtu(_))) {
            self.probe_mtu(&stored, &merged, &facts).await?;
        }
        let plan = plan.map_err(|rejection| self.rejected(&rejection))?;
        self.metrics.set_ipsec(&merged);
        self.store_operator_config(&stored, &plan).await?;
        let dashboards = self.apply_plan(&stored, &plan, &facts).await?;
        self.write_cluster_status(cluster.as_ref(), &plan).await?;
        self.failures.clear(Level::OperatorConfig);
        match dashboards {
            Some(error) => Err(Stop(Some(error))),
            None => Ok(()),
        }
    }

    /// Changes the log level of this process (§17.8).
    fn set_log_level(&mut self, wanted: &str) {
        let level = log_level(wanted);
        if level != self.log_level {
            self.log_level = level;
            logging::set_level(level);
            tracing::info!("operatorLogLevel is {wanted:?}");
        }
    }

    /// The cluster configuration, if it exists and is valid.
    fn cluster_config(&mut self, facts: &Facts) -> Option<Stored<config::NetworkSpec>> {
        let now = Instant::now();
        let found = observe::cluster_config(self.cache()).map_err(|error| error.to_string());
        let valid = found.and_then(|found| match found {
            Some(found) => cluster_config::validate(&found.spec, facts).map(|()| Some(found)),
            None => Ok(None),
        });
        match valid {
            Ok(found) => {
                self.failures.clear(Level::ClusterConfig);
                found
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "the cluster configuration is invalid, its fields are not taken over"
                );
                let message = messages::invalid_cluster_config(&error);
                let level = Level::ClusterConfig;
                self.failures
                    .immediate(level, "InvalidClusterConfig", message, now);
                None
            }
        }
    }

    /// The operator configuration. A missing one is created from the cluster configuration.
    async fn operator_config(
        &mut self,
        cluster: Option<&Stored<config::NetworkSpec>>,
    ) -> Result<Option<Stored<operator::NetworkSpec>>, Stop> {
        let level = Level::OperatorConfig;
        let stored = match observe::operator_config(self.cache()) {
            Ok(stored) => stored,
            Err(error) => {
                let now = Instant::now();
                self.failures
                    .immediate(level, "InvalidOperatorConfig", error.to_string(), now);
                return Ok(None);
            }
        };
        let Some(cluster) = cluster else {
            if stored.is_none() {
                let now = Instant::now();
                let message = messages::NO_OPERATOR_CONFIG;
                self.failures.immediate(level, "NoOperatorConfig", message, now);
            }
            return Ok(stored);
        };
        let before = stored
            .as_ref()
            .map(|stored| stored.spec.clone())
            .unwrap_or_default();
        let mut merged = before.clone();
        cluster_config::merge(&cluster.spec, &mut merged);
        if stored.is_some() && merged == before {
            return Ok(stored);
        }
        if stored.is_some() {
            tracing::warn!(
                "fields of the operator configuration are overwritten by those of the cluster configuration"
            );
        }
        let patch = decided(&merged, stored.as_ref().map(Stored::version));
        match self.applier.apply_as(manager::CLUSTER_CONFIG, &patch, None).await {
            // Returns the object in the cache.
            Ok(_) => observe::operator_config(self.cache()).map_err(|error| Stop(Some(error.to_string()))),
            Err(error) => Err(self.failed(level, "MergeClusterConfig", &error)),
        }
    }

    fn rejected(&mut self, rejection: &Rejection) -> Stop {
        let (level, now) = (Level::OperatorConfig, Instant::now());
        let is_mtu = matches!(rejection, Rejection::Mtu(_));
        let message = match observe::wrong_host_mtu(self.cache(), &self.settings.namespace) {
            Some(error) if is_mtu => format!("Failed to probe MTU: {error}"),
            _ => rejection.to_string(),
        };
        tracing::error!("{message}");
        if is_mtu {
            self.failures.debounced(level, "MTUProbeFailed", message, now);
        } else {
            self.failures
                .immediate(level, "InvalidOperatorConfig", message, now);
        }
        // The next change of an observed object triggers a reconciliation.
        Stop(None)
    }

    fn failed(&mut self, level: Level, reason: &'static str, error: &ApplyError) -> Stop {
        let message = error.to_string();
        tracing::warn!(reason, "{message}");
        if error.is_conflict() {
            return Stop(Some(message));
        }
        let text = match reason {
            "MergeClusterConfig" | "UpdateOperatorConfig" => {
                format!("Error while trying to update operator configuration: {message}")
            }
            _ => format!("Error while updating operator configuration: {message}"),
        };
        self.failures.debounced(level, reason, text, Instant::now());
        Stop(Some(message))
    }
}

/// The log level for a value of `operatorLogLevel`. `None` for the level at the start.
fn log_level(wanted: &str) -> Option<&'static str> {
    match wanted {
        "Debug" => Some("debug"),
        "Trace" | "TraceAll" => Some("trace"),
        _ => None,
    }
}

/// The fields of the operator configuration that the cluster configuration decides. All of them are always present,
/// because server-side apply removes omitted fields.
fn decided(merged: &operator::NetworkSpec, version: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "operator.openshift.io/v1",
        "kind": "Network",
        "metadata": { "name": api::cluster_network::SINGLETON },
        "spec": {
            "managementState": merged.management_state,
            "clusterNetwork": merged.cluster_network,
            "serviceNetwork": merged.service_network,
            "defaultNetwork": { "type": merged.default_network.kind },
        },
    });
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version;
    }
    object
}

#[cfg(test)]
mod tests {
    use super::log_level;

    // cluster-network#89
    #[test]
    fn log_level_follows_operator_log_level() {
        for (wanted, level) in [
            ("", None),
            ("Normal", None),
            ("Debug", Some("debug")),
            ("Trace", Some("trace")),
            ("TraceAll", Some("trace")),
        ] {
            assert_eq!(log_level(wanted), level, "{wanted}");
        }
    }
}
