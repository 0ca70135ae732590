//! Applies the desired state in this node's `NodeNetworkState`, as the original design has it, and repairs drift
//! (nmstate §3.2-3 to 6).
//!
//! ```text
//! spec changed, back-off over, every resync ──> DesiredState ──> new, failed or drifted? ──> pipeline
//!                                                                        status.conditions <──┘
//! ```

mod desired;
mod stored;

use std::sync::Arc;

use futures::future::OptionFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube_kit::client::chain;
use kube_kit::watch::{self, Change, DeserializeGuard, Options};
use serde_json::Value;
use thiserror::Error;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::apply::{self, Pipeline};
use crate::bridge_vlans;
use crate::objects;
use crate::requests::{self, Part, within_timeout};
use crate::shared::Shared;

pub use desired::DesiredState;
use desired::Outcome;
use stored::NodeNetworkState;

/// The outcome cannot be written.
#[derive(Debug, Error)]
#[error("cannot write the conditions of NodeNetworkState {name}")]
pub struct Error {
    name: String,
    #[source]
    source: requests::Error,
}

/// Enforces the desired state until it is dropped; does nothing if the original design is disabled.
pub async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
    if !shared.settings.original_design {
        return std::future::pending().await;
    }
    let node = shared.node.clone();
    let mut changes = watch::start_named(
        Api::<DeserializeGuard<NodeNetworkState>>::all(shared.client.clone()),
        &Options::all().named(&node),
        ObservedState::of,
    );
    let store = changes.store();
    let name = watch::Name::new("", &node);
    let mut enforcer = Enforcer::new(shared, pipeline);
    let (newest, here) = (changes.store(), name.clone());
    enforcer.newest = Some(Box::new(move || newest.with(&here, ObservedState::version)));
    let mut tick = tokio::time::interval(enforcer.shared.settings.resync);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut starts = enforcer.shared.starts.subscribe();
    let mut synced = false;
    loop {
        let retry = enforcer.next.map(tokio::time::sleep_until);
        tokio::select! {
            change = changes.next() => match change {
                None => return,
                Some(Change::Synced) => synced = true,
                Some(Change::Invalid(_, text)) => {
                    warn!(node, "malformed NodeNetworkState, keeping its last desired state: {text}");
                }
                Some(Change::Applied(_) | Change::Deleted(_)) => {}
            },
            _ = tick.tick() => {}
            Ok(()) = starts.changed() => enforcer.retry_now(),
            Some(()) = OptionFuture::from(retry) => {}
        }
        if synced && let Err(error) = enforcer.reconcile(store.get(&name).as_ref()).await {
            // The next reconcile retries the write.
            error!(node, error = chain(&error));
        }
    }
}

/// Applies the desired state once, with as many attempts as a policy has. `false` if it failed.
///
/// # Errors
/// If the API server cannot be reached, or refuses.
pub async fn once(shared: Shared, pipeline: Arc<Pipeline>) -> Result<bool, Error> {
    if !shared.settings.original_design {
        return Ok(true);
    }
    let api: Api<NodeNetworkState> = Api::all(shared.client.clone());
    let object = within_timeout(api.get_opt(&shared.node))
        .await
        .map_err(|source| Error {
            name: shared.node.clone(),
            source,
        })?;
    let observed = object.map(ObservedState::of);
    let max_attempts = shared.settings.max_retries;
    let mut enforcer = Enforcer::new(shared, pipeline);
    enforcer.reconcile(observed.as_ref()).await?;
    while let Some(next) = enforcer.next
        && enforcer.failures < max_attempts
    {
        tokio::time::sleep_until(next).await;
        enforcer.reconcile(observed.as_ref()).await?;
    }
    Ok(enforcer.failures == 0)
}

/// The watched parts of an object, without the report, which is by far the largest part.
#[derive(Clone, Debug, PartialEq)]
struct ObservedState {
    uid: String,
    generation: i64,
    desired: DesiredState,
    /// Whether the object has conditions of this controller.
    has_conditions: bool,
}

impl ObservedState {
    fn of(object: NodeNetworkState) -> Self {
        let name = object.metadata.name.unwrap_or_default();
        let conditions = object.status.and_then(|status| status.conditions);
        Self {
            uid: object.metadata.uid.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            desired: DesiredState::of(&name, &object.spec),
            has_conditions: conditions.is_some_and(|conditions| conditions.iter().any(desired::is_ours)),
        }
    }

    fn version(&self) -> (String, i64) {
        (self.uid.clone(), self.generation)
    }
}

/// Reads the UID and generation of the object in the watch; `None` without an object.
type Newest = Box<dyn Fn() -> Option<(String, i64)> + Send + Sync>;

