//! Hosts that drift from what policies made of them: compared now and then, told in a condition, repaired. Off unless
//! an interval is asked for.
//!
//! ```text
//!   every interval: enactments of this node that are Available ──> diff ──> none: Drifted False
//!                                                                   └── some: Drifted True, applied again
//! ```
//!
//! The same difference twice in a row is not repaired twice: somebody else wants it so, and two that take turns would
//! never end.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams, PostParams};
use serde_json::Value;

use crate::apply::Pipeline;
use crate::conditions::{self, Condition, Status};
use crate::dry_run::summary;
use crate::failure::Failure;
use crate::handler::Shared;
use crate::names::{self, condition};
use crate::policy::ask::{self, patiently};
use crate::policy::objects;
use crate::secrets;

/// Aspect of an enactment: whether the host differs from it.
pub const DRIFTED: &str = "Drifted";
/// The reasons of that aspect.
pub mod reason {
    /// The host is as the enactment says.
    pub const IN_SYNC: &str = "InSync";
    /// It was not, and is again.
    pub const REPAIRED: &str = "Repaired";
    /// It is not, and is about to be changed.
    pub const DIFFERS: &str = "HostDiffers";
    /// It is not, though it was changed the last time.
    pub const COMES_BACK: &str = "ComesBack";
    /// It is not, and could not be changed.
    pub const FAILED: &str = "RepairFailed";
    /// Nobody knows: its secrets are not remembered.
    pub const HAS_SECRETS: &str = "HasSecrets";
}

/// An enactment that was applied, and says what.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    name: String,
    generation: i64,
    desired: Value,
}

impl Applied {
    /// `None` for one that is not applied, or was only tried, or asks for nothing.
    fn of(enactment: &DynamicObject) -> Option<Self> {
        let status = &enactment.data["status"];
        let conditions = objects::readable_conditions(&status["conditions"]);
        let available = conditions
            .iter()
            .find(|condition| condition.kind == condition::AVAILABLE)?;
        let desired = &status["desiredState"];
        let applied = available.status == Status::True && available.reason == names::reason::SUCCESS;
        (applied && desired.is_object()).then(|| Self {
            name: enactment.metadata.name.clone().unwrap_or_default(),
            generation: status["policyGeneration"].as_i64().unwrap_or_default(),
            desired: desired.clone(),
        })
    }
}

/// What is to be done about a difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// There is none.
    None,
    /// Apply the document again.
    Repair,
    /// Nothing: that was done the last time, and it came back.
    Leave,
}

/// Decides about a difference, knowing the one that was repaired the last time.
fn step(difference: &Value, repaired: Option<&Value>) -> Step {
    if summary(difference).is_none() {
        return Step::None;
    }
    if repaired == Some(difference) {
        return Step::Leave;
    }
    Step::Repair
}

/// Compares until it is dropped, when an interval is asked for; else it ends at once.
pub async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
    let Some(interval) = shared.settings.drift else {
        return;
    };
    let mut drift = Drift {
        enactments: objects::enactments(&shared.client),
        node: shared.node,
        pipeline,
        repaired: BTreeMap::new(),
    };
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = drift.look().await {
            tracing::warn!(%error, "cannot compare the host with its enactments");
        }
    }
}

struct Drift {
    enactments: Api<DynamicObject>,
    node: String,
    pipeline: Arc<Pipeline>,
    /// By enactment and generation: the difference that was repaired the last time.
    repaired: BTreeMap<(String, i64), Value>,
}

impl Drift {
    async fn look(&mut self) -> Result<(), ask::Error> {
        let of_node = ListParams::default().labels(&format!("{}={}", names::NODE_LABEL, self.node));
        let enactments = patiently(self.enactments.list(&of_node)).await?;
        let applied: Vec<Applied> = enactments.items.iter().filter_map(Applied::of).collect();
        self.repaired.retain(|(name, generation), _| {
            applied
                .iter()
                .any(|one| one.name == *name && one.generation == *generation)
        });
        for one in &applied {
            self.compare(one).await?;
        }
        Ok(())
    }

