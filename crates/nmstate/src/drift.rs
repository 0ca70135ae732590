//! Detects and repairs drift of the host from applied policies. Disabled without an interval.
//!
//! ```text
//!   every interval: Available enactments of this node ──> diff ──> none: Drifted False
//!                                                          └── some: Drifted True, applied again
//! ```
//!
//! The same difference is not repaired twice in a row: another program causes it, and both would change it for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use crate::apply::Pipeline;
use crate::conditions::{self, Condition, Status};
use crate::dry_run::summary;
use crate::failure::Failure;
use crate::names::{self, condition};
use crate::objects;
use crate::requests::{self, within_timeout};
use crate::secrets;
use crate::shared::Shared;

/// Condition type of an enactment: whether the host differs from it.
pub(crate) const DRIFTED: &str = "Drifted";
/// Reasons of that condition.
pub(crate) mod reason {
    /// The host has the desired state.
    pub(crate) const IN_SYNC: &str = "InSync";
    /// The host differed, and was repaired.
    pub(crate) const REPAIRED: &str = "Repaired";
    /// The host differs, and is about to be repaired.
    pub(crate) const DIFFERS: &str = "HostDiffers";
    /// The host differs again after a repair.
    pub(crate) const COMES_BACK: &str = "ComesBack";
    /// The host differs, and the repair failed.
    pub(crate) const FAILED: &str = "RepairFailed";
    /// The host cannot be compared: the enactment does not hold its secrets.
    pub(crate) const HAS_SECRETS: &str = "HasSecrets";
}

/// An enactment that was applied, with its desired state.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    name: String,
    generation: i64,
    desired: Value,
}

impl Applied {
    /// `None` for an enactment that is not applied, was a dry run, or has no desired state.
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

/// The reaction to a difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// There is no difference.
    None,
    /// Apply the desired state again.
    Repair,
    /// Only report it: it came back after the last repair.
    Leave,
}

/// Decides about a difference; `repaired` is the last one that was repaired.
fn step(difference: &Value, repaired: Option<&Value>) -> Step {
    if summary(difference).is_none() {
        return Step::None;
    }
    if repaired == Some(difference) {
        return Step::Leave;
    }
    Step::Repair
}

/// Compares at each interval; returns at once without an interval.
pub(crate) async fn start(shared: Shared, pipeline: Arc<Pipeline>) {
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
        if let Err(error) = drift.check().await {
            tracing::warn!(%error, "cannot compare the host with its enactments");
        }
    }
}

struct Drift {
    enactments: Api<DynamicObject>,
    node: String,
    pipeline: Arc<Pipeline>,
    /// The last repaired difference, by enactment and generation.
    repaired: BTreeMap<(String, i64), Value>,
}

impl Drift {
    async fn check(&mut self) -> Result<(), requests::Error> {
        let of_node = ListParams::default().labels(&format!("{}={}", names::NODE_LABEL, self.node));
        let enactments = within_timeout(self.enactments.list(&of_node)).await?;
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

    async fn compare(&mut self, one: &Applied) -> Result<(), requests::Error> {
        if secrets::has_hidden(&one.desired) {
            // Applied without its secrets, it would be another desired state.
            let text = "not compared: the desired state has secrets, which the enactment does not hold";
            return self.report(one, Status::Unknown, reason::HAS_SECRETS, text).await;
        }
        let difference = match self.pipeline.diff(&one.desired).await {
            Ok(difference) => difference,
            Err(Failure { text, .. }) => {
                tracing::warn!(
                    enactment = one.name,
                    "cannot compare the host with the enactment: {text}"
                );
                return Ok(());
            }
        };
        let key = (one.name.clone(), one.generation);
        let parts = summary(&difference).unwrap_or_default();
        match step(&difference, self.repaired.get(&key)) {
            Step::None => {
                self.repaired.remove(&key);
                self.report(one, Status::False, reason::IN_SYNC, "").await
            }
            Step::Leave => {
                let text = format!("the host differs again after it was repaired: {parts}");
                self.report(one, Status::True, reason::COMES_BACK, &text).await
            }
            Step::Repair => {
                let text = format!("the host differs: {parts}");
                tracing::info!(enactment = one.name, "{text}");
                self.report(one, Status::True, reason::DIFFERS, &text).await?;
                match self.pipeline.apply_if(&one.desired, self.is_current(one)).await {
                    // The policy is being applied, and reports its own result.
                    None => Ok(()),
                    Some(Ok(_)) => {
                        self.repaired.insert(key, difference);
                        let text = format!("the host differed and was repaired: {parts}");
                        self.report(one, Status::False, reason::REPAIRED, &text).await
                    }
                    Some(Err(failure)) => {
                        let text = format!("the host differs: {parts}; it could not be repaired: {failure}");
                        self.report(one, Status::True, reason::FAILED, &text).await
                    }
                }
            }
        }
    }

    /// Whether the enactment is unchanged. The controller writes an enactment before it applies its policy, so that
    /// drift never applies an earlier desired state over a newer one.
    async fn is_current(&self, one: &Applied) -> bool {
        match within_timeout(self.enactments.get(&one.name)).await {
            Ok(now) => Applied::of(&now).as_ref() == Some(one),
            Err(_) => false,
        }
    }

    /// Writes the condition, if it differs and the enactment is unchanged.
    async fn report(
        &self,
        one: &Applied,
        status: Status,
        reason: &str,
        text: &str,
    ) -> Result<(), requests::Error> {
        let Some(mut enactment) = within_timeout(self.enactments.get_opt(&one.name)).await? else {
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
        match requests::write_status(&self.enactments, &enactment).await {
            // The other writer has newer knowledge; the next check reports the rest.
            Err(error) if error.is(409) || error.is(404) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Whether there is something to write. An enactment that never drifted has no such condition.
fn changes(conditions: &[Condition], status: Status, reason: &str, text: &str) -> bool {
    match conditions.iter().find(|condition| condition.kind == DRIFTED) {
        None => status != Status::False,
        // The reason Repaired stays until the next drift.
        Some(now) if now.reason == reason::REPAIRED && reason == reason::IN_SYNC => false,
        Some(now) => now.status != status || now.reason != reason || now.message != text,
    }
}

#[cfg(test)]
mod tests;
