//! Reconciles the configuration resource (operator §4), and reports in its status.
//!
//! ```text
//! observe ──> plan ──> clean up ──> record ──> apply ──> certificates ──> prune ──> release ──> status
//!    │  └ Abort ┴───────────┼─ Abort ──┘         │            │            │          │           │
//!    │                      └──────── Failures ──┴────────────┴────────────┴──────────┴───────────┘
//!    └── from the watches: while nothing changes the operator sends no request
//! ```
//!
//! An error of the configuration as a whole aborts the reconcile, and leaves the deployed objects unchanged; certificates
//! are rotated anyway. A failure of one component is collected, and neither the other components nor later steps stop.
//!
//! Certificates come before the removals. A former issuer's objects stay until the certificates are in order: its Secret
//! has our owner then, so that no garbage collector deletes it with them.

mod certificates;
mod execute;
mod release;
mod report;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use kube_kit::{
    apply::{self, Applier},
    cache::{Blocked, Cache, Lookup},
    client,
    events::Recorder,
    object::{self, ObjectId},
    process::{self, Panicked},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster_facts::{Cluster, NMStateObject, NodeState, NodeStateDefinition, OpenShiftNetwork, Platform},
    components::{kubevirt_ipam_controller, nmstate},
    detect,
    failures::{Failure, Failures},
    messages,
    metrics::Metrics,
    names::reason,
    plan::{Observed, Plan, Rejection},
    record::{self, Record},
    render,
    resource::{self, Resource},
    settings::Settings,
    status::Finding,
    watches,
    workloads::{ReadySince, Workload},
};

