//! Makes the host what the `NodeNetworkState` of this node asks for, as the original design has it, and keeps it so
//! (nmstate §3.2-3 to 6).
//!
//! ```text
//! spec changed, back-off over, every refresh ──> Wish ──> new, failed or drifted? ──> pipeline
//!                                                                        status.conditions <──┘
//! ```

mod stored;
mod wish;

use std::sync::Arc;

use futures::future::OptionFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use kube_kit::client::chain;
use kube_kit::watch::{self, Change, DeserializeGuard, Options};
use serde_json::Value;
use thiserror::Error;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::apply::{self, Pipeline};
use crate::bridge_vlans;
use crate::handler::Shared;
use crate::policy::ask::{self, patiently};
use crate::policy::objects;

use stored::NodeNetworkState;
use wish::Outcome;
pub use wish::Wish;

/// The outcome could not be written.
#[derive(Debug, Error)]
#[error("cannot write the conditions of NodeNetworkState {name}")]
pub struct Error {
    name: String,
    #[source]
    source: ask::Error,
}

/// Attempts at writing a status that others write too.
const WRITES: usize = 5;

/// Enforces what this node's state asks for, for ever; nothing at all where the original design is switched off.
pub async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
    if !shared.settings.original_design {
        return std::future::pending().await;
    }
    let node = shared.node.clone();
    let mut changes = watch::start_named(
        Api::<DeserializeGuard<NodeNetworkState>>::all(shared.client.clone()),
        &Options::all().named(&node),
        Asked::of,
    );
    let store = changes.store();
    let name = watch::Name::new("", &node);
    let mut enforcer = Enforcer::new(shared, pipeline);
    let (newest, here) = (changes.store(), name.clone());
    enforcer.newest = Some(Box::new(move || newest.with(&here, Asked::version)));
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
                    warn!(node, "NodeNetworkState cannot be read, what it asks for is unchanged: {text}");
                }
                Some(Change::Applied(_) | Change::Deleted(_)) => {}
            },
            _ = tick.tick() => {}
            Ok(()) = starts.changed() => enforcer.hurry(),
            Some(()) = OptionFuture::from(retry) => {}
        }
        if synced && let Err(error) = enforcer.look(store.get(&name).as_ref()).await {
            // The next look tells it.
            error!(node, error = chain(&error));
        }
    }
}

/// Makes the host what this node's state asks for, with as many attempts as a policy has. `false` when it could not be
/// applied.
///
/// # Errors
/// When the API server can't be asked, or told how it went.
pub async fn once(shared: Shared, pipeline: Arc<Pipeline>) -> Result<bool, Error> {
    if !shared.settings.original_design {
        return Ok(true);
    }
    let api: Api<NodeNetworkState> = Api::all(shared.client.clone());
    let object = patiently(api.get_opt(&shared.node))
        .await
        .map_err(|source| Error {
            name: shared.node.clone(),
            source,
        })?;
    let asked = object.map(Asked::of);
    let most = shared.settings.max_retries;
    let mut enforcer = Enforcer::new(shared, pipeline);
    enforcer.look(asked.as_ref()).await?;
    while let Some(next) = enforcer.next
        && enforcer.failures < most
    {
        tokio::time::sleep_until(next).await;
        enforcer.look(asked.as_ref()).await?;
    }
    Ok(enforcer.failures == 0)
}

/// What is kept of an object: not the report, which is by far the most of it.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    uid: String,
    generation: i64,
    wish: Wish,
    /// Whether there may be conditions of ours.
    told: bool,
}

impl Asked {
    fn of(object: NodeNetworkState) -> Self {
        let name = object.metadata.name.unwrap_or_default();
        let conditions = object.status.and_then(|status| status.conditions);
        Self {
            uid: object.metadata.uid.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            wish: Wish::of(&name, &object.spec),
            told: conditions.is_some_and(|conditions| conditions.iter().any(wish::is_ours)),
        }
    }

    fn version(&self) -> (String, i64) {
        (self.uid.clone(), self.generation)
    }
}

/// Reads the UID and generation of the object in the watch; `None` without an object.
type Newest = Box<dyn Fn() -> Option<(String, i64)> + Send + Sync>;

