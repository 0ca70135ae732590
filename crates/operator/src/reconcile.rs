//! Brings about what the configuration resource asks for (operator §4), and says in its status how that
//! goes.
//!
//! ```text
//! observe ──> validate ──> defaults ──> render ──> clean up ──> record ──> apply ──> prune ──> certificates ──> status
//!    │            └────────────┴── Stop ──┼───────────┼──── Stop ┘  │          │            │                      │
//!    │                                    └───────────┴── Failures ─┴──────────┴────────────┴──────────────────────┘
//!    └── what the watches know: nothing is asked for while nothing changes
//! ```
//!
//! What concerns the configuration as a whole stops everything, and leaves what is deployed as it is: only certificates
//! are kept all the same. What goes wrong with one component is noted, and the others go on, with every later step.

mod carry_out;
mod certificates;
mod report;
mod watching;

pub(crate) use carry_out::recorded;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    time::SystemTime,
};

use api::network_addons::NetworkAddonsConfigSpec;
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
        Component as _, Context,
        kubevirt_ipam_controller::KubevirtIpamController,
        nmstate::{self, NMState},
    },
    configuration, detect,
    failures::{Failure, Failures},
    labels::Stamp,
    messages,
    metrics::Metrics,
    names::reason,
    render::{self, Group},
    resource::{self, Resource},
    settings::Settings,
    status::{Component, Finding},
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
    settings: Settings,
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
    /// Components about which the user was told that they are not deployed.
    announced: BTreeSet<&'static str>,
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

    fn until_changed(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            failure: Failure {
                reason,
                message: message.into(),
            },
            retry: false,
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
            settings,
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
                let again = failures.worth_a_retry().map(|failure| failure.message);
                self.memory.failed = again.is_some();
                let mut components = self.components();
                // Their conditions say why they are not there.
                components.extend(self.memory.announced.iter().map(|&name| Component {
                    name,
                    workloads: Vec::new(),
                }));
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
        let cluster = Cluster {
            platform: self.platform,
            openshift_network: self.openshift_network().await?,
        };
        let spec = cr
            .validated(&cluster)
            .map_err(|errors| Stop::until_changed(reason::VALIDATE, messages::failed_to_validate(&errors)))?;
        let applied = self.applied(cr)?;
        let random = random()?;
        let spec = complete(&spec, &applied, self.platform, random)?;

        let node_state = self.node_state(&spec, &mut failures).await;
        let settings = self.settings.clone();
        let context = Context {
            spec: &spec,
            cluster: &cluster,
            images: &settings.images,
            namespace: &settings.operand_namespace,
            prometheus: &settings.prometheus,
            node_state: &node_state,
        };
        let stamp = cr.stamp(&settings);
        let groups = self.render(&context, &stamp, &mut failures);
        self.clean_up(&context, &groups, &mut failures).await;

        let recorded = carry_out::recorded(&applied, &context, &stamp, random)
            .map_err(|error| Stop::retry(reason::RENDER_DELETE, error.to_string()))?;
        let planned = render::inventory(&groups).union(&recorded);
        self.apply_record(&spec, &planned, &stamp).await?;
        self.apply(&groups, &mut failures).await;
        self.prune(&planned, &groups, &mut failures).await;
        let missing = render::not_deployed(&context);
        for &component in &missing {
            failures.note_not_deployed(component);
        }
        self.announce(cr, &missing).await;
        Ok(Outcome { groups, failures })
    }

    /// Renders all components that can be. From now on they are the ones that are deployed.
    fn render(&mut self, context: &Context<'_>, stamp: &Stamp, failures: &mut Failures) -> Vec<Group> {
        let mut groups = Vec::new();
        self.memory.deployed.clear();
        for (component, group) in render::each(context, stamp) {
            let workloads = match group {
                // Where somebody else does the work, or where nobody monitors.
                Ok(group) if group.objects.is_empty() => continue,
                Ok(group) => {
                    let workloads = render::workloads(&group);
                    groups.push(group);
                    workloads
                }
                Err(error) => {
                    failures.note(component, reason::RENDER, error.to_string());
                    Vec::new()
                }
            };
            self.memory.deployed.push((component, workloads));
        }
        groups
    }

    /// What there is of the API by which node state is wished for; only looked at when it is needed. When that fails,
    /// what is not known is taken for what leads to most objects: so none is taken for superfluous.
    async fn node_state(&mut self, spec: &NetworkAddonsConfigSpec, failures: &mut Failures) -> NodeState {
        self.memory.second_step = None;
        if spec.nmstate.is_none() {
            return NodeState::default();
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
                self.memory.second_step = Some(nmstate::second_step(definition, wishes.as_deref()));
                NodeState {
                    definition,
                    wish: detect::node_state_wish(wishes.as_deref()),
                }
            }
            Err(error) => {
                failures.note(NMState.name(), reason::RENDER, client::message(&error));
                NodeState {
                    definition,
                    wish: NodeStateWish::None,
                }
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

    /// What was applied before, under this very configuration resource.
    fn applied(&self, cr: &Resource) -> Result<Applied, Stop> {
        let id = applied::id(&self.settings.operator_namespace);
        let config_map = match self.cache().lookup(&id) {
            Lookup::Present(config_map) => config_map,
            Lookup::Absent => return Ok(Applied::default()),
            // Unknown is not absent: a new random range of addresses would be drawn.
            Lookup::Unknown => {
                let error = messages::previous_configuration("it is not known yet");
                return Err(Stop::retry(reason::PREVIOUS_CONFIG, error));
            }
        };
        applied::read_under(&config_map, &cr.uid).map_err(|error| {
            Stop::until_changed(
                reason::PREVIOUS_CONFIG,
                messages::previous_configuration(&error.to_string()),
            )
        })
    }
}

/// The complete specification, if it may follow the one that was applied before.
fn complete(
    spec: &NetworkAddonsConfigSpec,
    applied: &Applied,
    platform: Platform,
    random: [u8; 2],
) -> Result<NetworkAddonsConfigSpec, Stop> {
    let previous = applied.spec.as_ref();
    let spec = configuration::complete(spec, previous, platform, random);
    let errors = previous
        .map(|previous| configuration::change_safe(previous, &spec))
        .unwrap_or_default();
    if errors.is_empty() {
        Ok(spec)
    } else {
        Err(Stop::until_changed(
            reason::PREVIOUS_CONFIG,
            messages::unsafe_change(&errors),
        ))
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
