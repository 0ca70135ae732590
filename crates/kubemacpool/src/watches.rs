//! Watches that feed the [`State`](crate::state::State) object by object.
//!
//! ```text
//! pods, virtual machines, instances ─┐                   ┌─> State
//! namespaces, webhook configuration ─┴─> read, apply at once ─┴─> notices, finalizers to remove
//! ```
//!
//! An object is applied while it is parsed, and only its name is kept here: so changes of an object are applied in
//! order, and ten thousand objects take only the memory that the state needs.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client, Resource};
use kube_kit::client::message;
use kube_kit::serve::Readiness;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Watch};
use linux::backoff::Backoff;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::collisions::Notice;
use crate::kubevirt::{Pod, VirtualMachine, VirtualMachineInstance};
use crate::names;
use crate::namespaces::Rules;
use crate::notices::{Fullness, Notices};
use crate::pool::Owner;
use crate::state::{self, Part, Shared, State};

#[cfg(test)]
pub(crate) mod tests;

/// Page size of the lists: objects are partial, so that five hundred take a few megabytes.
const PAGE: u32 = 500;
/// First interval of discovery while KubeVirt is not installed.
const DISCOVERY: Duration = Duration::from_secs(5);
/// Intervals of discovery. A review or a pod of a virtual machine ends them.
const BACKOFF: Backoff = Backoff::new(DISCOVERY, Duration::from_mins(5));
/// Interval at which a kind that is not served any more is listed.
const ABSENT: Duration = Duration::from_mins(1);
/// Pause before a retry.
const RETRY: Duration = Duration::from_secs(1);
/// Pause before a retry after a conflict.
const CONFLICT: Duration = Duration::from_millis(100);
/// Timeout of discovery.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Shared by all tasks.
#[derive(Clone)]
pub(crate) struct Core {
    /// The observed state.
    pub shared: Shared,
    /// Client of the API server.
    pub client: Client,
    /// Whether addresses can be allocated.
    pub readiness: Readiness,
    /// Publishes events for users.
    pub notices: Notices,
    /// Notified when addresses are taken or released.
    pub usage_changed: Arc<Notify>,
    /// Notified by a review or a pod of a virtual machine.
    pub hint: Arc<Notify>,
}

impl Core {
    /// Starts all watches, which run until the runtime ends.
    pub(crate) fn watch(&self) {
        tokio::spawn(self.clone().pods());
        tokio::spawn(self.clone().namespaces());
        tokio::spawn(self.clone().rules());
        tokio::spawn(self.clone().kubevirt());
        tokio::spawn(self.clone().fullness());
    }

