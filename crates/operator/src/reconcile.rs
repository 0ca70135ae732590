//! Brings about what the configuration resource asks for (operator §4), and says in its status how that
//! goes.
//!
//! ```text
//! observe ──> plan ──> clean up ──> record ──> apply ──> prune ──> certificates ──> status
//!    │  └─ Stop ┴───────────┼── Stop ──┘         │          │            │             │
//!    │                      └──────── Failures ──┴──────────┴────────────┴─────────────┘
//!    └── from the watches: while nothing changes the operator sends no request
//! ```
//!
//! What concerns the configuration as a whole stops everything, and leaves what is deployed as it is: only certificates
//! are kept all the same. What goes wrong with one component is noted, and the others go on, with every later step.

mod carry_out;
mod certificates;
mod report;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    sync::Arc,
    time::SystemTime,
};

use kube_kit::{
    apply::{self, Applier},
    cache::{Blocked, Cache, Lookup},
    client,
    events::Recorder,
    object::{self, ObjectId},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    applied::{self, Applied},
    cluster_facts::{Cluster, NodeState, NodeStateDefinition, NodeStateWish, OpenShiftNetwork, Platform},
    components::{
        Component as _,
        kubevirt_ipam_controller::KubevirtIpamController,
        nmstate::{self, NMState},
    },
    detect,
    failures::{Failure, Failures},
    messages,
    metrics::Metrics,
    names::reason,
    plan::{Observed, Plan, Rejection},
    render::{self, Group},
    resource::{self, Resource},
    settings::Settings,
    status::Finding,
    watches,
    workloads::{ReadySince, Workload},
};

/// Why a reconcile has to be repeated, although nothing was heard of a change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something failed that may work later; the status says so too.
    #[error("{0}")]
    Failed(String),
    /// The status could not be written, or access not withdrawn.
    #[error(transparent)]
    Write(#[from] apply::Error),
}

/// Reconciles the one configuration resource.
pub struct Reconciler {
    applier: Applier,
    recorder: Recorder,
    settings: Arc<Settings>,
    platform: Platform,
    /// Definitions of others, which decide what is deployed.
    definitions: Cache,
    metrics: Metrics,
    memory: Memory,
    /// Watches that are refused, fail or are stale.
    blocked: Vec<Blocked>,
    /// When certificates have to be looked at again.
    look_again: Option<SystemTime>,
    /// What decides whether a change of the configuration resource needs work.
    configuration_seen: Option<[Value; 4]>,
    /// When the status was written last.
    told: Option<Instant>,
    /// When to write what was not worth a write yet.
    held_back: Option<Instant>,
    /// When a workload that just became ready will have stayed so for long enough.
    ready_at: Option<Instant>,
}

/// What is remembered between reconciles of one and the same configuration resource. All of it may be
/// lost: then some things are looked at again.
#[derive(Debug, Default)]
struct Memory {
    /// Which one; empty when there is none.
    uid: String,
    /// Components that were deployed, with their workloads.
    deployed: Vec<(&'static str, Vec<ObjectId>)>,
    /// How far what the node state operator deploys is, if it is asked for.
    second_step: Option<Workload>,
    /// Their generations, as far as they were seen.
    generations: BTreeMap<ObjectId, i64>,
    /// Since when they are ready.
    ready_since: ReadySince,
    /// Whether a workload was made in this reconcile.
    made: bool,
    /// Objects of earlier versions that are known to be gone, and definitions that are known to be nobody's.
    gone: BTreeSet<ObjectId>,
    /// Whether the last reconcile failed, in whole or in part.
    failed: bool,
}

/// What a reconcile led to.
struct Outcome {
    /// What was rendered.
    groups: Vec<Group>,
    /// What went wrong with some of it.
    failures: Failures,
}

/// The end of a reconcile before its goal.
struct Stop {
    failure: Failure,
    /// Whether it may go better without a change.
    retry: bool,
}

impl Stop {
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

impl From<Rejection> for Stop {
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

impl Reconciler {
    /// A reconciler that believes the cache.
    pub fn new(
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
            memory: Memory::default(),
            blocked: Vec::new(),
            look_again: None,
            configuration_seen: None,
            told: None,
            held_back: None,
            ready_at: None,
        }
    }

