//! What the API server tells, carried into the [`State`](crate::state::State) object by object.
//!
//! ```text
//! pods, virtual machines, instances ─┐                   ┌─> State
//! namespaces, webhook configuration ─┴─> read, apply at once ─┴─> notices, finalizers to remove
//! ```
//!
//! An object is applied while it is read, and nothing of it is kept here but its name: so a change of one object is
//! never seen before the changes that came first, and ten thousand objects cost what the state needs of them.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client, Resource};
use kube_kit::client::message;
use kube_kit::serve::Readiness;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Watch};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::collisions::Notice;
use crate::kubevirt::{self, Pod, VirtualMachine, VirtualMachineInstance};
use crate::names;
use crate::namespaces::Rules;
use crate::notices::{Fullness, Notices};
use crate::pool::Owner;
use crate::state::{self, Part, Shared, State};

#[cfg(test)]
pub(crate) mod tests;

/// Objects asked for at a time: so little is read of each that five hundred take a few megabytes.
const PAGE: u32 = 500;
/// The first pause between two look-ups of the kind of virtual machines while it is not served; each later one is twice as
/// long.
const DISCOVERY: Duration = Duration::from_secs(5);
/// The longest pause. A review or a pod of a virtual machine ends it.
const SELDOM: Duration = Duration::from_mins(5);
/// How often to list a kind that is not served any more.
const ABSENT: Duration = Duration::from_mins(1);
/// How soon to ask again when the API server does not say.
const RETRY: Duration = Duration::from_secs(1);
/// How soon to try again what somebody else came first with.
const CONFLICT: Duration = Duration::from_millis(100);
/// How long the API server may take to say what it serves.
const PATIENCE: Duration = Duration::from_secs(10);

/// What everything that runs shares.
#[derive(Clone)]
pub struct Core {
    /// What is known.
    pub shared: Shared,
    /// The connection to the API server.
    pub client: Client,
    /// Whether addresses can be handed out.
    pub readiness: Readiness,
    /// Who tells users what they should know of.
    pub notices: Notices,
    /// Whether addresses were taken or given back.
    pub moved: Arc<Notify>,
    /// There was a review or a pod of a virtual machine.
    pub hint: Arc<Notify>,
}

impl Core {
    /// Starts all watches, which run as long as the runtime.
    pub fn watch(&self) {
        tokio::spawn(self.clone().pods());
        tokio::spawn(self.clone().namespaces());
        tokio::spawn(self.clone().rules());
        tokio::spawn(self.clone().kubevirt());
        tokio::spawn(self.clone().fullness());
    }

    /// Changes what is known, and tells of what comes of it.
    pub fn change(&self, change: impl FnOnce(&mut State) -> Vec<Notice>) {
        let notices = change(&mut state::lock(&self.shared));
        if !notices.is_empty() {
            self.notices.collisions(notices);
        }
        self.moved.notify_one();
    }

    /// A part is known completely.
    pub fn complete(&self, part: Part) {
        self.change(|state| state.complete(part));
        self.consider();
    }

    /// Looks whether the pool is ready now. Once it was, it stays so: what is known does not become less.
    fn consider(&self) {
        let mut state = state::lock(&self.shared);
        match state.is_ready() {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => {
                tracing::warn!(%error, "waiting for the webhook configuration");
                return;
            }
        }
        let duplicates = state.count_duplicates();
        if !self.readiness.is_ready() {
            state.log_managed();
        }
        drop(state);
        for duplicate in duplicates {
            tracing::error!("{duplicate}");
        }
        if !self.readiness.is_ready() {
            tracing::info!("Pool Manager is ready");
            self.readiness.set(true);
        }
    }

    /// Tells when the range is nearly full, not more than once a second looking at it.
    async fn fullness(self) {
        let mut fullness = Fullness::default();
        loop {
            self.moved.notified().await;
            tokio::time::sleep(RETRY).await;
            let usage = state::lock(&self.shared).usage();
            if let Some(news) = fullness.observe(usage.size - usage.free(), usage.size) {
                self.notices.range(news);
            }
        }
    }

