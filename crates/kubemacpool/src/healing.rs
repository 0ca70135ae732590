//! Admissions whose objects are not observed: another webhook denied them, or an event was missed (kubemacpool §10.7).
//!
//! When the wait time of the oldest one is over, the object is read from the API server, and its addresses count.
//! Nothing is polled. Each round reads an object or the objects of a namespace once; a failed or slow read delays no
//! other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use kube_kit::client::message;
use kube_kit::pages::Pages;
use kube_kit::path;
use kube_kit::watch::DeserializeGuard;
use tokio::task::JoinSet;

use crate::kubevirt::{Pod, VirtualMachine};
use crate::pool::{Claimant, Holding, Kind, Owner, Pending, Pool};
use crate::state;
use crate::watches::Core;

#[cfg(test)]
mod tests;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a failed read is retried.
const RETRY: Duration = Duration::from_secs(3);
/// Maximum number of concurrent reads.
const AT_ONCE: usize = 8;

/// Handles overdue admissions until the runtime ends.
pub(crate) async fn run(core: Core, wait: Duration) {
    loop {
        let oldest = state::lock(&core.shared).pool.oldest();
        tokio::time::sleep(pause(oldest, Instant::now(), wait)).await;
        let Some(by) = Instant::now().checked_sub(wait) else {
            continue;
        };
        let overdue = state::lock(&core.shared).pool.overdue(by);
        check_overdue(&core, overdue, wait).await;
        core.usage_changed.notify_one();
    }
}

/// Handles these admissions.
async fn check_overdue(core: &Core, overdue: Vec<(u64, Pending)>, wait: Duration) {
    let mut lookups = lookups(overdue).into_iter();
    let mut running = JoinSet::new();
    let mut logged = false;
    loop {
        while running.len() < AT_ONCE
            && let Some((lookup, admissions)) = lookups.next()
        {
            let core = core.clone();
            running.spawn(async move { (read(&core, &lookup).await, admissions) });
        }
        let Some(finished) = running.join_next().await else {
            return;
        };
        // A panic ends the process.
        let Ok((found, admissions)) = finished else {
            continue;
        };
        let now = Instant::now();
        let pool = &mut state::lock(&core.shared).pool;
        for (number, pending) in admissions {
            let owner = describe(&pending.claimant);
            match &found {
                Ok(found) => {
                    let admitted = pending.timestamp;
                    tracing::info!(owner, %admitted, "checking an admission whose object was not observed");
                    match found {
                        Some(Found { uid, holdings }) => pool.found(number, uid, holdings, now),
                        None => pool.settle(number),
                    }
                }
                Err(error) => {
                    // While the API server does not answer, one line per round is enough.
                    if !std::mem::replace(&mut logged, true) {
                        tracing::warn!(owner, error, "cannot check whether an admitted object exists");
                    }
                    pool.postpone(number, (now + RETRY).checked_sub(wait).unwrap_or(now));
                }
            }
        }
    }
}

/// A read of the API server.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Lookup {
    Object(Owner),
    /// All objects of a kind in a namespace: one of them may be that of a request without a name.
    Namespace(Kind, Arc<str>),
}

/// The reads of a round, each once, with the admissions that wait for it.
fn lookups(overdue: Vec<(u64, Pending)>) -> BTreeMap<Lookup, Vec<(u64, Pending)>> {
    let mut lookups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, pending) in overdue {
        let lookup = match &pending.claimant {
            Claimant::Named(owner) => Lookup::Object(owner.clone()),
            Claimant::Unnamed { kind, namespace, .. } => Lookup::Namespace(*kind, Arc::clone(namespace)),
        };
        lookups.entry(lookup).or_default().push((number, pending));
    }
    lookups
}

/// Time until the next round. A new admission is not due before its wait is over, so it need not interrupt the pause.
fn pause(oldest: Option<Instant>, now: Instant, wait: Duration) -> Duration {
    oldest.map_or(wait.max(RETRY), |oldest| {
        (oldest + wait).saturating_duration_since(now)
    })
}