    async fn compare(&mut self, one: &Applied) -> Result<(), ask::Error> {
        if secrets::has_hidden(&one.desired) {
            // Applied without them, it would be another document.
            let text = "not compared: the document has secrets, which the enactment does not hold";
            return self.tell(one, Status::Unknown, reason::HAS_SECRETS, text).await;
        }
        let difference = match self.pipeline.diff(&one.desired).await {
            Ok(difference) => difference,
            Err(Failure { text, .. }) => {
                tracing::warn!(enactment = one.name, "cannot compare the host with it: {text}");
                return Ok(());
            }
        };
        let key = (one.name.clone(), one.generation);
        let parts = summary(&difference).unwrap_or_default();
        match step(&difference, self.repaired.get(&key)) {
            Step::None => {
                self.repaired.remove(&key);
                self.tell(one, Status::False, reason::IN_SYNC, "").await
            }
            Step::Leave => {
                let text = format!("the host differs again after it was repaired: {parts}");
                self.tell(one, Status::True, reason::COMES_BACK, &text).await
            }
            Step::Repair => {
                let text = format!("the host differs: {parts}");
                tracing::info!(enactment = one.name, "{text}");
                self.tell(one, Status::True, reason::DIFFERS, &text).await?;
                match self.pipeline.apply_if(&one.desired, self.is_current(one)).await {
                    // Its policy is being applied: whatever comes of that is told elsewhere.
                    None => Ok(()),
                    Some(Ok(_)) => {
                        self.repaired.insert(key, difference);
                        let text = format!("the host differed and was repaired: {parts}");
                        self.tell(one, Status::False, reason::REPAIRED, &text).await
                    }
                    Some(Err(failure)) => {
                        let text = format!("the host differs: {parts}; it could not be repaired: {failure}");
                        self.tell(one, Status::True, reason::FAILED, &text).await
                    }
                }
            }
        }
    }

    /// Whether the enactment is still what it was. Whoever is about to apply a policy says so in its enactment first,
    /// so that nothing old is applied over something new.
    async fn is_current(&self, one: &Applied) -> bool {
        match patiently(self.enactments.get(&one.name)).await {
            Ok(now) => Applied::of(&now).as_ref() == Some(one),
            Err(_) => false,
        }
    }

    /// Writes the aspect, where it is another one and the enactment is still what it was.
    async fn tell(&self, one: &Applied, status: Status, reason: &str, text: &str) -> Result<(), ask::Error> {
        let Some(mut enactment) = patiently(self.enactments.get_opt(&one.name)).await? else {
            return Ok(());
        };
        if Applied::of(&enactment).as_ref() != Some(one) {
            return Ok(());
        }
        let mut conditions = objects::readable_conditions(&enactment.data["status"]["conditions"]);
        if !changes(&conditions, status, reason, text) {
            return Ok(());
        }
        conditions::set(&mut conditions, DRIFTED, status, reason, text, Timestamp::now());
        enactment.data["status"]["conditions"] = objects::json(&conditions);
        let params = PostParams::default();
        let written = self.enactments.replace_status(&one.name, &params, &enactment);
        match patiently(written).await {
            // Whoever was faster knows better; the next look tells the rest.
            Err(error) if error.is(409) || error.is(404) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Whether there is something to write. An enactment that never drifted says nothing about it.
fn changes(conditions: &[Condition], status: Status, reason: &str, text: &str) -> bool {
    match conditions.iter().find(|condition| condition.kind == DRIFTED) {
        None => status != Status::False,
        // That it was repaired stays until it drifts again.
        Some(now) if now.reason == reason::REPAIRED && reason == reason::IN_SYNC => false,
        Some(now) => now.status != status || now.reason != reason || now.message != text,
    }
}

#[cfg(test)]
mod tests;
