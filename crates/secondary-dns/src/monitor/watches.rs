//! The watches of instances, claims and launcher pods: each event goes to the [`State`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::{Api, Client};
use kube_kit::lock;
use kube_kit::serve::Readiness;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Trouble, Watch};
use tokio::sync::Notify;

use super::State;
use crate::claims::Claim;
use crate::launchers::{self, Pod};
use crate::messages;
use crate::metrics::{Event, Metrics};
use crate::vmi::Vmi;

/// Instances per page of a list.
const PAGE: u32 = 250;
/// Retry interval for an unserved KubeVirt.
const ABSENT: Duration = Duration::from_secs(10);
/// A failing watch is logged after this time.
const TROUBLED: Duration = Duration::from_secs(20);

/// Starts the watch of instances.
pub(super) fn watch_instances(
    client: Client,
    state: &Arc<Mutex<State>>,
    changed: &Arc<Notify>,
) -> Watch<Name, ()> {
    let api: Api<DeserializeGuard<Vmi>> = Api::all(client);
    let options = Options::all().page(PAGE).absent(ABSENT);
    let (shared, wake) = (Arc::clone(state), Arc::clone(changed));
    watch::start_named(api, &options, move |vmi: Vmi| {
        if lock(&shared).observe(&vmi) {
            wake.notify_one();
        }
    })
}

pub(super) async fn follow_instances(
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

pub(super) async fn follow_claims(watch: &mut Watch<Name, Claim>, state: &Mutex<State>, changed: &Notify) {
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
pub(super) fn watch_pods(
    client: Client,
    state: &Arc<Mutex<State>>,
    changed: &Arc<Notify>,
) -> Watch<Name, ()> {
    let api: Api<DeserializeGuard<Pod>> = Api::all(client);
    let (shared, wake) = (Arc::clone(state), Arc::clone(changed));
    watch::start_named(api, &launchers::options(), move |pod: Pod| {
        if lock(&shared).launched(&pod) {
            wake.notify_one();
        }
    })
}

pub(super) async fn follow_pods(watch: &mut Watch<Name, ()>, state: &Mutex<State>, changed: &Notify) {
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