    /// Changes the state, and publishes the resulting notices.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State) -> Vec<Notice>) {
        let notices = change(&mut state::lock(&self.shared));
        if !notices.is_empty() {
            self.notices.collisions(notices);
        }
        self.usage_changed.notify_one();
    }

    /// Records that a part is complete.
    pub(crate) fn complete(&self, part: Part) {
        self.change(|state| state.complete(part));
        self.check_ready();
    }

    /// Checks whether the pool is ready. It stays ready then: a complete state does not become incomplete.
    fn check_ready(&self) {
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

    /// Reports when the range is nearly full; checks at most once a second.
    async fn fullness(self) {
        let mut fullness = Fullness::default();
        loop {
            self.usage_changed.notified().await;
            tokio::time::sleep(RETRY).await;
            let usage = state::lock(&self.shared).usage();
            if let Some(notice) = fullness.observe(usage.size - usage.free(), usage.size) {
                self.notices.range(notice);
            }
        }
    }

    async fn pods(self) {
        let core = self.clone();
        let watch = self.start(move |pod: Pod| {
            if pod.is_launcher() || pod.instance().is_some() {
                core.hint.notify_one();
            }
            core.change(|state| state.pod_stored(&pod));
        });
        let deleted = |state: &mut State, name: &Name| state.pod_deleted(&name.namespace, &name.name);
        let synced = |pods: &Watch<Name, ()>| {
            tracing::info!(pods = pods.store().len(), "completed pod listing");
            self.complete(Part::Pods);
        };
        self.handle_changes(watch, deleted, synced).await;
    }

    async fn machines(self) {
        let core = self.clone();
        let watch = self.start(move |machine: VirtualMachine| core.machine_stored(&machine));
        let deleted = |state: &mut State, name: &Name| state.machine_deleted(&name.namespace, &name.name);
        let synced = |machines: &Watch<Name, ()>| {
            let names = machines.store().keys();
            tracing::info!(machines = names.len(), "completed VM listing");
            let owner = |name: Name| Owner::machine(&name.namespace, &name.name);
            let owners = names.into_iter().map(owner).collect();
            state::lock(&self.shared).listed(owners);
            self.complete(Part::Machines);
        };
        self.handle_changes(watch, deleted, synced).await;
    }

    async fn instances(self) {
        let core = self.clone();
        let watch = self.start(move |instance: VirtualMachineInstance| {
            core.change(|state| state.instance_stored(&instance));
        });
        let deleted = |state: &mut State, name: &Name| state.instance_deleted(&name.namespace, &name.name);
        let synced = |_: &Watch<Name, ()>| self.complete(Part::Instances);
        self.handle_changes(watch, deleted, synced).await;
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
        let deleted = |state: &mut State, name: &Name| state.namespace_deleted(&name.name);
        let synced = |_: &Watch<Name, ()>| self.complete(Part::Namespaces);
        self.handle_changes(watch, deleted, synced).await;
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
                Change::Applied(_) => self.check_ready(),
                Change::Deleted(name) if !watch.store().contains(&name) => {
                    self.change(|state| state.set_rules(Rules::read(None)));
                }
                Change::Deleted(_) | Change::Invalid(..) => {}
                Change::Synced => self.complete(Part::Rules),
            }
        }
    }

    /// Watches virtual machines and their instances, each once discovery lists the kind.
    async fn kubevirt(self) {
        let (mut machines, mut instances, mut attempts) = (false, false, 0_u32);
        while !(machines && instances) {
            let served = match tokio::time::timeout(TIMEOUT, self.served()).await {
                Ok(Ok(served)) => served,
                failed => {
                    let error = match failed {
                        Ok(Err(error)) => message(&error),
                        _ => "timeout while waiting for the API server".to_owned(),
                    };
                    tracing::warn!(error, "cannot determine whether KubeVirt is installed");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            let has = |kind| served.iter().any(|served| served == kind);
            if !machines && has(kubevirt::MACHINES) {
                machines = true;
                state::lock(&self.shared).set_kubevirt_installed();
                if attempts > 0 {
                    tracing::info!("found kubevirt restarting the manager");
                }
                tokio::spawn(self.clone().machines());
            }
            if !instances && has(kubevirt::INSTANCES) {
                instances = true;
                tokio::spawn(self.clone().instances());
            }
            if attempts == 0 {
                for (part, watched) in [(Part::Machines, machines), (Part::Instances, instances)] {
                    if !watched {
                        self.complete(part);
                    }
                }
            }
            attempts = attempts.saturating_add(1);
            if !(machines && instances) {
                tokio::time::sleep(DISCOVERY).await;
                let rest = BACKOFF.after(attempts).saturating_sub(DISCOVERY);
                // A timeout causes discovery as well.
                let _ = tokio::time::timeout(rest, self.hint.notified()).await;
            }
        }
    }

    /// The kinds of KubeVirt that the API server serves.
    async fn served(&self) -> kube::Result<Vec<String>> {
        match self.client.list_api_group_resources(kubevirt::API_VERSION).await {
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

    /// Follows a watch that applies what it parses; deletions are applied here. If an object was recreated at once, the
    /// new one is applied already.
    async fn handle_changes(
        &self,
        mut watch: Watch<Name, ()>,
        deleted: impl Fn(&mut State, &Name),
        synced: impl FnOnce(&Watch<Name, ()>),
    ) {
        let mut synced = Some(synced);
        while let Some(change) = watch.next().await {
            match change {
                Change::Deleted(name) if !watch.store().contains(&name) => {
                    self.change(|state| {
                        deleted(state, &name);
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
    pub(crate) fn machine_stored(&self, machine: &VirtualMachine) {
        let bound = state::lock(&self.shared).machine_stored(machine);
        self.usage_changed.notify_one();
        if let Some(machine) = bound {
            tokio::spawn(self.clone().remove_legacy_finalizer(machine));
        }
    }

    /// Removes the legacy finalizer of a virtual machine that is being deleted; retries without end.
    async fn remove_legacy_finalizer(self, machine: Owner) {
        let resource = ApiResource::erase::<VirtualMachine>(&());
        let api = Api::namespaced_with(self.client.clone(), &machine.namespace, &resource);
        while let Err(error) = remove_finalizer(&api, &machine.name).await {
            // Another client changed it meanwhile, so it is read again.
            let conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
            if conflict {
                tokio::time::sleep(CONFLICT).await;
                continue;
            }
            let error = message(&error);
            tracing::warn!(%machine, error, "cannot remove the legacy finalizer");
            tokio::time::sleep(RETRY).await;
        }
        state::lock(&self.shared).finalizer_removed(&machine);
    }
}

/// Removes the legacy finalizer by an update: the role permits no patch.
async fn remove_finalizer(api: &Api<DynamicObject>, name: &str) -> kube::Result<()> {
    let Some(mut machine) = api.get_opt(name).await? else {
        return Ok(());
    };
    let Some(finalizers) = machine.metadata.finalizers.as_mut() else {
        return Ok(());
    };
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != names::LEGACY_FINALIZER);
    // A new object of this name has no such finalizer.
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
