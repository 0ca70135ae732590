//! Installs network observability while the cluster asks for it (§18.6).

use std::time::Duration;

use api::cluster_network::SINGLETON;
use kube::Client;
use kube::api::{ListParams, Patch, PatchParams};
use kube_kit::client::message;
use kube_kit::object::{
    self, CLUSTER_EXTENSION, CLUSTER_NETWORK, CLUSTER_SERVICE_VERSION, CUSTOM_RESOURCE_DEFINITION,
    FEATURE_GATE, FLOW_COLLECTOR, Kind, OPENSHIFT_INFRASTRUCTURE, OPENSHIFT_NETWORK, ObjectId,
};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::Value;
use tokio::time::Instant;

use super::{Observed, Olm, Record, State, Step, awaited, pause, topology, wish};
use crate::messages::observability as messages;
use crate::names::{self, manager};
use crate::objects::{self, text};
use crate::report::Reports;
use crate::{observe, render};

const LONGEST: Duration = Duration::from_mins(5);

/// Runs until the shutdown. `version` selects the feature gates.
///
/// It watches only the objects that decide about the installation. It reads the installation itself by requests, which
/// end with it: most clusters lack these kinds.
pub async fn run(client: Client, version: &str, reports: &Reports, shutdown: &Shutdown) {
    let queue = reports.queue("observability", LONGEST);
    queue.add(());
    let mut watches = Waking::new(client.clone(), &queue);
    let sources = Sources::watch(&mut watches, version.to_owned());
    let mut installer = Installer {
        client,
        reports,
        began: None,
        is_complete: false,
        state: None,
        due: None,
    };
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next_when(|| sources.have_begun()) => {}
        }
        let inputs = sources.inputs();
        if let Some(rest) = installer.rest(inputs.as_ref()) {
            again(&queue, rest);
            continue;
        }
        let looked = tokio::select! {
            () = shutdown.wait() => return,
            looked = installer.look(inputs.as_ref()) => looked,
        };
        let pause = match looked {
            Ok(Some(pause)) => {
                again(&queue, pause);
                Some(pause)
            }
            Ok(None) => {
                // A watch reports the next change.
                queue.succeeded(&());
                None
            }
            Err(error) => {
                installer.report(Some(State::Failed(error)));
                Some(queue.failed_for((), installer.pause()))
            }
        };
        installer.due = inputs.zip(pause.map(|pause| Instant::now() + pause));
    }
}

fn again(queue: &Queue<()>, pause: Duration) {
    queue.succeeded(&());
    queue.add_after((), pause);
}

/// What decides about the installation.
struct Sources {
    policies: Store<Name, String>,
    records: Store<Name, Record>,
    topologies: Store<Name, String>,
    gates: Store<Name, bool>,
}

impl Sources {
    fn watch(watches: &mut Waking<()>, version: String) -> Self {
        let one = Options::all().named(SINGLETON);
        let policy = "/spec/networkObservability/installationPolicy";
        let has_gate = move |gates: &Value| {
            let enabled = observe::feature_gates(gates, &version);
            enabled.contains(names::OBSERVABILITY_GATE)
        };
        Self {
            policies: watches.start(&CLUSTER_NETWORK, None, &one, (), move |object| {
                text(object, policy).to_owned()
            }),
            records: watches.start(&OPENSHIFT_NETWORK, None, &one, (), Record::of),
            topologies: watches.start(&OPENSHIFT_INFRASTRUCTURE, None, &one, (), topology),
            gates: watches.start(&FEATURE_GATE, None, &one, (), has_gate),
        }
    }

    fn have_begun(&self) -> bool {
        has_begun(&self.policies)
            && has_begun(&self.records)
            && has_begun(&self.topologies)
            && has_begun(&self.gates)
    }

    /// The present values. `None` while the network is unmanaged, or the operator has not written its status.
    fn inputs(&self) -> Option<Inputs> {
        let key = Name::new("", SINGLETON);
        let record = self.records.get(&key)?;
        (record.has_status && !record.is_unmanaged).then_some(Inputs {
            policy: self.policies.get(&key)?,
            record,
            topology: self.topologies.get(&key),
            has_gate: self.gates.get(&key).unwrap_or_default(),
        })
    }
}

/// The values that decide about the installation.
#[derive(Clone, PartialEq)]
struct Inputs {
    policy: String,
    record: Record,
    topology: Option<String>,
    has_gate: bool,
}

struct Installer<'a> {
    client: Client,
    reports: &'a Reports,
    /// Time at which the installation was requested, or else wanted for the first time.
    began: Option<Instant>,
    /// True if this process saw the installation complete. The condition is written later.
    is_complete: bool,
    /// The last reported state.
    state: Option<State>,
    /// The inputs of the last look, and the time of the next one. A status that the operator writes is no reason to look
    /// earlier.
    due: Option<(Inputs, Instant)>,
}

