//! Brings about what the configuration resource asks for (operator §4), and says in its status how that
//! goes.
//!
//! ```text
//! observe ──> validate ──> defaults ──> render ──> apply ──> prune ──> status
//!    │            └────────────┴───────────┴─────────┴─────────┴── failure ──┘
//!    └── what the watches know: nothing is asked for while nothing changes
//! ```

mod carry_out;
mod certificates;
mod report;

pub(crate) use carry_out::recorded;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    time::SystemTime,
};

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::{
    apply::{self, Applier},
    cache::{Cache, Lookup},
    client,
    events::Recorder,
    inventory::Inventory,
    object::ObjectId,
};
use serde_json::Value;

use crate::{
    applied::{self, Applied},
    cluster_facts::{Cluster, NodeState, OpenShiftNetwork, Platform},
    components::{Context, kubevirt_ipam_controller::IssuedCertificates},
    configuration, detect, manifest, messages,
    metrics::Metrics,
    names::reason,
    render::{self, Group},
    resource::{self, Resource},
    settings::Settings,
    status::Finding,
    watches,
    workloads::Failure,
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
    /// When certificates have to be looked at again.
    look_again: Option<SystemTime>,
    /// What decides whether a change of the configuration resource needs work.
    configuration_seen: Option<[Value; 4]>,
}

/// What is remembered between reconciles of one and the same configuration resource. All of it may be
/// lost: then some things are looked at again.
#[derive(Debug, Default)]
struct Memory {
    /// Workloads that were applied.
    tracked: Vec<ObjectId>,
    /// Their generations, as far as they were seen.
    generations: BTreeMap<ObjectId, i64>,
    /// Whether a workload was made in this reconcile.
    made: bool,
    /// Created, and not told about by a watch yet.
    unseen: BTreeSet<ObjectId>,
    /// Objects of earlier versions that are known to be gone.
    gone: BTreeSet<ObjectId>,
    /// Whether the last reconcile ended before its goal.
    rejected: bool,
    /// Components about which the user was told that they are not deployed.
    announced: BTreeSet<&'static str>,
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
            look_again: None,
            configuration_seen: None,
        }
    }

    /// One reconcile: everything is brought about that can be, and the status says what could not.
    pub async fn reconcile(&mut self) -> Result<(), Error> {
        // A failure before certificates were looked at has its own time to try again.
        self.look_again = None;
        let Some(cr) = self.resource() else {
            self.memory = Memory::default();
            self.measure_nothing();
            return self.withdraw_access().await;
        };
        // A profile that is not valid changes nothing: the status says what is wrong with it.
        if let Some(settings) = cr.tls_settings() {
            self.metrics.publish_tls(&settings);
        }
        self.report_losses(&cr).await?;
        let outcome = self.bring_about(&cr).await;
        let outcome = match (outcome, self.keep_certificates(&cr).await) {
            (Ok(_), Err(stop)) => Err(stop),
            (Err(stop), Err(Stop { failure, retry })) => {
                tracing::error!(error = failure.message, "cannot keep certificates");
                Err(Stop {
                    retry: stop.retry || retry,
                    ..stop
                })
            }
            (outcome, Ok(())) => outcome,
        };
        self.report_modifications(&cr).await;
        self.memory.rejected = outcome.is_err();
        match outcome {
            Ok(groups) => {
                let finding = Finding::Applied {
                    progress: self.progress(),
                    containers: render::containers(&groups),
                };
                self.write_status(&cr, &finding).await
            }
            Err(Stop { failure, retry }) => {
                tracing::error!(
                    reason = failure.reason,
                    error = failure.message,
                    "cannot bring about the configuration"
                );
                let message = failure.message.clone();
                self.write_status(&cr, &Finding::Rejected(failure)).await?;
                if retry {
                    Err(Error::Failed(message))
                } else {
                    Ok(())
                }
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

    /// Whether the watches know all that was created: until then, they say that it is not there. What a
    /// watch told about an object may be older than its creation, so the cache is asked.
    pub fn is_settled(&mut self) -> bool {
        let cache = self.applier.cache();
        self.memory
            .unseen
            .retain(|id| !matches!(cache.lookup(id), Lookup::Present(_)));
        self.memory.unseen.is_empty()
    }

    /// Stops waiting for objects that were created, and that the watches never told about.
    pub fn settle(&mut self) {
        self.memory.unseen.clear();
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

    async fn bring_about(&mut self, cr: &Resource) -> Result<Vec<Group>, Stop> {
        let cluster = Cluster {
            platform: self.platform,
            openshift_network: self.openshift_network().await?,
        };
        let spec = cr
            .validated(&cluster)
            .map_err(|errors| Stop::until_changed(reason::VALIDATE, messages::failed_to_validate(&errors)))?;
        let applied = self.applied(cr)?;
        let random = random()?;
        let spec = configuration::complete(&spec, applied.spec.as_ref(), self.platform, random);
        if let Some(previous) = &applied.spec {
            let errors = configuration::change_safe(previous, &spec);
            if !errors.is_empty() {
                return Err(Stop::until_changed(
                    reason::PREVIOUS_CONFIG,
                    messages::unsafe_change(&errors),
                ));
            }
        }

        let node_state = self.node_state(&spec).await?;
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
        let cannot_render = |error: manifest::Error| Stop::retry(reason::RENDER, error.to_string());
        let groups = render::render(&context, &stamp).map_err(cannot_render)?;
        self.clean_up(&context).await?;
        let recorded = carry_out::recorded(&applied, &context, &stamp, random)
            .map_err(|error| Stop::retry(reason::RENDER_DELETE, error.to_string()))?;

        let certificates = IssuedCertificates::of(&context).map_err(cannot_render)?;
        let certificates = certificates.iter().flat_map(IssuedCertificates::objects);
        let rendered = render::inventory(&groups).union(&Inventory::of(certificates));
        let planned = recorded.union(&rendered);
        self.apply_record(&spec, &planned, &stamp).await?;
        self.apply(&groups).await?;
        self.prune(&planned, &rendered).await?;
        self.announce(cr, &render::not_deployed(&context)).await;
        Ok(groups)
    }

    /// What there is of the API by which node state is wished for; only looked at when it is needed.
    async fn node_state(&self, spec: &NetworkAddonsConfigSpec) -> Result<NodeState, Stop> {
        if spec.nmstate.is_none() {
            return Ok(NodeState::default());
        }
        let definition = match self.definitions.lookup(&watches::node_state_definition()) {
            Lookup::Present(definition) => Some(definition),
            _ => None,
        };
        let node_state = detect::node_state(self.applier.client(), definition.as_deref()).await;
        node_state.map_err(|error| Stop::retry(reason::RENDER, client::message(&error)))
    }

    async fn openshift_network(&self) -> Result<Option<OpenShiftNetwork>, Stop> {
        if !self.platform.openshift4 {
            return Ok(None);
        }
        let network = detect::openshift_network(self.applier.client()).await;
        network.map_err(|error| Stop::retry(reason::OPENSHIFT_NETWORK, client::message(&error)))
    }

    /// What was applied before, under this very configuration resource.
    fn applied(&self, cr: &Resource) -> Result<Applied, Stop> {
        let id = applied::id(&self.settings.operator_namespace);
        let Lookup::Present(config_map) = self.cache().lookup(&id) else {
            return Ok(Applied::default());
        };
        applied::read_under(&config_map, &cr.uid).map_err(|error| {
            Stop::until_changed(
                reason::PREVIOUS_CONFIG,
                messages::previous_configuration(&error.to_string()),
            )
        })
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