fn describe(claimant: &Claimant) -> String {
    match claimant {
        Claimant::Named(owner) => owner.to_string(),
        Claimant::Unnamed { request, .. } => format!("request {request}"),
    }
}

/// An object that exists.
struct Found {
    uid: String,
    holdings: Vec<Holding>,
}

/// Reads the object, if it exists; for a request without a name, all objects that may be it.
async fn read(core: &Core, lookup: &Lookup) -> Result<Option<Found>, String> {
    match lookup {
        Lookup::Object(owner) => within(read_object(core, owner)).await,
        Lookup::Namespace(kind, namespace) => read_unreported(core, *kind, namespace).await,
    }
}

/// The answer to a request.
async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let answer = tokio::time::timeout(TIMEOUT, request).await;
    answer
        .map_err(|_| "timeout while waiting for the API server".to_owned())?
        .map_err(|error| message(&error))
}

async fn read_object(core: &Core, owner: &Owner) -> kube::Result<Option<Found>> {
    // No object has an invalid name. Reviews precede the validation of names.
    if path::check(&owner.namespace, &owner.name).is_err() {
        return Ok(None);
    }
    let client = core.client.clone();
    let found = match owner.kind {
        Kind::Pod => {
            let api: Api<DeserializeGuard<Pod>> = Api::namespaced(client, &owner.namespace);
            let pod = api.get_opt(&owner.name).await?;
            pod.map(|pod| {
                (
                    pod.uid(),
                    pod.0.map(|pod| state::lock(&core.shared).pod_holdings(&pod)),
                )
            })
        }
        Kind::Machine => {
            let api: Api<DeserializeGuard<VirtualMachine>> = Api::namespaced(client, &owner.namespace);
            let machine = api.get_opt(&owner.name).await?;
            machine.map(|machine| (machine.uid(), machine.0.map(|it| state::machine_holdings(&it))))
        }
    };
    Ok(found.map(|(uid, holdings)| Found {
        uid: uid.unwrap_or_default(),
        // A malformed object has no addresses.
        holdings: holdings.unwrap_or_default(),
    }))
}

/// Addresses of objects in a namespace that no watch has reported yet: one of them may be that of the request.
async fn read_unreported(core: &Core, kind: Kind, namespace: &str) -> Result<Option<Found>, String> {
    if path::segment(namespace).is_err() {
        return Ok(None);
    }
    let (client, all) = (core.client.clone(), ListParams::default());
    let mut objects: Vec<(Owner, Vec<Holding>)> = Vec::new();
    let owner = |name: String| Owner {
        kind,
        namespace: namespace.into(),
        name: name.into(),
    };
    match kind {
        Kind::Pod => {
            let api: Api<DeserializeGuard<Pod>> = Api::namespaced(client, namespace);
            let mut pages = Pages::new(api, all);
            while let Some(page) = within(pages.next()).await? {
                let state = state::lock(&core.shared);
                let pods = page.into_iter().filter_map(|pod| pod.0.ok());
                objects.extend(pods.map(|pod| (owner(pod.name_any()), state.pod_holdings(&pod))));
            }
        }
        Kind::Machine => {
            let api: Api<DeserializeGuard<VirtualMachine>> = Api::namespaced(client, namespace);
            let mut pages = Pages::new(api, all);
            while let Some(page) = within(pages.next()).await? {
                let machines = page.into_iter().filter_map(|machine| machine.0.ok());
                objects.extend(machines.map(|it| (owner(it.name_any()), state::machine_holdings(&it))));
            }
        }
    }
    let holdings = unreported(&state::lock(&core.shared).pool, objects);
    Ok((!holdings.is_empty()).then(|| Found {
        uid: String::new(),
        holdings,
    }))
}

/// The addresses that no watch has reported.
fn unreported(pool: &Pool, objects: Vec<(Owner, Vec<Holding>)>) -> Vec<Holding> {
    let mut unreported = Vec::new();
    for (owner, holdings) in objects {
        let logged = pool.stored(&owner).unwrap_or_default();
        unreported.extend(holdings.into_iter().filter(|holding| !logged.contains(holding)));
    }
    unreported
}
