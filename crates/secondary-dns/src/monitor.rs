//! Watches the instances of the cluster, and publishes their names (secondary-dns §3, §9).
//!
//! ```text
//! list, watch ──> Vmi ──> records ──> Model ──┬──> zones in memory, at once
//!                                             └─ changes ──> Files ──> zone files, not more often than needed
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kube::{Api, Client};
use kube_kit::client::chain;
use kube_kit::lock;
use kube_kit::serve::Readiness;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Trouble, Watch};
use tokio::sync::Notify;

use crate::answer::SharedZones;
use crate::claims::{self, Early};
use crate::configuration::Configuration;
use crate::files::{Directory, Files, keep_written};
use crate::launchers::{self, Pod};
use crate::messages;
use crate::metrics::{Event, Metrics};
use crate::model::{Instances, Model, key};
use crate::publish::Publisher;
use crate::settings::{Settings, Sources};
use crate::vmi::{Policy, Refused, Vmi};
use crate::zone::serial;

/// Instances per page of a list.
const PAGE: u32 = 250;
/// Retry interval for an unserved KubeVirt.
const ABSENT: Duration = Duration::from_secs(10);
/// A failing watch is logged after this time.
const TROUBLED: Duration = Duration::from_secs(20);
/// Destinations of the zones.
#[derive(Clone, Debug)]
pub struct Places {
    /// Zones of the server in this process.
    pub memory: Option<SharedZones>,
    /// Directory of zone files.
    pub directory: Option<PathBuf>,
}

/// A monitor before its start.
#[derive(Debug)]
pub struct Monitor {
    state: Arc<Mutex<State>>,
    estate: Estate,
    changed: Arc<Notify>,
    files: Option<Files>,
    early: Sources,
    readiness: Readiness,
    metrics: Metrics,
}

#[derive(Debug)]
pub(crate) struct State {
    model: Model,
    policy: Policy,
    early: Option<Early>,
    memory: Option<SharedZones>,
    /// Whether the first list is complete. The monitor publishes nothing before.
    complete: bool,
    /// Instances whose records the zone files lack; `None` if the monitor writes no files.
    unwritten: Option<Instances>,
    /// Instances whose names or addresses were logged as invalid.
    complained: BTreeSet<Arc<str>>,
    directory: Directory,
    /// The monitor with the former settings, until this monitor has all instances.
    predecessor: Option<Arc<Mutex<State>>>,
}

/// The state that a monitor with other settings takes over.
#[derive(Clone, Debug)]
struct Estate {
    state: Arc<Mutex<State>>,
    places: Places,
    directory: Directory,
    metrics: Metrics,
}

/// Runs a monitor, and replaces it after each change of the configuration. The former monitor continues until the new
/// one has all instances, so that no name is denied in between.
pub async fn run(
    first: Monitor,
    client: Client,
    mut configuration: Configuration,
    environment: impl Fn(&str) -> Option<String>,
) {
    let ready = first.readiness.clone();
    let mut estate = first.estate.clone();
    let mut current = Box::pin(first.run(client.clone()));
    let mut is_changed = false;
    loop {
        if !is_changed {
            tokio::select! {
                () = &mut current => return,
                () = configuration.changed() => {}
            }
        }
        is_changed = false;
        let settings = match Settings::read(configuration.lookup(&environment)) {
            Ok(settings) => settings,
            Err(error) => {
                tracing::error!("{}; the former settings stay", chain(&error));
                continue;
            }
        };
        tracing::info!(zone = settings.header.zone, "the configuration has changed");
        let next = estate.successor(settings);
        let (complete, heir) = (next.readiness.clone(), next.estate.clone());
        let mut next = Box::pin(next.run(client.clone()));
        tokio::select! {
            () = &mut current => return,
            () = &mut next => return,
            () = complete.wait() => {
                ready.set(true);
                current = next;
                estate = heir;
            }
            () = configuration.changed() => is_changed = true,
        }
    }
}