    async fn pods(self) {
        let core = self.clone();
        let watch = self.start(move |pod: Pod| {
            if pod.is_launcher() || pod.instance().is_some() {
                core.hint.notify_one();
            }
            core.change(|state| state.pod_seen(&pod));
        });
        let gone = |state: &mut State, name: &Name| state.pod_gone(&name.namespace, &name.name);
        let synced = |pods: &Watch<Name, ()>| {
            tracing::info!(pods = pods.store().len(), "completed pod listing");
            self.complete(Part::Pods);
        };
        self.follow(watch, gone, synced).await;
    }

    async fn machines(self) {
        let core = self.clone();
        let watch = self.start(move |machine: VirtualMachine| core.machine_seen(&machine));
        let gone = |state: &mut State, name: &Name| state.machine_gone(&name.namespace, &name.name);
        let synced = |machines: &Watch<Name, ()>| {
            let names = machines.store().keys();
            tracing::info!(machines = names.len(), "completed VM listing");
            let owner = |name: Name| Owner::machine(&name.namespace, &name.name);
            let owners = names.into_iter().map(owner).collect();
            state::lock(&self.shared).listed(owners);
            self.complete(Part::Machines);
        };
        self.follow(watch, gone, synced).await;
    }

    async fn instances(self) {
        let core = self.clone();
        let watch = self.start(move |instance: VirtualMachineInstance| {
            core.change(|state| state.instance_seen(&instance));
        });
        let gone = |state: &mut State, name: &Name| state.instance_gone(&name.namespace, &name.name);
        let synced = |_: &Watch<Name, ()>| self.complete(Part::Instances);
        self.follow(watch, gone, synced).await;
    }

    async fn namespaces(self) {
        let core = self.clone();
        let api = Api::all_with(self.client.clone(), &ApiResource::erase::<Namespace>(&()));
        let key = |metadata: &kube::core::ObjectMeta| Name::of(metadata);
        let watch = watch::start_metadata(api, &Options::all().page(PAGE), key, move |namespace| {
            let name = namespace.metadata.name.unwrap_or_default();
            let labels = namespace.metadata.labels.unwrap_or_default();
            core.change(|state| state.set_namespace(&name, labels));
        });
        let gone = |state: &mut State, name: &Name| state.namespace_gone(&name.name);
        let synced = |_: &Watch<Name, ()>| self.complete(Part::Namespaces);
        self.follow(watch, gone, synced).await;
    }

    async fn rules(self) {
        let core = self.clone();
        let api: Api<DeserializeGuard<MutatingWebhookConfiguration>> = Api::all(self.client.clone());
        let named = Options::all().named(names::WEBHOOK_CONFIGURATION);
        let mut watch = watch::start_named(api, &named, move |configuration| {
            core.change(|state| state.set_rules(Rules::read(Some(&configuration))));
        });
        while let Some(change) = watch.next().await {
            match change {
                Change::Applied(_) => self.consider(),
                Change::Deleted(name) if !watch.store().contains(&name) => {
                    self.change(|state| state.set_rules(Rules::read(None)));
                }
                Change::Deleted(_) | Change::Invalid(..) => {}
                Change::Synced => self.complete(Part::Rules),
            }
        }
    }

