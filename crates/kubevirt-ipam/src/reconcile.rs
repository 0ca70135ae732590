//! Applies the plan for the claims of one virtual machine.
//!
//! Caches may be stale, so that only a fresh read of the API server decides about the release of a claim. The claim is
//! read first, then the virtual machine and its instance. A later change of the claim makes the write fail.
//!
//! ```text
//! plan ──> ensure ──> create: missing claims, and orphaned ones
//!   │            └──> addresses: of networks with a range
//!   └──> release: claims that are not needed any more
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use api::kubevirt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube_kit::events::{Kind, Recorder};
use kube_kit::watch::{Name, Store};

use crate::cluster::{Cluster, Error as ApiError};
use crate::election::Leadership;
use crate::messages;
use crate::mutate::Lookup as _;
use crate::names::reason;
use crate::objects::{Claim, Instance, Machine};
use crate::plan::{self, Belongs, Ensure, Plan, Problem, Wanted};
use crate::state::{self, Shared};
use crate::uid::Uid;

mod addresses;
mod create;
mod release;
#[cfg(test)]
mod tests;

/// The cause of a failed reconcile. The virtual machine is requeued.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Error {
    /// A network can't have a claim.
    #[error(transparent)]
    Problem(#[from] Problem),
    /// Virtual machine or instance can't be read.
    #[error("{0}")]
    Read(String),
    /// A claim of that name has another owner.
    #[error("{}", messages::found_existing(.0))]
    Existing(String),
    /// A claim of that name exists, and can't be read.
    #[error("let us be on the safe side and retry later: {0}")]
    Unreadable(ApiError),
    /// A claim can't be created.
    #[error("{}", messages::event::failed(claim, error))]
    Create {
        /// Name of the claim.
        claim: String,
        /// The cause.
        error: ApiError,
    },
    /// The owner of an orphaned claim can't be set.
    #[error("cannot adopt IPAMClaim {claim:?}: {error}")]
    Adopt {
        /// Name of the claim.
        claim: String,
        /// The cause.
        error: ApiError,
    },
    /// Our finalizer can't be added to a claim.
    #[error("cannot add the finalizer to IPAMClaim {claim:?}: {error}")]
    Hold {
        /// Name of the claim.
        claim: String,
        /// The cause.
        error: ApiError,
    },
    /// A claim gets no addresses.
    #[error("cannot give addresses to IPAMClaim {claim:?}: {error}")]
    Give {
        /// Name of the claim.
        claim: String,
        /// The cause.
        error: String,
    },
    /// Claims can't be released.
    #[error("{}", messages::not_released(.0))]
    Release(String),
    /// The caches are stale.
    #[error("the virtual machine has changed meanwhile")]
    Changed,
    /// Another replica writes.
    #[error("this replica does not hold the lease")]
    NotLeading,
}

/// A virtual machine and its instance, from the caches or from the API server.
#[derive(Clone, Debug, Default)]
struct Found {
    machine: Option<Machine>,
    instance: Option<Instance>,
}

/// Applies plans.
pub(crate) struct Reconciler {
    shared: Shared,
    cluster: Cluster,
    recorder: Recorder,
    leadership: Leadership,
    /// The claims in the cache, if a watch runs.
    claims: Option<Store<Name, ()>>,
    /// Whether the cache has had all claims since this replica began to write. Before that, no address is given.
    has_caught_up: AtomicBool,
    /// Published events about virtual machines whose claims are not in the desired state.
    published: Mutex<HashMap<Name, Published>>,
}

/// Published events about an instance.
#[derive(Debug, Default)]
struct Published {
    instance: Uid,
    /// Reason and message of each event.
    texts: BTreeSet<String>,
}

impl Reconciler {
    /// Reconciles the cached objects while this replica is the leader.
    pub(crate) fn new(shared: Shared, cluster: Cluster, recorder: Recorder, leadership: Leadership) -> Self {
        Self {
            shared,
            cluster,
            recorder,
            leadership,
            claims: None,
            has_caught_up: AtomicBool::new(false),
            published: Mutex::default(),
        }
    }

