//! Admissions whose objects were not seen: somebody behind us refused them, or something was missed (kubemacpool §10.7).
//!
//! When the oldest one has waited long enough, the object itself is asked for, and what it has counts. Nothing is polled. In
//! each round an object is asked for once, and so are the objects of a namespace; a look-up that fails or takes long holds up
//! no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use kube_kit::client::message;
use kube_kit::path;
use kube_kit::watch::DeserializeGuard;
use tokio::task::JoinSet;

use crate::kubevirt::{Pod, VirtualMachine};
use crate::pool::{Claimant, Holding, Kind, Owner, Pending, Pool};
use crate::state;
use crate::watches::Core;

#[cfg(test)]
mod tests;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon a look-up that failed is tried again.
const RETRY: Duration = Duration::from_secs(3);
/// Look-ups at the same time.
const AT_ONCE: usize = 8;

/// Looks after admissions, for ever.
pub async fn run(core: Core, wait: Duration) {
    loop {
        let oldest = state::lock(&core.shared).pool.oldest();
        tokio::time::sleep(pause(oldest, Instant::now(), wait)).await;
        let Some(by) = Instant::now().checked_sub(wait) else {
            continue;
        };
        let overdue = state::lock(&core.shared).pool.overdue(by);
        look_after(&core, overdue, wait).await;
        core.moved.notify_one();
    }
}

/// Looks after these admissions.
async fn look_after(core: &Core, overdue: Vec<(u64, Pending)>, wait: Duration) {
    let mut questions = questions(overdue).into_iter();
    let mut looks = JoinSet::new();
    let mut told = false;
    loop {
        while looks.len() < AT_ONCE
            && let Some((question, admissions)) = questions.next()
        {
            let core = core.clone();
            looks.spawn(async move { (look(&core, &question).await, admissions) });
        }
        let Some(looked) = looks.join_next().await else {
            return;
        };
        // A panic ends the process.
        let Ok((found, admissions)) = looked else { continue };
        let now = Instant::now();
        let pool = &mut state::lock(&core.shared).pool;
        for (number, pending) in admissions {
            let owner = described(&pending.claimant);
            match &found {
                Ok(found) => {
                    let admitted = pending.timestamp;
                    tracing::info!(owner, %admitted, "an admission that nothing was seen of is looked after");
                    match found {
                        Some(Found { uid, holdings }) => pool.found(number, uid, holdings, now),
                        None => pool.settle(number),
                    }
                }
                Err(error) => {
                    // While the API server does not answer, once a round says it.
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(owner, error, "cannot look whether an admitted object exists");
                    }
                    pool.wait_again(number, (now + RETRY).checked_sub(wait).unwrap_or(now));
                }
            }
        }
    }
}

/// A look-up.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Question {
    Object(Owner),
    /// All objects of a kind in a namespace: one of them may be the one that had no name.
    Namespace(Kind, Arc<str>),
}

/// The look-ups of a round, each once, with the admissions that wait for it.
fn questions(overdue: Vec<(u64, Pending)>) -> BTreeMap<Question, Vec<(u64, Pending)>> {
    let mut questions: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, pending) in overdue {
        let question = match &pending.claimant {
            Claimant::Named(owner) => Question::Object(owner.clone()),
            Claimant::Unnamed { kind, namespace, .. } => Question::Namespace(*kind, Arc::clone(namespace)),
        };
        questions.entry(question).or_default().push((number, pending));
    }
    questions
}

/// How long to do nothing. An admission to come is not due before its wait is over, so that there is no need to be told
/// of it.
fn pause(oldest: Option<Instant>, now: Instant, wait: Duration) -> Duration {
    oldest.map_or(wait.max(RETRY), |oldest| {
        (oldest + wait).saturating_duration_since(now)
    })
}

fn described(claimant: &Claimant) -> String {
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

/// The object as it is now, if there is one; in place of one without a name, all that may be it.
async fn look(core: &Core, question: &Question) -> Result<Option<Found>, String> {
    let asked = async {
        match question {
            Question::Object(owner) => ask(core, owner).await,
            Question::Namespace(kind, namespace) => unseen(core, *kind, namespace).await,
        }
    };
    let found = tokio::time::timeout(PATIENCE, asked).await;
    found
        .map_err(|_| "the API server takes too long".to_owned())?
        .map_err(|error| message(&error))
}

async fn ask(core: &Core, owner: &Owner) -> kube::Result<Option<Found>> {
    // No object has an invalid name. Reviews come before the API server validates names.
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
        // What is malformed has nothing that could be read.
        holdings: holdings.unwrap_or_default(),
    }))
}

/// What objects of a namespace have that no watch has told of yet: one of them may be the one without a name.
async fn unseen(core: &Core, kind: Kind, namespace: &str) -> kube::Result<Option<Found>> {
    if path::segment(namespace).is_err() {
        return Ok(None);
    }
    let (client, all) = (core.client.clone(), ListParams::default());
    let owner = |name: String| Owner {
        kind,
        namespace: namespace.into(),
        name: name.into(),
    };
    let objects: Vec<(Owner, Vec<Holding>)> = match kind {
        Kind::Pod => {
            let api: Api<DeserializeGuard<Pod>> = Api::namespaced(client, namespace);
            let pods = api.list(&all).await?.items.into_iter();
            let state = state::lock(&core.shared);
            pods.filter_map(|pod| pod.0.ok())
                .map(|pod| (owner(pod.name_any()), state.pod_holdings(&pod)))
                .collect()
        }
        Kind::Machine => {
            let api: Api<DeserializeGuard<VirtualMachine>> = Api::namespaced(client, namespace);
            let machines = api.list(&all).await?.items.into_iter();
            machines
                .filter_map(|machine| machine.0.ok())
                .map(|machine| (owner(machine.name_any()), state::machine_holdings(&machine)))
                .collect()
        }
    };
    let holdings = untold(&state::lock(&core.shared).pool, objects);
    Ok((!holdings.is_empty()).then(|| Found {
        uid: String::new(),
        holdings,
    }))
}

/// What of this no watch has told of.
fn untold(pool: &Pool, objects: Vec<(Owner, Vec<Holding>)>) -> Vec<Holding> {
    let mut untold = Vec::new();
    for (owner, holdings) in objects {
        let told = pool.stored(&owner).unwrap_or_default();
        untold.extend(holdings.into_iter().filter(|holding| !told.contains(holding)));
    }
    untold
}