impl Estate {
    /// A monitor with other settings for the same destinations.
    fn successor(&self, settings: Settings) -> Monitor {
        let Self {
            state,
            places,
            directory,
            metrics,
        } = self;
        let monitor = Monitor::at(
            settings,
            places.clone(),
            directory.clone(),
            Readiness::new(),
            metrics.clone(),
        );
        lock(&monitor.state).predecessor = Some(Arc::clone(state));
        monitor
    }
}

impl Monitor {
    /// A monitor without instances. It continues the serial of the zone file, if one exists.
    pub fn new(settings: Settings, places: Places, readiness: Readiness, metrics: Metrics) -> Self {
        Self::at(settings, places, Directory::default(), readiness, metrics)
    }

    fn at(
        settings: Settings,
        places: Places,
        writers: Directory,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        let Settings {
            header,
            policy,
            counter,
            early,
            complaint,
        } = settings;
        if let Some(complaint) = complaint {
            tracing::error!("{complaint}");
        }
        let Places { memory, directory } = places.clone();
        let publisher = directory.map(Publisher::new);
        let continued = publisher
            .as_ref()
            .and_then(|publisher| publisher.serial(&header.zone));
        let serial = match continued {
            Some(serial) => serial,
            None if counter => 0,
            None => now(),
        };
        let model = Model::new(header.clone(), serial);
        let files = publisher.map(|publisher| {
            let model = Model::new(header, serial);
            Files::new(publisher, writers.clone(), model, counter)
        });
        if let Some(memory) = &memory {
            let mut memory = lock(memory);
            for origin in model.origins() {
                memory.expect(origin);
            }
        }
        let state = State {
            model,
            policy,
            early: None,
            memory,
            complete: false,
            unwritten: files.is_some().then(Instances::new),
            complained: BTreeSet::new(),
            directory: writers.clone(),
            predecessor: None,
        };
        let state = Arc::new(Mutex::new(state));
        Self {
            estate: Estate {
                state: Arc::clone(&state),
                places,
                directory: writers,
                metrics: metrics.clone(),
            },
            state,
            changed: Arc::new(Notify::new()),
            files,
            early,
            readiness,
            metrics,
        }
    }