    /// Adds the cache of a watch of claims.
    #[must_use]
    pub(crate) fn beside(self, claims: Store<Name, ()>) -> Self {
        Self {
            claims: Some(claims),
            ..self
        }
    }

    /// Brings the claims of a virtual machine to the desired state.
    ///
    /// # Errors
    /// If a claim is not in the desired state, or its state is unknown. All other steps are still applied.
    pub(crate) async fn reconcile(&self, name: &Name) -> Result<(), Error> {
        let (plan, found) = {
            let state = state::lock(&self.shared);
            let found = Found {
                machine: state.machine(name).cloned(),
                instance: state.instance(name).map(|instance| Instance::clone(instance)),
            };
            (state.plan(name), found)
        };
        let mut failures = Vec::new();
        match plan {
            Plan::Cleanup | Plan::Nothing => {}
            Plan::Ensure(ensure) => failures = self.ensure(name, &found, ensure).await,
        }
        if self.gives_up_any(name, &found)
            && let Err(error) = self.give_up(name).await
        {
            failures.push(error);
        }
        // Only the first error is logged. Each error has an event.
        match failures.into_iter().next() {
            None => {
                self.forget_events(name, found.instance.is_some());
                Ok(())
            }
            Some(error) => {
                if found.instance.is_none() {
                    self.forget_events(name, false);
                }
                Err(error)
            }
        }
    }

    /// Allows the publication of the same events again, except those about odd addresses of an existing instance.
    fn forget_events(&self, name: &Name, exists: bool) {
        let mut published = kube_kit::lock(&self.published);
        let Some(of_machine) = published.get_mut(name) else {
            return;
        };
        let is_kept = |text: &String| exists && text.starts_with(reason::ODD_ADDRESS);
        of_machine.texts.retain(is_kept);
        if of_machine.texts.is_empty() {
            published.remove(name);
        }
    }

    async fn ensure(&self, name: &Name, found: &Found, ensure: Ensure) -> Vec<Error> {
        let Some(instance) = &found.instance else {
            return Vec::new();
        };
        let mut failures = Vec::new();
        for problem in ensure.problems {
            if self.is_late(&problem).await {
                failures.push(Error::Changed);
                continue;
            }
            self.publish(
                name,
                instance,
                Kind::Warning,
                problem.reason(),
                &problem.message(),
            )
            .await;
            failures.push(problem.into());
        }
        for text in ensure.outside {
            self.publish(name, instance, Kind::Warning, reason::ODD_ADDRESS, &text)
                .await;
        }
        let (mut missing, mut there) = (Vec::new(), Vec::new());
        for wanted in ensure.claims {
            if self.has(name, found, &wanted) {
                there.push(wanted);
            } else {
                missing.push(wanted);
            }
        }
        for wanted in &there {
            if let Some(text) = self.other_network(name, wanted) {
                self.publish(name, instance, Kind::Warning, reason::ODD_ADDRESS, &text)
                    .await;
            }
        }
        for wanted in there.iter().filter(|wanted| !wanted.ranges.is_empty()) {
            if let Err(error) = self.give(name, instance, wanted, None).await {
                failures.push(error);
            }
        }
        if missing.is_empty() {
            return failures;
        }
        // The garbage collector would delete a claim whose owner is gone, even if a pod uses it.
        let live = if found.agrees() {
            found.clone()
        } else {
            match self.live(name).await {
                Ok(live) => live,
                Err(error) => {
                    failures.push(error);
                    return failures;
                }
            }
        };
        let Some(now) = live
            .instance
            .as_ref()
            .filter(|now| now.uid == instance.uid && !now.deleting)
        else {
            failures.push(Error::Changed);
            return failures;
        };
        for wanted in missing {
            if let Err(error) = self.provide(name, &live, now, &wanted).await {
                failures.push(error);
            }
        }
        failures
    }

    /// Ensures that a claim exists, and that it has addresses if the network has a range.
    async fn provide(
        &self,
        name: &Name,
        found: &Found,
        instance: &Instance,
        wanted: &Wanted,
    ) -> Result<(), Error> {
        let made = self.claim(name, found, instance, wanted).await?;
        let is_new = made.is_some();
        let report = async {
            if is_new {
                let text = messages::event::created(&wanted.name, &wanted.network);
                self.publish(name, instance, Kind::Normal, reason::CREATED, &text)
                    .await;
            }
        };
        let give = async {
            if wanted.ranges.is_empty() {
                Ok(())
            } else {
                self.give(name, instance, wanted, made).await
            }
        };
        // The report of an event delays no virtual machine.
        let ((), given) = tokio::join!(report, give);
        given
    }