/// Enforces the desired state.
struct Enforcer {
    shared: Shared,
    pipeline: Arc<Pipeline>,
    /// Set if the object may change while the pipeline is busy.
    newest: Option<Newest>,
    /// UID and generation that were handled last.
    version: Option<(String, i64)>,
    /// Failed attempts at it in a row.
    failures: u32,
    /// When to retry.
    next: Option<Instant>,
    /// The difference that remained after the desired state was applied: applying it again does not help.
    remaining: Option<Value>,
    /// Whether it failed for good.
    has_failed_for_good: bool,
    /// An outcome that is not written yet.
    unwritten: Option<Outcome>,
}

impl Enforcer {
    fn new(shared: Shared, pipeline: Arc<Pipeline>) -> Self {
        Self {
            shared,
            pipeline,
            newest: None,
            version: None,
            failures: 0,
            next: None,
            remaining: None,
            has_failed_for_good: false,
            unwritten: None,
        }
    }

    /// Reconciles the object.
    async fn reconcile(&mut self, observed: Option<&ObservedState>) -> Result<(), Error> {
        let Some(observed) = observed else {
            // The reporter creates the object again, without a desired state.
            self.reset(None);
            return Ok(());
        };
        if self.version.as_ref() != Some(&observed.version()) {
            self.reset(Some(observed.version()));
        }
        let outcome = match &observed.desired {
            DesiredState::None if observed.has_conditions => Some(Outcome::None),
            DesiredState::None => None,
            DesiredState::Invalid(text) => Some(Outcome::Failed(text.clone())),
            DesiredState::Enforced(desired) => self.enforce(desired).await,
        };
        if matches!(observed.desired, DesiredState::Invalid(_)) {
            self.failures = 1;
        }
        if outcome.is_some() {
            self.unwritten = outcome;
        }
        if let Some(outcome) = &self.unwritten {
            self.write_outcome(outcome).await?;
            self.unwritten = None;
        }
        Ok(())
    }

    fn reset(&mut self, version: Option<(String, i64)>) {
        self.version = version;
        self.failures = 0;
        self.next = None;
        self.remaining = None;
        self.has_failed_for_good = false;
        self.unwritten = None;
    }

    /// Ends the back-off after a failed attempt, because its cause may be gone.
    fn retry_now(&mut self) {
        self.next = self.next.map(|next| next.min(Instant::now()));
    }

    /// Applies the desired state if it is new, the back-off after a failure is over, or the host drifted from it.
    async fn enforce(&mut self, desired: &Value) -> Option<Outcome> {
        if self.has_failed_for_good {
            return None;
        }
        let node = self.shared.node.clone();
        let mut desired = desired.clone();
        bridge_vlans::fill(&mut desired);
        let desired = &desired;
        match (&self.remaining, self.next) {
            (_, Some(next)) if Instant::now() < next => return None,
            (_, Some(_)) | (None, None) => {}
            (Some(remaining), None) => match self.pipeline.diff(desired).await {
                Ok(diff) if apply::is_empty(&diff) || diff == *remaining => return None,
                Ok(_) => info!(node, "the host drifted from its NodeNetworkState"),
                Err(error) => {
                    warn!(node, "cannot compare the host with its NodeNetworkState: {error}");
                    return None;
                }
            },
        }
        info!(node, "applying the desired state of the NodeNetworkState");
        let is_current = async {
            let newest = self.newest.as_ref().map(|newest| newest());
            newest.is_none_or(|newest| newest == self.version)
        };
        let Some(applied) = self.pipeline.apply_if(desired, is_current).await else {
            info!(
                node,
                "the NodeNetworkState changed meanwhile, not applying its earlier desired state"
            );
            return None;
        };
        match applied {
            Ok(text) => {
                // If this fails, the next reconcile finds the difference.
                let remaining = self.pipeline.diff(desired).await.unwrap_or_default();
                self.remaining = Some(remaining);
                (self.failures, self.next) = (0, None);
                self.shared.refresh.notify_one();
                Some(Outcome::Done(text))
            }
            Err(failure) => {
                self.has_failed_for_good = !failure.retry;
                self.failures = self.failures.saturating_add(1);
                let pause = self.shared.settings.backoff(self.failures);
                self.next = failure.retry.then(|| Instant::now() + pause);
                error!(
                    node,
                    retry = failure.retry,
                    "cannot apply the desired state of the NodeNetworkState: {failure}"
                );
                Some(Outcome::Failed(failure.text))
            }
        }
    }

    /// Writes the outcome into the object as the API server has it: the reporter writes it too.
    async fn write_outcome(&self, outcome: &Outcome) -> Result<(), Error> {
        let api = objects::reports(&self.shared.client);
        let name = &self.shared.node;
        let failed = |source| Error {
            name: name.clone(),
            source,
        };
        requests::edit(&api, name, Part::Status, |object| {
            let version = (
                object.metadata.uid.clone().unwrap_or_default(),
                object.metadata.generation.unwrap_or_default(),
            );
            // The next reconcile handles another version.
            self.version.as_ref() == Some(&version) && desired::report(object, outcome, Timestamp::now())
        })
        .await
        .map_err(failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