    /// What kind of cluster this is, as far as that was found out since.
    pub fn set_platform(&mut self, platform: Platform) {
        self.platform = platform;
    }

    /// What kind of cluster this is.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// One reconcile: everything is brought about that can be, and the status says what could not.
    pub async fn reconcile(&mut self) -> Result<(), Error> {
        // What was to be done later belongs to the reconcile before: this one says anew what is left.
        self.look_again = None;
        self.held_back = None;
        self.ready_at = None;
        let Some(cr) = self.resource() else {
            self.memory = Memory::default();
            self.measure_nothing();
            return self.withdraw().await;
        };
        // Of one that was deleted and made anew in a moment, both are heard of at once.
        if self.memory.uid != cr.uid {
            self.memory = Memory {
                uid: cr.uid.clone(),
                ..Memory::default()
            };
        }
        // A profile that is not valid changes nothing: the status says what is wrong with it.
        if let Some(settings) = cr.tls_settings() {
            self.metrics.publish_tls(&settings);
        }
        self.report_losses(&cr).await;
        let mut outcome = self.bring_about(&cr).await;
        if let Err(error) = self.keep_certificates(&cr).await {
            let component = KubevirtIpamController.name();
            match &mut outcome {
                Ok(outcome) => outcome.failures.note(component, reason::APPLY, error),
                Err(stop) => {
                    tracing::error!(component, error, "cannot keep certificates");
                    stop.retry = true;
                }
            }
        }
        self.report_modifications(&cr).await;
        let (finding, again) = self.judge(outcome);
        self.write_status(&cr, &finding).await?;
        match again {
            Some(message) => Err(Error::Failed(message)),
            None => Ok(()),
        }
    }

    /// What follows from the outcome: for the status, and why to try again without a change.
    fn judge(&mut self, outcome: Result<Outcome, Stop>) -> (Finding, Option<String>) {
        match outcome {
            Ok(Outcome { groups, failures }) => {
                let again = failures.all().map(|failure| failure.message);
                self.memory.failed = again.is_some();
                let components = self.components();
                let finding = Finding::Applied {
                    components,
                    containers: render::containers(&groups),
                    failures,
                };
                (finding, again)
            }
            Err(Stop { failure, retry }) => {
                let (reason, error) = (failure.reason, &failure.message);
                tracing::error!(reason, error, "cannot bring about the configuration");
                self.memory.failed = true;
                let again = retry.then(|| failure.message.clone());
                let components = self.components();
                (Finding::Rejected { failure, components }, again)
            }
        }
    }

    /// Whether a change of this object may need work. Of the configuration resource, a change of its
    /// status does not: it is our own.
    pub fn concerns(&mut self, id: &ObjectId) -> bool {
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
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            return None;
        }
        let uid = object
            .pointer("/metadata/uid")
            .and_then(Value::as_str)?
            .to_owned();
        Some(Resource { object, uid })
    }

    async fn bring_about(&mut self, cr: &Resource) -> Result<Outcome, Stop> {
        let mut failures = Failures::default();
        if let Some(Failure { reason, message }) = self.blockade() {
            failures.note_general(reason, message);
        }
        let settings = Arc::clone(&self.settings);
        let (observed, second_step) = self.observe_all(cr, &settings, &mut failures).await?;
        let plan = Plan::of(&observed)?;
        self.memory.second_step = second_step;
        self.memory.deployed.clone_from(&plan.deployed);
        for (component, error) in &plan.unrendered {
            failures.note(component, reason::RENDER, error.to_string());
        }
        self.carry_out(&plan, &mut failures).await?;
        let groups = plan.groups;
        Ok(Outcome { groups, failures })
    }