    /// Reads virtual machine and instance from the API server.
    async fn live(&self, name: &Name) -> Result<Found, Error> {
        let (machine, instance) = tokio::join!(self.cluster.machine(name), self.cluster.instance(name));
        let machine = machine.map_err(|error| Error::Read(messages::no_machine(name, error)))?;
        let instance = instance.map_err(|error| Error::Read(error.to_string()))?;
        Ok(Found { machine, instance })
    }

    /// Whether a network is missing only in the stale cache. The network is cached then.
    async fn is_late(&self, problem: &Problem) -> bool {
        let Problem::NoNetwork { definition, .. } = problem else {
            return false;
        };
        match self.cluster.network(definition).await {
            Ok(Some(network)) => {
                state::lock(&self.shared).network_seen(network);
                true
            }
            Ok(None) => false,
            Err(error) => {
                let nad = messages::object(definition);
                tracing::warn!(nad, %error, "cannot find out whether the NAD exists");
                true
            }
        }
    }

    /// Whether the cache has the claim with the right owner.
    fn has(&self, name: &Name, found: &Found, wanted: &Wanted) -> bool {
        let state = state::lock(&self.shared);
        let id = Name::new(&name.namespace, &wanted.name);
        state
            .claim(&id)
            .is_some_and(|claim| found.owns(name, &claim) == Belongs::Ours)
    }

    /// The message of an event, if a claim has addresses of another network than the desired one.
    fn other_network(&self, name: &Name, wanted: &Wanted) -> Option<String> {
        let state = state::lock(&self.shared);
        let claim = state.claim(&Name::new(&name.namespace, &wanted.name))?;
        let differs = !claim.ips.is_empty() && *claim.network != *wanted.network;
        differs.then(|| messages::event::other_network(&wanted.name, &claim.network, &wanted.network))
    }

    fn seen(&self, name: &Name) -> Found {
        let state = state::lock(&self.shared);
        Found {
            machine: state.machine(name).cloned(),
            instance: state.instance(name).map(|instance| Instance::clone(instance)),
        }
    }

    fn may_write(&self) -> Result<(), Error> {
        if self.leadership.may_write() {
            Ok(())
        } else {
            Err(Error::NotLeading)
        }
    }

    /// Publishes an event on an instance. The same event is published again only after the claims were in the desired
    /// state.
    async fn publish(&self, name: &Name, instance: &Instance, kind: Kind, reason: &str, text: &str) {
        let is_new = {
            let mut published = kube_kit::lock(&self.published);
            let of_machine = published.entry(name.clone()).or_default();
            if of_machine.instance != instance.uid {
                // The former instance was deleted.
                *of_machine = Published {
                    instance: instance.uid.clone(),
                    texts: BTreeSet::new(),
                };
            }
            of_machine.texts.insert(format!("{reason} {text}"))
        };
        if !is_new {
            return;
        }
        let regarding = ObjectReference {
            api_version: Some(kubevirt::API_VERSION.to_owned()),
            kind: Some(kubevirt::INSTANCE.to_owned()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(instance.uid.to_string()),
            ..ObjectReference::default()
        };
        self.recorder.publish(&regarding, kind, reason, text).await;
    }
}

impl Found {
    /// Whether the instance's owner reference names the virtual machine. A read of the API server would add nothing.
    fn agrees(&self) -> bool {
        match (&self.machine, &self.instance) {
            (Some(machine), Some(instance)) => {
                !machine.deleting
                    && !instance.deleting
                    && instance.owner == machine.uid
                    && !machine.uid.is_empty()
            }
            _ => false,
        }
    }

    fn owns(&self, name: &Name, claim: &Claim) -> Belongs {
        match &self.instance {
            Some(instance) => plan::belongs(claim, &name.name, self.machine.as_ref(), instance),
            None => Belongs::Foreign,
        }
    }
}
