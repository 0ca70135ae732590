//! Reads and writes of a pass over the API server.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use linux::backoff::Backoff;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{Controller, ThisNode, Tracked};
use crate::conditions::Status;
use crate::names::{self, condition};
use crate::objects::{self, Enactment, Policy};
use crate::policy::enactment::{self, State};
use crate::policy::selection;
use crate::policy::slots::HEARTBEAT;
use crate::policy::status::{self, Outcome};
use crate::requests::{self, Part, within_timeout};

/// Share of the time of all nodes' writes over which the reset of a policy's conditions is spread, in percent.
const RESET_WINDOW: u32 = 100;
/// Attempts at a write.
const ATTEMPTS: u32 = 6;
/// Back-off between the attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::MAX);

/// A pass cannot continue.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// The API server refused, or did not answer.
    #[error(transparent)]
    Request(#[from] requests::Error),
    /// The node's labels changed meanwhile.
    #[error("node selector no longer matches after re-check, {}", .0.join(", "))]
    NoLongerMatches(Vec<String>),
    /// The node does not exist.
    #[error("node {0} does not exist")]
    NoNode(String),
    /// The enactment was deleted meanwhile.
    #[error("enactment {0} is gone")]
    EnactmentGone(String),
}

impl Controller {
    /// Reads a policy from the API server.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Policy>, Error> {
        Ok(requests::read_policy(&self.shared.client, name).await?)
    }

    /// Sets the conditions of a new generation to Unknown. The first handler does it for all.
    pub(super) async fn reset(&self, name: &str) -> Result<(), Error> {
        let Some(mut policy) = self.policies.get(&name.to_owned()) else {
            return Ok(());
        };
        for _ in 0..ATTEMPTS {
            if !needs_reset(&policy) {
                return Ok(());
            }
            let moment = tokio::time::sleep(self.jitter.delay(RESET_WINDOW));
            tokio::pin!(moment);
            loop {
                // Created before the check, so that no change is missed.
                let changed = self.policy_changed.notified();
                let still = self.policies.with(&name.to_owned(), needs_reset);
                if still != Some(true) {
                    return Ok(());
                }
                if moment.is_elapsed() {
                    break;
                }
                tokio::select! {
                    () = &mut moment => {}
                    () = changed => {}
                }
            }
            let conditions = status::conditions(&policy, Outcome::Unknown, Timestamp::now());
            let object = policy.with_status(Some((&conditions, None)), None);
            match requests::write_status(&objects::policies(&self.shared.client), &object).await {
                Ok(object) => {
                    self.status_writer.store_written(&Policy::new(object));
                    return Ok(());
                }
                Err(error) if error.is(404) => return Ok(()),
                Err(error) if error.is(409) => match self.read(name).await? {
                    Some(fresh) => policy = fresh,
                    None => return Ok(()),
                },
                Err(error) => return Err(error.into()),
            }
        }
        // Other handlers keep writing, so the conditions are theirs by now.
        Ok(())
    }

    /// The enactment of a policy on this node; creates it if it is missing. `None` if the policy is gone.
    pub(super) async fn enactment(
        &self,
        policy: &Policy,
        node: &ThisNode,
        tracked: &mut Tracked,
    ) -> Result<Option<DynamicObject>, Error> {
        let name = enactment::name(&self.shared.node, &policy.name());
        let api = objects::enactments(&self.shared.client);
        if let Some(found) = within_timeout(api.get_opt(&name)).await? {
            let is_own = Enactment::of(&found).is_of(&policy.uid());
            if is_own && enactment::is_of_node(&found, &node.uid) {
                tracked.has_enactment = true;
                return Ok(Some(found));
            }
            // Captures and failures in it belong to a deleted policy of the same name, or to a deleted node.
            self.delete_enactment(&name).await?;
        }
        let Some(policy) = self.read(&policy.name()).await? else {
            return Ok(None);
        };
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        let Some(fresh) = within_timeout(nodes.get_metadata_opt(&self.shared.node)).await? else {
            return Err(Error::NoNode(self.shared.node.clone()));
        };
        let unmatched = selection::unmatched(&policy.node_selector(), fresh.labels());
        if !unmatched.is_empty() {
            return Err(Error::NoLongerMatches(unmatched));
        }
        let uid = fresh.uid().unwrap_or_else(|| node.uid.clone());
        let new = enactment::new(
            &self.shared.node,
            &uid,
            &policy.name(),
            &self.shared.settings.labels,
        );
        let created = within_timeout(api.create(&PostParams::default(), &new)).await?;
        tracked.has_enactment = true;
        Ok(Some(created))
    }

    /// Deletes an enactment if it exists.
    pub(super) async fn delete_enactment(&self, enactment: &str) -> Result<(), Error> {
        let api = objects::enactments(&self.shared.client);
        self.deleted().insert(enactment.to_owned());
        let Err(error) = within_timeout(api.delete(enactment, &DeleteParams::default())).await else {
            return Ok(());
        };
        self.deleted().remove(enactment);
        if error.is(404) { Ok(()) } else { Err(error.into()) }
    }

    /// Edits the status of an enactment; writes only if that changes it.
    pub(super) async fn edit(
        &self,
        enactment: &mut DynamicObject,
        change: impl Fn(&mut Map<String, Value>, Timestamp),
    ) -> Result<(), Error> {
        let name = enactment.name_any();
        let api = objects::enactments(&self.shared.client);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut changed = enactment.clone();
            changed.types = Some(objects::types(&objects::enactment_resource()));
            objects::edit_status(&mut changed, |status| change(status, Timestamp::now()));
            if changed.data == enactment.data {
                return Ok(());
            }
            let error = match requests::write_status(&api, &changed).await {
                Ok(written) => {
                    *enactment = written;
                    return Ok(());
                }
                Err(error) if error.is(404) => return Err(Error::EnactmentGone(name)),
                Err(error) => error,
            };
            if attempt >= ATTEMPTS {
                return Err(error.into());
            }
            tracing::debug!(enactment = name, %error, "retrying to write the enactment");
            if !error.is(409) {
                tokio::time::sleep(BACKOFF.after(attempt)).await;
            }
            // A write whose response was lost may have been stored.
            match within_timeout(api.get_opt(&name)).await {
                Ok(Some(fresh)) => *enactment = fresh,
                Ok(None) => return Err(Error::EnactmentGone(name)),
                Err(error) => tracing::debug!(enactment = name, %error, "cannot read the enactment"),
            }
        }
    }

    /// Reports the state of a policy on this node.
    pub(super) async fn set_state(&self, enactment: &mut DynamicObject, state: &State) -> Result<(), Error> {
        self.edit(enactment, |status, now| enactment::set_state(status, state, now))
            .await
    }

    /// Writes the enactment at intervals, so that other nodes do not take this node's slot for leaked.
    pub(super) async fn send_heartbeats(&self, mut enactment: DynamicObject) -> Infallible {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if let Err(error) = self.set_state(&mut enactment, &State::Progressing).await {
                tracing::debug!(%error, "cannot write the heartbeat of the enactment");
            }
        }
    }

    /// Requests a new report of this node by its label, or directly if that fails.
    pub(super) async fn request_report(&self) {
        let api = objects::reports(&self.shared.client);
        let written = requests::edit(&api, &self.shared.node, Part::Rest, |report| {
            let now = Timestamp::now().as_nanosecond().to_string();
            report.labels_mut().insert(names::REFRESH_LABEL.to_owned(), now);
            report.metadata.managed_fields = None;
            true
        });
        match written.await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot request a new report by its label"),
        }
        self.shared.refresh.notify_one();
    }
}

/// Whether the conditions of a policy's newest generation have to be reset to Unknown.
fn needs_reset(policy: &Policy) -> bool {
    if policy.is(condition::PROGRESSING) == Status::True {
        return false;
    }
    let mut conditions = policy.conditions();
    conditions.retain(|one| condition::OF_POLICIES.contains(&one.kind.as_str()));
    let is_unknown = conditions.len() >= 4
        && conditions
            .iter()
            .all(|condition| condition.status == Status::Unknown && condition.reason.is_empty());
    let observed = policy.observed_generation();
    !is_unknown && observed != Some(policy.generation())
}