/// A failed reconcile. It is requeued with back-off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A step failed that may succeed later; the status contains the failure, too.
    #[error("{0}")]
    Failed(String),
    /// The status could not be written, or access could not be revoked.
    #[error(transparent)]
    Write(#[from] apply::Error),
    /// A bug.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// Reconciles the one configuration resource.
pub(crate) struct Reconciler {
    applier: Applier,
    recorder: Recorder,
    settings: Arc<Settings>,
    platform: Platform,
    /// Definitions of other products' kinds, which decide what is deployed.
    definitions: Cache,
    metrics: Metrics,
    history: History,
    blocked: Vec<Blocked>,
    /// Time of the next check of certificates.
    certificates_due: Option<SystemTime>,
    /// The parts of the configuration resource whose changes need a reconcile.
    configuration_seen: Option<[Value; 5]>,
    /// Time of the last write of the status.
    status_written: Option<Instant>,
    /// Time of the next write for changed messages alone.
    details_due: Option<Instant>,
    /// End of the [hold](crate::workloads::HOLD) of the last workload that became ready.
    ready_at: Option<Instant>,
    /// The Lease of a removed KubeVirt IPAM controller.
    abandoned: release::Abandoned,
    /// Time of the next read of that Lease.
    release_due: Option<Instant>,
}

/// State that is kept between reconciles of one configuration resource. It may be lost: then the operator repeats a few
/// checks.
#[derive(Debug, Default)]
struct History {
    /// Uid of the configuration resource; empty if there is none.
    uid: String,
    /// Deployed components with their workloads.
    deployed: Vec<(&'static str, Vec<ObjectId>)>,
    /// Progress of the operands of the node state operator, if they are requested.
    second_step: Option<Workload>,
    /// Observed generations of the workloads.
    generations: BTreeMap<ObjectId, i64>,
    /// Start of the workloads' readiness.
    ready_since: ReadySince,
    /// Whether this reconcile created a workload.
    created_workload: bool,
    /// Objects of earlier versions that were observed as absent, and definitions without an owner.
    gone: BTreeSet<ObjectId>,
    /// Whether the last reconcile failed, in whole or in part.
    failed: bool,
}

struct Reconciled {
    plan: Plan,
    failures: Failures,
}

/// A reconcile that was aborted.
struct Abort {
    failure: Failure,
    /// Whether a retry may succeed without a change.
    retry: bool,
}

impl Abort {
    fn retry(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            failure: Failure {
                reason,
                message: message.into(),
            },
            retry: true,
        }
    }
}

impl From<Rejection> for Abort {
    fn from(rejection: Rejection) -> Self {
        Self {
            failure: Failure {
                reason: rejection.reason(),
                message: rejection.to_string(),
            },
            retry: !rejection.is_final(),
        }
    }
}

/// Runs work in which a panic becomes an error: the status names it, and certificates are rotated anyway.
async fn recovered<T>(work: impl Future<Output = Result<T, Abort>>) -> Result<T, Abort> {
    let panicked = |panicked: Panicked| Err(Abort::retry(reason::APPLY, panicked.to_string()));
    process::contained(work).await.unwrap_or_else(panicked)
}

impl Reconciler {
    pub(crate) fn new(
        applier: Applier,
        recorder: Recorder,
        settings: Settings,
        platform: Platform,
        definitions: Cache,
        metrics: Metrics,
    ) -> Self {
        Self {
            applier,
            recorder,
            settings: Arc::new(settings),
            platform,
            definitions,
            metrics,
            history: History::default(),
            blocked: Vec::new(),
            certificates_due: None,
            configuration_seen: None,
            status_written: None,
            details_due: None,
            ready_at: None,
            abandoned: release::Abandoned::default(),
            release_due: None,
        }
    }

    pub(crate) fn set_platform(&mut self, platform: Platform) {
        self.platform = platform;
    }

    pub(crate) fn platform(&self) -> Platform {
        self.platform
    }

    /// Runs one reconcile: applies as much as possible, and reports failures in the status.
    pub(crate) async fn reconcile(&mut self) -> Result<(), Error> {
        // The deadlines of the previous reconcile are void: this reconcile sets its own.
        self.certificates_due = None;
        self.details_due = None;
        self.ready_at = None;
        self.release_due = None;
        let Some(cr) = self.resource() else {
            self.history = History::default();
            self.measure_absence();
            return self.withdraw().await;
        };
        // A deletion and a creation in quick succession arrive as one change.
        if self.history.uid != cr.uid {
            self.history = History {
                uid: cr.uid.clone(),
                ..History::default()
            };
        }
        // An invalid profile changes nothing: the status has its error.
        if let Some(settings) = cr.tls_settings() {
            self.metrics.publish_tls(&settings);
        }
        self.report_losses(&cr).await;
        let mut outcome = recovered(self.apply_configuration(&cr)).await;
        let rotated = self.rotate_certificates(&cr).await;
        let in_order = rotated == Ok(true);
        if let Err(error) = rotated {
            let component = kubevirt_ipam_controller::NAME;
            match &mut outcome {
                Ok(outcome) => outcome.failures.add(component, reason::APPLY, error),
                Err(stop) => {
                    tracing::error!(component, error, "cannot issue or rotate certificates");
                    stop.retry = true;
                }
            }
        }
        if let Ok(Reconciled { plan, failures }) = &mut outcome {
            self.prune(plan, in_order, failures).await;
            self.release(&cr, plan, failures).await;
        }
        self.report_modifications(&cr).await;
        let (finding, retry_reason) = self.judge(outcome);
        self.write_status(&cr, &finding).await?;
        match retry_reason {
            Some(message) => Err(Error::Failed(message)),
            None => Ok(()),
        }
    }

    /// The finding for the status, and the error for a retry.
    fn judge(&mut self, outcome: Result<Reconciled, Abort>) -> (Finding, Option<String>) {
        match outcome {
            Ok(Reconciled { plan, failures }) => {
                let retry_reason = failures.all().map(|failure| failure.message);
                self.history.failed = retry_reason.is_some();
                let components = self.components();
                let finding = Finding::Applied {
                    components,
                    containers: render::containers(&plan.groups),
                    failures,
                };
                (finding, retry_reason)
            }
            Err(Abort { failure, retry }) => {
                let (reason, error) = (failure.reason, &failure.message);
                tracing::error!(reason, error, "cannot apply the configuration");
                self.history.failed = true;
                let retry_reason = retry.then(|| failure.message.clone());
                let components = self.components();
                (Finding::Rejected { failure, components }, retry_reason)
            }
        }
    }

    /// Whether a change of this object may need a reconcile. A change of the configuration resource's status does not:
    /// the operator wrote it.
    pub(crate) fn concerns(&mut self, id: &ObjectId) -> bool {
        if id.kind != api::names::NETWORK_ADDONS_KIND {
            return true;
        }
        let Lookup::Present(object) = self.cache().lookup(id) else {
            return true;
        };
        let part = |pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
        let now = [
            "/metadata/uid",
            "/metadata/generation",
            "/metadata/labels",
            "/metadata/deletionTimestamp",
            "/metadata/finalizers",
        ]
        .map(part);
        let news = self.configuration_seen.as_ref() != Some(&now);
        self.configuration_seen = Some(now);
        news
    }

    fn cache(&self) -> &Cache {
        self.applier.cache()
    }

    fn resource(&self) -> Option<Resource> {
        let Lookup::Present(object) = self.cache().lookup(&resource::id()) else {
            return None;
        };
        let record = match self
            .cache()
            .lookup(&record::id(&self.settings.operator_namespace))
        {
            Lookup::Present(record) => Some(record),
            Lookup::Absent | Lookup::Unknown => None,
        };
        if resource::is_given_up(&object, record.as_deref()) {
            return None;
        }
        let uid = object
            .pointer("/metadata/uid")
            .and_then(Value::as_str)?
            .to_owned();
        Some(Resource { object, uid })
    }

    async fn apply_configuration(&mut self, cr: &Resource) -> Result<Reconciled, Abort> {
        let mut failures = Failures::default();
        if let Some(Failure { reason, message }) = self.blockade() {
            failures.add_general(reason, message);
        }
        let settings = Arc::clone(&self.settings);
        let (observed, second_step) = self.observe_all(cr, &settings, &mut failures).await?;
        let plan = Plan::of(&observed)?;
        self.history.second_step = second_step;
        self.history.deployed.clone_from(&plan.deployed);
        for (component, error) in &plan.unrendered {
            failures.add(component, reason::RENDER, error.to_string());
        }
        self.execute(&plan, &mut failures).await?;
        Ok(Reconciled { plan, failures })
    }

    /// Reads all input of the plan, and the progress of the node state operator.
    async fn observe_all<'a>(
        &self,
        cr: &'a Resource,
        settings: &'a Settings,
        failures: &mut Failures,
    ) -> Result<(Observed<'a>, Option<Workload>), Abort> {
        let cluster = Cluster {
            platform: self.platform,
            openshift_network: self.openshift_network().await?,
        };
        let applied = self.applied(cr)?;
        let (node_state, second_step) = self.node_state(cr, failures).await;
        let own_namespace = object::NAMESPACE.object(None, &settings.operator_namespace);
        let own_namespace = match self.cache().lookup(&own_namespace) {
            Lookup::Present(namespace) => Some(namespace),
            Lookup::Absent | Lookup::Unknown => {
                let missing = format!("namespaces \"{}\" not found", own_namespace.name);
                failures.add_general(reason::RENDER, messages::invalid_configuration(&[missing]));
                None
            }
        };
        let observed = Observed {
            resource: cr,
            settings,
            cluster,
            node_state,
            applied,
            own_namespace,
            networks: self.networks(failures).await,
            random: linux::random::bytes()
                .map_err(|error| Abort::retry(reason::RENDER, error.to_string()))?,
        };
        Ok((observed, second_step))
    }

    /// The definition of networks, until it is known to have no owner.
    async fn networks(&self, failures: &mut Failures) -> Option<Value> {
        let id = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
        if self.history.gone.contains(&id) {
            return None;
        }
        match self.applier.get(&id).await {
            Ok(definition) => definition,
            Err(error) => {
                let error = messages::invalid_configuration(&[error.to_string()]);
                failures.add_general(reason::RENDER, error);
                None
            }
        }
    }

    /// The `NMState` API and the progress of its operator; read only if `spec.nmstate` is set. After a failed read, the
    /// operator assumes the state in which most objects are rendered, so that none is pruned.
    async fn node_state(&self, cr: &Resource, failures: &mut Failures) -> (NodeState, Option<Workload>) {
        if !cr.wants_node_state() {
            return (NodeState::default(), None);
        }
        let definition = match self.definitions.lookup(&watches::definition(object::NMSTATE)) {
            Lookup::Present(definition) => detect::node_state_definition(&definition),
            Lookup::Absent | Lookup::Unknown => NodeStateDefinition::None,
        };
        let nmstates = match definition {
            NodeStateDefinition::None => Ok(None),
            _ if self.cache().serves(object::NMSTATE) => Ok(Some(self.cache().list(object::NMSTATE))),
            _ => detect::node_states(self.applier.client()).await,
        };
        match nmstates {
            Ok(nmstates) => {
                let second_step = nmstate::second_step(definition, nmstates.as_deref());
                let object = detect::nmstate_object(nmstates.as_deref());
                (NodeState { definition, object }, Some(second_step))
            }
            Err(error) => {
                failures.add(nmstate::NAME, reason::RENDER, client::message(&error));
                let object = NMStateObject::None;
                (NodeState { definition, object }, None)
            }
        }
    }

    async fn openshift_network(&self) -> Result<Option<OpenShiftNetwork>, Abort> {
        if !self.platform.openshift4 {
            return Ok(None);
        }
        if self.cache().serves(object::OPENSHIFT_NETWORK) {
            let known = self.cache().list(object::OPENSHIFT_NETWORK);
            return Ok(detect::known_openshift_network(&known));
        }
        let network = detect::openshift_network(self.applier.client()).await;
        network.map_err(|error| Abort::retry(reason::OPENSHIFT_NETWORK, client::message(&error)))
    }

    /// The record of the last reconcile of this configuration resource, or the reason why it cannot be read.
    fn applied(&self, cr: &Resource) -> Result<Result<Record, String>, Abort> {
        let id = record::id(&self.settings.operator_namespace);
        match self.cache().lookup(&id) {
            Lookup::Present(record) => {
                Ok(record::read_under(&record, &cr.uid).map_err(|error| error.to_string()))
            }
            Lookup::Absent => Ok(Ok(Record::default())),
            // An unsynced record is not an absent record: the operator would otherwise draw a new random range of
            // addresses.
            Lookup::Unknown => {
                let error = messages::previous_configuration("it is not known yet");
                Err(Abort::retry(reason::PREVIOUS_CONFIG, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_becomes_error_that_is_retried() {
        let abort = recovered::<()>(async { panic!("a bug") })
            .await
            .expect_err("an error");
        assert!(abort.retry);
        assert_eq!(abort.failure.message, "panicked: a bug");
        assert!(recovered(async { Ok(()) }).await.is_ok());
    }
}
