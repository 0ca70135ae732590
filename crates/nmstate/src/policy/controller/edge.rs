//! What a pass asks of the API server.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::{Map, Value};
use thiserror::Error;

use super::pass::is_to_be_reset;
use super::{Controller, Memory, ThisNode};
use crate::names;
use crate::policy::ask::{self, patiently};
use crate::policy::enactment::{self, State};
use crate::policy::objects::{self, Policy};
use crate::policy::selection;
use crate::policy::slots::HEARTBEAT;
use crate::policy::status::{self, Outcome};

/// Share of the time of all nodes' writes in which a policy is told that it is begun anew, in percent.
const RESET: u32 = 100;
/// How often a write is tried.
const ATTEMPTS: u32 = 6;
/// Pause before the second try, doubled each time.
const PAUSE: Duration = Duration::from_millis(250);

/// Why a pass could not go on.
#[derive(Debug, Error)]
pub(super) enum Error {
    /// The API server refused, or did not answer.
    #[error(transparent)]
    Asked(#[from] ask::Error),
    /// The node was labelled differently meanwhile.
    #[error("node selector no longer matches after re-check, {}", .0.join(", "))]
    NoLongerMatches(Vec<String>),
    /// There is no such node.
    #[error("there is no node {0}")]
    NoNode(String),
    /// Somebody deleted the enactment meanwhile.
    #[error("enactment {0} is gone")]
    EnactmentGone(String),
}

impl Controller {
    /// A policy as it is now.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Policy>, Error> {
        Ok(ask::policy(&self.shared.client, name).await?)
    }

    /// Tells users that nothing is known yet of a new generation. The first handler does it for all.
    pub(super) async fn reset(&self, name: &str) -> Result<(), Error> {
        let Some(mut policy) = self.policies.get(&name.to_owned()) else {
            return Ok(());
        };
        for _ in 0..ATTEMPTS {
            if !is_to_be_reset(&policy) {
                return Ok(());
            }
            let moment = tokio::time::sleep(self.spread.moment(RESET));
            tokio::pin!(moment);
            loop {
                // Begun before the look, so that no change is missed.
                let told = self.told.notified();
                let still = self.policies.with(&name.to_owned(), is_to_be_reset);
                if still != Some(true) {
                    return Ok(());
                }
                if moment.is_elapsed() {
                    break;
                }
                tokio::select! {
                    () = &mut moment => {}
                    () = told => {}
                }
            }
            let conditions = status::conditions(&policy, Outcome::Unknown, Timestamp::now());
            let object = policy.with_status(Some((&conditions, None)), None);
            let api = objects::policies(&self.shared.client);
            match patiently(api.replace_status(name, &PostParams::default(), &object)).await {
                Ok(object) => {
                    self.settler.wrote(&Policy::new(object));
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
        // Others write without a pause, so they have something to tell.
        Ok(())
    }

    /// The enactment of a policy on this node, made where there is none. Nothing when the policy is gone.
    pub(super) async fn enactment(
        &self,
        policy: &Policy,
        node: &ThisNode,
        memory: &mut Memory,
    ) -> Result<Option<DynamicObject>, Error> {
        let name = enactment::name(&self.shared.node, &policy.name());
        let api = objects::enactments(&self.shared.client);
        if let Some(found) = patiently(api.get_opt(&name)).await? {
            let of_former = enactment::is_of_another(&found, &policy.uid());
            if !of_former && enactment::is_of_node(&found, &node.uid) {
                memory.has_enactment = true;
                return Ok(Some(found));
            }
            // What captures found and what failed was another policy's of the same name.
            self.delete(&name).await?;
        }
        let Some(policy) = self.read(&policy.name()).await? else {
            return Ok(None);
        };
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        let Some(fresh) = patiently(nodes.get_metadata_opt(&self.shared.node)).await? else {
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
        let created = patiently(api.create(&PostParams::default(), &new)).await?;
        memory.has_enactment = true;
        Ok(Some(created))
    }

    /// Deletes an enactment, if there is one.
    pub(super) async fn delete(&self, enactment: &str) -> Result<(), Error> {
        let api = objects::enactments(&self.shared.client);
        self.deleted().insert(enactment.to_owned());
        let Err(error) = patiently(api.delete(enactment, &DeleteParams::default())).await else {
            return Ok(());
        };
        self.deleted().remove(enactment);
        if error.is(404) { Ok(()) } else { Err(error.into()) }
    }

    /// Changes the status of an enactment, where that changes anything.
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
            let error = match patiently(api.replace_status(&name, &PostParams::default(), &changed)).await {
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
            tracing::debug!(enactment = name, %error, "writing the enactment again");
            if !error.is(409) {
                tokio::time::sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
            }
            // A write without an answer may have been carried out.
            match patiently(api.get_opt(&name)).await {
                Ok(Some(fresh)) => *enactment = fresh,
                Ok(None) => return Err(Error::EnactmentGone(name)),
                Err(error) => tracing::debug!(enactment = name, %error, "cannot read the enactment"),
            }
        }
    }

    /// Says how it goes with a policy on this node.
    pub(super) async fn set_state(&self, enactment: &mut DynamicObject, state: &State) -> Result<(), Error> {
        self.edit(enactment, |status, now| enactment::set_state(status, state, now))
            .await
    }

    /// Says now and then that this handler is still at work, so that nobody takes its slot for one that nobody holds.
    pub(super) async fn keep_alive(&self, mut enactment: DynamicObject) -> Infallible {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if let Err(error) = self.set_state(&mut enactment, &State::Progressing).await {
                tracing::debug!(%error, "cannot say that the policy is still being applied");
            }
        }
    }

    /// Asks for a new report of this node, by its label; and the reporter itself when that can't be.
    pub(super) async fn ask_for_report(&self) {
        let api = objects::reports(&self.shared.client);
        for _ in 0..ATTEMPTS {
            let error = match patiently(api.get_opt(&self.shared.node)).await {
                Ok(Some(mut report)) => {
                    let now = Timestamp::now().as_nanosecond().to_string();
                    report.labels_mut().insert(names::REFRESH_LABEL.to_owned(), now);
                    report.metadata.managed_fields = None;
                    let params = PostParams::default();
                    match patiently(api.replace(&self.shared.node, &params, &report)).await {
                        Ok(_) => return,
                        Err(error) if error.is(409) => continue,
                        Err(error) => error,
                    }
                }
                Ok(None) => break,
                Err(error) => error,
            };
            tracing::warn!(%error, "cannot ask for a new report by its label");
            break;
        }
        self.shared.refresh.notify_one();
    }
}