    /// Everything that the plan depends on, and the progress of the second step.
    async fn observe_all<'a>(
        &self,
        cr: &'a Resource,
        settings: &'a Settings,
        failures: &mut Failures,
    ) -> Result<(Observed<'a>, Option<Workload>), Stop> {
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
                failures.note_general(reason::RENDER, messages::invalid_configuration(&[missing]));
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
            random: random()?,
        };
        Ok((observed, second_step))
    }

    /// The definition of networks, until it is known to have no owner.
    async fn networks(&self, failures: &mut Failures) -> Option<Value> {
        let id = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
        if self.memory.gone.contains(&id) {
            return None;
        }
        match self.applier.get(&id).await {
            Ok(definition) => definition,
            Err(error) => {
                let error = messages::invalid_configuration(&[error.to_string()]);
                failures.note_general(reason::RENDER, error);
                None
            }
        }
    }

    /// The API for node state, with the progress of what its operator deploys; only observed where it is asked for. A
    /// failure to read it is taken for the state that leads to most objects, so that none is pruned.
    async fn node_state(&self, cr: &Resource, failures: &mut Failures) -> (NodeState, Option<Workload>) {
        if !cr.wants_node_state() {
            return (NodeState::default(), None);
        }
        let definition = match self.definitions.lookup(&watches::definition(object::NMSTATE)) {
            Lookup::Present(definition) => detect::node_state_definition(&definition),
            Lookup::Absent | Lookup::Unknown => NodeStateDefinition::None,
        };
        let wishes = match definition {
            NodeStateDefinition::None => Ok(None),
            _ if self.cache().serves(object::NMSTATE) => Ok(Some(self.cache().list(object::NMSTATE))),
            _ => detect::node_states(self.applier.client()).await,
        };
        match wishes {
            Ok(wishes) => {
                let second_step = nmstate::second_step(definition, wishes.as_deref());
                let wish = detect::node_state_wish(wishes.as_deref());
                (NodeState { definition, wish }, Some(second_step))
            }
            Err(error) => {
                failures.note(NMState.name(), reason::RENDER, client::message(&error));
                let wish = NodeStateWish::None;
                (NodeState { definition, wish }, None)
            }
        }
    }

    async fn openshift_network(&self) -> Result<Option<OpenShiftNetwork>, Stop> {
        if !self.platform.openshift4 {
            return Ok(None);
        }
        if self.cache().serves(object::OPENSHIFT_NETWORK) {
            let known = self.cache().list(object::OPENSHIFT_NETWORK);
            return Ok(detect::known_openshift_network(&known));
        }
        let network = detect::openshift_network(self.applier.client()).await;
        network.map_err(|error| Stop::retry(reason::OPENSHIFT_NETWORK, client::message(&error)))
    }

    /// The record of the last reconcile under this very configuration resource, or the reason why it cannot be read.
    fn applied(&self, cr: &Resource) -> Result<Result<Applied, String>, Stop> {
        let id = applied::id(&self.settings.operator_namespace);
        match self.cache().lookup(&id) {
            Lookup::Present(record) => {
                Ok(applied::read_under(&record, &cr.uid).map_err(|error| error.to_string()))
            }
            Lookup::Absent => Ok(Ok(Applied::default())),
            // Unknown is not absent: a new random range of addresses would be drawn.
            Lookup::Unknown => {
                let error = messages::previous_configuration("it is not known yet");
                Err(Stop::retry(reason::PREVIOUS_CONFIG, error))
            }
        }
    }
}

/// Two octets of the kernel's random numbers.
fn random() -> Result<[u8; 2], Stop> {
    let mut octets = [0; 2];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut octets))
        .map_err(|error| Stop::retry(reason::RENDER, format!("cannot read /dev/urandom: {error}")))?;
    Ok(octets)
}