    /// Watches virtual machines and their instances, each from when it is found out that the kind is served.
    async fn kubevirt(self) {
        let (mut machines, mut instances, mut asked) = (false, false, 0_u32);
        while !(machines && instances) {
            let served = match tokio::time::timeout(PATIENCE, self.served()).await {
                Ok(Ok(served)) => served,
                failed => {
                    let error = match failed {
                        Ok(Err(error)) => message(&error),
                        _ => "the API server takes too long".to_owned(),
                    };
                    tracing::warn!(error, "cannot find out whether there are virtual machines");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            let has = |kind| served.iter().any(|served| served == kind);
            if !machines && has(kubevirt::MACHINES) {
                machines = true;
                state::lock(&self.shared).found_kubevirt();
                if asked > 0 {
                    tracing::info!("found kubevirt restarting the manager");
                }
                tokio::spawn(self.clone().machines());
            }
            if !instances && has(kubevirt::INSTANCES) {
                instances = true;
                tokio::spawn(self.clone().instances());
            }
            if asked == 0 {
                for (part, watched) in [(Part::Machines, machines), (Part::Instances, instances)] {
                    if !watched {
                        self.complete(part);
                    }
                }
            }
            asked = asked.saturating_add(1);
            if !(machines && instances) {
                tokio::time::sleep(DISCOVERY).await;
                let rest = pause(asked).saturating_sub(DISCOVERY);
                // Look again in either case.
                let _ = tokio::time::timeout(rest, self.hint.notified()).await;
            }
        }
    }

    /// The kinds of KubeVirt that the API server serves.
    async fn served(&self) -> kube::Result<Vec<String>> {
        let group = format!("{}/{}", kubevirt::GROUP, kubevirt::VERSION);
        match self.client.list_api_group_resources(&group).await {
            Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn start<K>(&self, apply: impl FnMut(K) + Send + 'static) -> Watch<Name, ()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        let all = Options::all().page(PAGE).absent(ABSENT);
        watch::start_named(api, &all, apply)
    }

    /// Follows a watch that applies what it reads; what is gone is applied here. Of an object that was made anew at once,
    /// the new one is known already.
    async fn follow(
        &self,
        mut watch: Watch<Name, ()>,
        gone: impl Fn(&mut State, &Name),
        synced: impl FnOnce(&Watch<Name, ()>),
    ) {
        let mut synced = Some(synced);
        while let Some(change) = watch.next().await {
            match change {
                Change::Deleted(name) if !watch.store().contains(&name) => {
                    self.change(|state| {
                        gone(state, &name);
                        Vec::new()
                    });
                }
                Change::Synced => {
                    if let Some(synced) = synced.take() {
                        synced(&watch);
                    }
                }
                Change::Applied(_) | Change::Deleted(_) | Change::Invalid(..) => {}
            }
        }
    }

    /// Applies a virtual machine.
    pub fn machine_seen(&self, machine: &VirtualMachine) {
        let bound = state::lock(&self.shared).machine_seen(machine);
        self.moved.notify_one();
        if let Some(machine) = bound {
            tokio::spawn(self.clone().unbind(machine));
        }
    }

    /// Frees a virtual machine that is being deleted of the finalizer of earlier programs, however long that takes.
    async fn unbind(self, machine: Owner) {
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let api = Api::namespaced_with(self.client.clone(), &machine.namespace, &resource);
        while let Err(error) = remove_finalizer(&api, &machine.name).await {
            // Somebody else changed it meanwhile: it is read again soon.
            let conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
            if conflict {
                tokio::time::sleep(CONFLICT).await;
                continue;
            }
            let error = message(&error);
            tracing::warn!(%machine, error, "cannot remove the legacy finalizer");
            tokio::time::sleep(RETRY).await;
        }
        state::lock(&self.shared).unbound(&machine);
    }
}

/// The pause after so many look-ups (1 and up).
fn pause(asked: u32) -> Duration {
    let doublings = asked.saturating_sub(1).min(16);
    DISCOVERY.saturating_mul(1 << doublings).min(SELDOM)
}

/// By an update, for nothing else is allowed.
async fn remove_finalizer(api: &Api<DynamicObject>, name: &str) -> kube::Result<()> {
    let Some(mut machine) = api.get_opt(name).await? else {
        return Ok(());
    };
    let Some(finalizers) = machine.metadata.finalizers.as_mut() else {
        return Ok(());
    };
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != names::LEGACY_FINALIZER);
    // A new one of that name is none of ours.
    if finalizers.len() == before || machine.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    match api.replace(name, &PostParams::default(), &machine).await {
        Ok(_) => {
            tracing::info!(name, "removed the legacy finalizer");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}