impl Installer<'_> {
    /// The remaining pause, if the inputs did not change since the last look.
    fn rest(&self, inputs: Option<&Inputs>) -> Option<Duration> {
        let (before, due) = self.due.as_ref()?;
        let rest = due.saturating_duration_since(Instant::now());
        (Some(before) == inputs && !rest.is_zero()).then_some(rest)
    }

    /// The pause after a look at an installation.
    fn pause(&self) -> Duration {
        pause(self.began.map(|began| began.elapsed()).unwrap_or_default())
    }

    /// Takes the next step. Returns the pause until the next look, or `None` if a watch reports the next
    /// change.
    async fn look(&mut self, inputs: Option<&Inputs>) -> Result<Option<Duration>, String> {
        let Some(inputs) = inputs else {
            self.forget();
            self.report(None);
            return Ok(None);
        };
        if self.is_complete && inputs.record.deployed != Some(true) {
            // The user may change anything from now on, although the condition is not written yet.
            self.report(Some(State::Complete));
            return Ok(None);
        }
        let topology = inputs.topology.as_deref();
        match wish(&inputs.policy, inputs.has_gate, topology, &inputs.record) {
            Ok(true) => self.install().await,
            Ok(false) => {
                self.forget();
                // The failure of an unwanted installation would mislead.
                self.report((inputs.record.deployed == Some(false)).then_some(State::NotRequested));
                Ok(None)
            }
            Err(error) => {
                self.forget();
                self.report(Some(State::Failed(error)));
                Ok(None)
            }
        }
    }

    fn forget(&mut self) {
        self.began = None;
        self.is_complete = false;
    }

    fn report(&mut self, state: Option<State>) {
        if self.state != state {
            match &state {
                Some(State::Failed(error)) => tracing::warn!(error, "network observability is not installed"),
                Some(state) => tracing::info!(?state, "network observability"),
                None => {}
            }
            self.state.clone_from(&state);
        }
        self.reports.set_observability(state);
    }

    async fn install(&mut self) -> Result<Option<Duration>, String> {
        let elapsed = self.began.get_or_insert_with(Instant::now).elapsed();
        let unchecked = |error| messages::not_checked(&message(&error));
        let observed = observe(&self.client).await.map_err(unchecked)?;
        let state = match observed.step() {
            Step::Install if is_served(&self.client).await.map_err(unchecked)? => {
                self.apply(render::observability::operator())
                    .await
                    .map_err(|error| messages::not_installed(&error))?;
                self.began = Some(Instant::now());
                State::InProgress(messages::extension_awaited(""))
            }
            Step::Install => State::Failed(messages::not_installed(messages::NO_OLM)),
            Step::Wait(text) => awaited(text, elapsed),
            Step::Fail(text) => State::Failed(text),
            Step::Collect => {
                self.collect()
                    .await
                    .map_err(|error| messages::no_collector(&error))?;
                self.is_complete = true;
                self.report(Some(State::Complete));
                return Ok(None);
            }
        };
        self.report(Some(state));
        Ok(Some(self.pause()))
    }

    /// Creates the request for network observability. That of a user stays as it is.
    async fn collect(&self) -> Result<(), String> {
        if has_collector(&self.client)
            .await
            .map_err(|error| message(&error))?
        {
            return Ok(());
        }
        self.apply(render::observability::collector()).await
    }

    /// Applies objects in their order, like upstream's operator, and takes over no field of others.
    async fn apply(&self, objects: Result<Vec<Value>, render::Error>) -> Result<(), String> {
        for object in objects.map_err(|error| error.to_string())? {
            let id = ObjectId::of(&object);
            let refused = |error: &str| messages::not_applied(&id.kind, &id.name, error);
            let kind = object::find(&id.api_version(), &id.kind);
            let kind = kind.ok_or_else(|| refused("unknown kind"))?;
            let api = objects::api(&self.client, &kind, id.namespace.as_deref().unwrap_or_default());
            let params = PatchParams::apply(manager::OBSERVABILITY);
            let applied = api.patch(&id.name, &params, &Patch::Apply(&object)).await;
            applied.map_err(|error| refused(&message(&error)))?;
            tracing::info!(%id, "applied for network observability");
        }
        Ok(())
    }
}

/// Reads the state of the installation. A kind that the API server does not serve has no objects.
pub(crate) async fn observe(client: &Client) -> Result<Observed, kube::Error> {
    let extension = read(client, &CLUSTER_EXTENSION, names::OBSERVABILITY).await?;
    let mut versions = Vec::new();
    for namespace in names::OBSERVABILITY_NAMESPACES {
        let api = objects::api(client, &CLUSTER_SERVICE_VERSION, namespace);
        let found = or_absent(api.list(&ListParams::default()).await)?;
        for version in found.into_iter().flatten() {
            let version = serde_json::to_value(version).map_err(kube::Error::SerdeError)?;
            versions.extend(Olm::of_version(&version));
        }
    }
    let definition = read(client, &CUSTOM_RESOURCE_DEFINITION, names::FLOW_COLLECTORS).await?;
    Ok(Observed {
        is_defined: definition.is_some(),
        extension: extension.as_ref().map(Olm::of_extension),
        versions,
    })
}

/// True if network observability is requested already.
pub(crate) async fn has_collector(client: &Client) -> Result<bool, kube::Error> {
    Ok(read(client, &FLOW_COLLECTOR, SINGLETON).await?.is_some())
}

/// True if the API server serves the kind by which the operator installs.
pub(crate) async fn is_served(client: &Client) -> Result<bool, kube::Error> {
    let version = CLUSTER_EXTENSION.api_version();
    let served = or_absent(client.list_api_group_resources(&version).await)?;
    let mut resources = served.into_iter().flat_map(|list| list.resources);
    Ok(resources.any(|resource| resource.name == CLUSTER_EXTENSION.plural))
}

async fn read(client: &Client, kind: &Kind, name: &str) -> Result<Option<Value>, kube::Error> {
    let found = or_absent(objects::api(client, kind, "").get(name).await)?;
    found
        .map(serde_json::to_value)
        .transpose()
        .map_err(kube::Error::SerdeError)
}

/// `None` for an object that does not exist, and for a kind that is not served. The answer about the latter is no
/// object, but plain text.
fn or_absent<T>(found: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match found {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        found => found.map(Some),
    }
}
