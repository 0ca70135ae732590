//! Applies the events of watches to the [`State`](crate::state::State), and queues the virtual machines that they
//! affect.

use std::fmt::Debug;
use std::time::Duration;

use kube::{Api, Client, Resource};
use kube_kit::serve::Readiness;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Store, Trouble, Watch};
use serde::de::DeserializeOwned;

use crate::controller::Queues;
use crate::network::Network;
use crate::objects::{Claim, Instance, Machine, WireClaim, WireInstance, WireMachine, WireNetworkDefinition};
use crate::state::{self, Part, Shared, State};

/// Objects per page of a list. The cached part of an object is small.
const PAGE: u32 = 500;
/// Retry interval for a kind that is not served.
const ABSENT: Duration = Duration::from_mins(1);
/// Interval of the checks for unserved kinds, until all caches are synced.
const CHECK: Duration = Duration::from_millis(500);

/// State that all tasks share.
#[derive(Clone)]
pub(crate) struct Core {
    /// The caches.
    pub(crate) shared: Shared,
    /// The connection to the API server.
    pub(crate) client: Client,
    /// Whether the required caches are synced.
    pub(crate) known: Readiness,
    /// Virtual machines to reconcile.
    pub(crate) queues: Queues,
}

impl Core {
    /// Starts all watches, which run as long as the runtime. Returns the cache of claims.
    pub(crate) fn watch(&self) -> Store<Name, ()> {
        tokio::spawn(self.clone().machines());
        tokio::spawn(self.clone().instances());
        tokio::spawn(self.clone().networks());
        self.claims()
    }

    async fn machines(self) {
        let core = self.clone();
        let watch = self.start(move |machine: WireMachine| {
            let name = Name::of(&machine.metadata);
            let seen = |state: &mut State| state.machine_seen(name, Machine::from(machine));
            core.queues.machines(core.change(seen));
        });
        let gone = |name| {
            self.queues
                .machines(self.change(|state| state.machine_gone(name)));
        };
        self.follow(watch, Part::Machines, gone).await;
    }

    async fn instances(self) {
        let core = self.clone();
        let watch = self.start(move |instance: WireInstance| {
            let name = Name::of(&instance.metadata);
            let seen = |state: &mut State| state.instance_seen(name, Instance::from(instance));
            core.queues.instances(core.change(seen));
        });
        let gone = |name| {
            self.queues
                .instances(self.change(|state| state.instance_gone(name)));
        };
        self.follow(watch, Part::Instances, gone).await;
    }

    async fn networks(self) {
        let core = self.clone();
        let watch = self.start(move |definition: WireNetworkDefinition| {
            let network = Network::read(Name::of(&definition.metadata), definition.config());
            core.queues
                .instances(core.change(|state| state.network_seen(network)));
        });
        let gone = |id| {
            self.queues
                .instances(self.change(|state| state.network_gone(&id)));
        };
        self.follow(watch, Part::Networks, gone).await;
    }

    fn claims(&self) -> Store<Name, ()> {
        let core = self.clone();
        let watch = self.start(move |claim: WireClaim| {
            let id = Name::of(&claim.metadata);
            core.change_claims(|state| state.claim_seen(id, Claim::of(claim)));
        });
        let (store, core) = (watch.store(), self.clone());
        tokio::spawn(async move {
            let gone = |id| core.change_claims(|state| state.claim_gone(&id));
            core.follow(watch, Part::Claims, gone).await;
        });
        store
    }

    /// Changes a claim, and queues the virtual machines that it concerns, and those that waited for its addresses.
    fn change_claims(&self, change: impl FnOnce(&mut State) -> Vec<Name>) {
        let (concerned, woken) = self.change(|state| (change(state), state.woken()));
        self.queues.instances(concerned.into_iter().chain(woken));
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut state::lock(&self.shared))
    }

    fn start<K>(&self, apply: impl FnMut(K) + Send + 'static) -> Watch<Name, ()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        watch::start_named(api, &Options::all().page(PAGE).absent(ABSENT), apply)
    }

    /// Follows a watch. The watch itself applies stored objects; this function applies deletions. If an object was
    /// deleted and created again at once, the cache already has the new one.
    async fn follow(&self, mut watch: Watch<Name, ()>, part: Part, gone: impl Fn(Name)) {
        let store = watch.store();
        while !store.is_synced() {
            let change = tokio::select! {
                change = watch.next() => change,
                () = tokio::time::sleep(CHECK) => {
                    // KubeVirt may be installed later, or never. Without KubeVirt the cache is empty and synced.
                    if store.trouble(Duration::ZERO) == Some(Trouble::NotServed) {
                        self.complete(part);
                    }
                    continue;
                }
            };
            let Some(change) = change else { return };
            note(&watch, change, &gone);
        }
        tracing::debug!(?part, objects = store.len(), "completed listing");
        self.complete(part);
        while let Some(change) = watch.next().await {
            note(&watch, change, &gone);
        }
    }

    fn complete(&self, part: Part) {
        if self.change(|state| state.complete(part)) && !self.known.is_ready() {
            tracing::info!("caches are synced");
            self.known.set(true);
        }
    }
}

fn note(watch: &Watch<Name, ()>, change: Change<Name>, gone: &impl Fn(Name)) {
    match change {
        Change::Deleted(name) if !watch.store().contains(&name) => gone(name),
        Change::Deleted(_) | Change::Applied(_) | Change::Synced | Change::Invalid(..) => {}
    }
}