/// Enforces, and remembers how it went.
struct Enforcer {
    shared: Shared,
    pipeline: Arc<Pipeline>,
    /// Set where the object may change while it waits for its turn at the pipeline.
    newest: Option<Newest>,
    /// The version of the wish that was looked at last.
    version: Option<(String, i64)>,
    /// Failed attempts at it in a row.
    failures: u32,
    /// When the next one is due.
    next: Option<Instant>,
    /// What the host still lacked after the wish was applied: applying it again does not help.
    leftover: Option<Value>,
    /// Whether it was refused for good: no other attempt at this version makes sense.
    is_refused: bool,
    /// What is to be told, if that is not done.
    untold: Option<Outcome>,
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
            leftover: None,
            is_refused: false,
            untold: None,
        }
    }

    /// Does what is due for the object as it is.
    async fn look(&mut self, asked: Option<&Asked>) -> Result<(), Error> {
        let Some(asked) = asked else {
            // The reporter makes it anew, without a wish.
            self.forget(None);
            return Ok(());
        };
        if self.version.as_ref() != Some(&asked.version()) {
            self.forget(Some(asked.version()));
        }
        let outcome = match &asked.wish {
            Wish::Nothing if asked.told => Some(Outcome::None),
            Wish::Nothing => None,
            Wish::Refused(text) => Some(Outcome::Failed(text.clone())),
            Wish::Enforced(desired) => self.enforce(desired).await,
        };
        if matches!(asked.wish, Wish::Refused(_)) {
            self.failures = 1;
        }
        if outcome.is_some() {
            self.untold = outcome;
        }
        if let Some(outcome) = &self.untold {
            self.tell(outcome).await?;
            self.untold = None;
        }
        Ok(())
    }

    fn forget(&mut self, version: Option<(String, i64)>) {
        self.version = version;
        self.failures = 0;
        self.next = None;
        self.leftover = None;
        self.is_refused = false;
        self.untold = None;
    }

    /// Ends the pause after a failed attempt, because its cause may be gone.
    fn hurry(&mut self) {
        self.next = self.next.map(|next| next.min(Instant::now()));
    }

    /// Applies a wish if that is due: it is new, the back-off after a failure is over, or the host drifted from it.
    async fn enforce(&mut self, desired: &Value) -> Option<Outcome> {
        if self.is_refused {
            return None;
        }
        let node = self.shared.node.clone();
        let mut desired = desired.clone();
        bridge_vlans::fill(&mut desired);
        let desired = &desired;
        match (&self.leftover, self.next) {
            (_, Some(next)) if Instant::now() < next => return None,
            (_, Some(_)) | (None, None) => {}
            (Some(leftover), None) => match self.pipeline.diff(desired).await {
                Ok(diff) if apply::is_empty(&diff) || diff == *leftover => return None,
                Ok(_) => info!(node, "the host is no longer what its NodeNetworkState asks for"),
                Err(error) => {
                    warn!(node, "cannot compare the host with its NodeNetworkState: {error}");
                    return None;
                }
            },
        }
        info!(node, "applying what the NodeNetworkState asks for");
        let wanted = async {
            let newest = self.newest.as_ref().map(|newest| newest());
            newest.is_none_or(|newest| newest == self.version)
        };
        let Some(applied) = self.pipeline.apply_if(desired, wanted).await else {
            info!(node, "the NodeNetworkState asks for something else by now");
            return None;
        };
        match applied {
            Ok(text) => {
                // When it can't be told what is left, the next look finds it out.
                let leftover = self.pipeline.diff(desired).await.unwrap_or_default();
                self.leftover = Some(leftover);
                (self.failures, self.next) = (0, None);
                self.shared.refresh.notify_one();
                Some(Outcome::Done(text))
            }
            Err(failure) => {
                self.is_refused = !failure.retry;
                self.failures = self.failures.saturating_add(1);
                let pause = self.shared.settings.backoff(self.failures);
                self.next = failure.retry.then(|| Instant::now() + pause);
                error!(
                    node,
                    again = failure.retry,
                    "what the NodeNetworkState asks for cannot be applied: {failure}"
                );
                Some(Outcome::Failed(failure.text))
            }
        }
    }

    /// Writes the outcome into the object, as it is on the server: the reporter writes there too.
    async fn tell(&self, outcome: &Outcome) -> Result<(), Error> {
        let api = objects::reports(&self.shared.client);
        let name = &self.shared.node;
        let failed = |source| Error {
            name: name.clone(),
            source,
        };
        for attempt in 1.. {
            let Some(mut object) = patiently(api.get_opt(name)).await.map_err(failed)? else {
                return Ok(());
            };
            let is_of_another = (
                object.metadata.uid.clone().unwrap_or_default(),
                object.metadata.generation.unwrap_or_default(),
            );
            if self.version.as_ref() != Some(&is_of_another) {
                // What it asks for now is looked at next.
                return Ok(());
            }
            if !wish::tell(&mut object, outcome, Timestamp::now()) {
                return Ok(());
            }
            match patiently(api.replace_status(name, &PostParams::default(), &object)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is(409) && attempt < WRITES => {}
                Err(error) if error.is(404) => return Ok(()),
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