    /// Watches the instances forever.
    pub async fn run(self, client: Client) {
        let Self {
            state,
            estate: _,
            changed,
            files,
            early,
            readiness,
            metrics,
        } = self;
        // These lists come before the instances, so that no name with an address is denied.
        let (mut claims, mut pods) = (None, None);
        if early != Sources::default() {
            lock(&state).early = Some(Early::default());
        }
        if early.claims {
            let watch = claims.insert(claims::watch(client.clone()).await);
            if let Some(early) = &mut lock(&state).early {
                early.claims = Some(watch.store());
            }
        }
        if early.network_status {
            let watch = pods.insert(watch_pods(client.clone(), &state, &changed));
            claims::first_list(watch, "pods of virtual machine instances").await;
        }
        let api: Api<DeserializeGuard<Vmi>> = Api::all(client);
        let options = Options::all().page(PAGE).absent(ABSENT);
        let (shared, wake) = (Arc::clone(&state), Arc::clone(&changed));
        let mut watch = watch::start_named(api, &options, move |vmi: Vmi| {
            if lock(&shared).observe(&vmi) {
                wake.notify_one();
            }
        });
        let publishing = async {
            readiness.wait().await;
            match files {
                Some(files) => keep_written(files, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        let claiming = async {
            match claims.as_mut() {
                Some(watch) => follow_claims(watch, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        let launching = async {
            match pods.as_mut() {
                Some(watch) => follow_pods(watch, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(
            follow(&mut watch, &state, &changed, &readiness, &metrics),
            claiming,
            launching,
            publishing
        );
    }
}

/// Seconds since 1970, as a serial.
fn now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The value wraps in the manner of serials.
    u32::try_from(since.as_secs() & u64::from(u32::MAX)).unwrap_or_default()
}

async fn follow(
    watch: &mut Watch<Name, ()>,
    state: &Mutex<State>,
    changed: &Notify,
    readiness: &Readiness,
    metrics: &Metrics,
) {
    let mut logged: Option<Trouble> = None;
    loop {
        let change = match tokio::time::timeout(TROUBLED, watch.next()).await {
            Ok(Some(change)) => change,
            Ok(None) => return,
            Err(_) => {
                let trouble = watch.store().trouble(TROUBLED);
                if trouble != logged {
                    log(trouble.as_ref());
                    logged = trouble;
                }
                continue;
            }
        };
        match change {
            Change::Applied(_) => metrics.event(Event::Applied),
            Change::Deleted(name) => {
                metrics.event(Event::Deleted);
                // The store already has a new instance of the same name.
                if !watch.store().contains(&name) && lock(state).gone(&name) {
                    changed.notify_one();
                }
            }
            Change::Invalid(name, error) => {
                metrics.event(Event::Invalid);
                let Name { namespace, name } = name;
                tracing::warn!(
                    namespace,
                    name,
                    error,
                    "cannot read an instance, its records stay"
                );
            }
            Change::Synced => {
                let instances = lock(state).completed();
                if !readiness.is_ready() {
                    tracing::info!(
                        listed = watch.store().len(),
                        published = instances,
                        "all virtual machine instances are listed"
                    );
                    readiness.set(true);
                }
                changed.notify_one();
            }
        }
    }
}

async fn follow_claims(watch: &mut Watch<Name, Vec<IpAddr>>, state: &Mutex<State>, changed: &Notify) {
    while let Some(change) = watch.next().await {
        match change {
            Change::Applied(claim) | Change::Deleted(claim) => {
                if lock(state).claimed(&claim) {
                    changed.notify_one();
                }
            }
            Change::Invalid(Name { namespace, name }, error) => {
                tracing::warn!(namespace, name, error, "cannot read a claim, its addresses stay");
            }
            Change::Synced => {}
        }
    }
}

/// Starts the watch of launcher pods.
fn watch_pods(client: Client, state: &Arc<Mutex<State>>, changed: &Arc<Notify>) -> Watch<Name, ()> {
    let api: Api<DeserializeGuard<Pod>> = Api::all(client);
    let (shared, wake) = (Arc::clone(state), Arc::clone(changed));
    watch::start_named(api, &launchers::options(), move |pod: Pod| {
        if lock(&shared).launched(&pod) {
            wake.notify_one();
        }
    })
}

async fn follow_pods(watch: &mut Watch<Name, ()>, state: &Mutex<State>, changed: &Notify) {
    while let Some(change) = watch.next().await {
        match change {
            Change::Deleted(pod) => {
                // The store already has a new pod of the same name.
                if !watch.store().contains(&pod) && lock(state).pod_gone(&pod) {
                    changed.notify_one();
                }
            }
            Change::Invalid(Name { namespace, name }, error) => {
                tracing::warn!(namespace, name, error, "cannot read a pod, its addresses stay");
            }
            Change::Applied(_) | Change::Synced => {}
        }
    }
}

fn log(trouble: Option<&Trouble>) {
    match trouble {
        None => tracing::info!("the watch of virtual machine instances is up to date"),
        Some(Trouble::NotServed) => tracing::error!("{}", messages::NO_KUBEVIRT),
        Some(Trouble::Refused(verb)) => {
            tracing::error!(verb, "the API server does not let this account read instances");
        }
        Some(trouble) => tracing::warn!(
            ?trouble,
            "the watch of virtual machine instances is not up to date"
        ),
    }
}

impl State {
    /// Applies an event of an instance. Returns whether a record changed.
    fn observe(&mut self, vmi: &Vmi) -> bool {
        let (namespace, name) = vmi.name();
        if namespace.is_empty() || name.is_empty() {
            let text = if name.is_empty() {
                messages::NO_NAME
            } else {
                messages::NO_NAMESPACE
            };
            tracing::error!(namespace, name, "{text}");
            return false;
        }
        let instance = key(namespace, name);
        let published = match &mut self.early {
            Some(early) => {
                early.observe(&instance, vmi);
                let early = &*early;
                vmi.publish_with(&self.policy, |network| early.addresses(vmi, network))
            }
            None => vmi.publish(&self.policy),
        };
        let odd = |refused: &&Refused| matches!(refused, Refused::Name(_) | Refused::NotAllowed { .. });
        let odd: Vec<String> = published
            .refused
            .iter()
            .filter(odd)
            .map(ToString::to_string)
            .collect();
        if odd.is_empty() {
            self.complained.remove(&instance);
        } else if self.complained.insert(Arc::clone(&instance)) {
            tracing::warn!(
                namespace,
                name,
                reason = odd.join("; "),
                "not everything of an instance is published"
            );
        }
        self.set(&instance, published.records)
    }

    /// Applies a change of a claim's addresses. Returns whether a record changed.
    fn claimed(&mut self, claim: &Name) -> bool {
        let owner = self.early.as_ref().and_then(|early| early.owner(claim));
        owner.is_some_and(|vmi| self.observe(&vmi))
    }

    /// Applies an event of a pod. Returns whether a record changed.
    fn launched(&mut self, pod: &Pod) -> bool {
        let early = self.early.as_mut();
        let instances = early.map(|early| early.launchers.observe(pod));
        let mut is_changed = false;
        for instance in instances.unwrap_or_default() {
            is_changed |= self.publish_again(&instance);
        }
        is_changed
    }

    /// Removes a pod. Returns whether a record changed.
    fn pod_gone(&mut self, pod: &Name) -> bool {
        let early = self.early.as_mut();
        let instance = early.and_then(|early| early.launchers.remove(pod));
        instance.is_some_and(|instance| self.publish_again(&instance))
    }

    fn publish_again(&mut self, instance: &str) -> bool {
        let early = self.early.as_ref();
        let vmi = early.and_then(|early| early.instance(instance));
        vmi.is_some_and(|vmi| self.observe(&vmi))
    }

    /// Removes an instance. Returns whether a record changed.
    fn gone(&mut self, name: &Name) -> bool {
        let instance = key(&name.namespace, &name.name);
        if let Some(early) = &mut self.early {
            early.gone(&instance);
        }
        self.complained.remove(&instance);
        self.set(&instance, Vec::new())
    }

    fn set(&mut self, instance: &Arc<str>, records: Vec<crate::vmi::Record>) -> bool {
        let Some(update) = self.model.set(instance, records) else {
            return false;
        };
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.insert(Arc::clone(instance), self.model.records_of(instance));
        }
        if let (true, Some(memory)) = (self.complete, &self.memory) {
            self.model.carry(&update, &mut lock(memory));
        }
        true
    }

    /// Instances that have changed since the last call, and the serial. `None` if this monitor writes no files, or no
    /// longer writes them.
    pub(crate) fn take_unwritten(&mut self) -> Option<(Instances, u32)> {
        let changes = self.unwritten.as_mut().map(std::mem::take)?;
        Some((changes, self.model.serial()))
    }

    /// Changes the base of the serial: events in between have counted on from `from`, and now count on from `to`.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) {
        let ahead = to.wrapping_sub(from);
        if ahead == 0 {
            return;
        }
        let serial = self.model.serial().wrapping_add(ahead);
        self.model.set_serial(serial);
        if let Some(memory) = &self.memory {
            let mut memory = lock(memory);
            for origin in self.model.origins() {
                if let Some(zone) = memory.get_mut(&origin) {
                    zone.set_serial(serial);
                }
            }
        }
    }

    /// The first list is complete: the zones are answered from now on. Returns the number of instances with records.
    fn completed(&mut self) -> usize {
        if !self.complete {
            self.complete = true;
            if let Some(predecessor) = self.predecessor.take() {
                self.take_over(&mut lock(&predecessor));
            }
            if let Some(memory) = &self.memory {
                let zones = self.model.zones();
                let origins: Vec<_> = self.model.origins().collect();
                // All zones change at once: no query finds zones of both settings.
                lock(memory).put_only(&origins, zones);
            }
        }
        self.model.instances()
    }

    /// Takes the state of the former monitor, which publishes nothing any more.
    fn take_over(&mut self, before: &mut Self) {
        before.memory = None;
        before.unwritten = None;
        let (old, new) = (&before.model.header().zone, &self.model.header().zone);
        if old == new {
            self.model.set_serial(serial::next(before.model.serial()));
        } else {
            self.directory.replace(old, new);
        }
    }
}

#[cfg(test)]
mod tests;
