//! What a handler finds of its predecessors: slots that they held, and enactments of policies that are gone
//! (nmstate §5.1-5, §5.8).

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Client, ResourceExt};

use super::ask::{self, patiently};
use super::enactment::{self, State};
use super::objects::{self, Enactment};
use super::slots;
use crate::conditions::Status;
use crate::names;

/// How often a slot is tried to be given back: other nodes write the same policy.
const ATTEMPTS: u32 = 10;

/// Gives back the slots that a former handler of this node held, and lets every policy be tried anew. What can't be done
/// is logged: those who wait for the slots find out by themselves.
///
/// The enactment is written first. Were this handler killed between both writes, a slot would be left that nobody holds,
/// which is found later; the other way round the next handler would give the same slot back again, and one node too many
/// would be at it.
pub async fn release(client: &Client, node: &str) {
    let labels = format!("{}={node}", names::NODE_LABEL);
    let api = objects::enactments(client);
    let enactments = match patiently(api.list(&ListParams::default().labels(&labels))).await {
        Ok(list) => list.items,
        Err(error) => {
            tracing::warn!(%error, "cannot list what former handlers of this node left");
            return;
        }
    };
    for found in enactments {
        let name = found.name_any();
        if let Err(error) = release_one(client, found).await {
            tracing::warn!(enactment = name, %error, "cannot give back a slot of a former handler");
        }
    }
}

async fn release_one(client: &Client, mut found: DynamicObject) -> Result<(), ask::Error> {
    let policy = found.labels().get(names::POLICY_LABEL).cloned();
    let Some(policy) = policy.filter(|policy| !policy.is_empty()) else {
        return Ok(());
    };
    let seen = Enactment::of(&found);
    if seen.available == Some(Status::True) {
        return Ok(());
    }
    if seen.attempts > 0 || seen.holds_slot() {
        found.types = Some(objects::types(&objects::enactment_resource()));
        objects::edit_status(&mut found, |status| {
            if seen.attempts > 0 {
                enactment::set_attempts(status, seen.generation, 0);
            }
            if seen.holds_slot() {
                enactment::set_state(status, &State::Created, Timestamp::now());
            }
        });
        let api = objects::enactments(client);
        patiently(api.replace_status(&seen.name, &PostParams::default(), &found)).await?;
    }
    // Who waits or was aborted has none.
    if !seen.holds_slot() {
        return Ok(());
    }
    let api = objects::policies(client);
    for attempt in 1..=ATTEMPTS {
        let Some(policy_object) = ask::policy(client, &policy).await? else {
            return Ok(());
        };
        let mut counts = policy_object.counts();
        if !slots::release(&mut counts, seen.generation) {
            return Ok(());
        }
        let object = policy_object.with_status(None, Some(&counts));
        match patiently(api.replace_status(&policy, &PostParams::default(), &object)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is(404) => return Ok(()),
            Err(error) if error.is(409) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Deletes an enactment whose policy is gone. The policy may be newer than what is known, so it is asked for.
///
/// # Errors
/// When the API server refuses, or does not answer.
pub async fn delete_orphan(client: &Client, enactment: &str, policy: &str) -> Result<(), ask::Error> {
    if ask::policy(client, policy).await?.is_some() {
        return Ok(());
    }
    let api = objects::enactments(client);
    match patiently(api.delete(enactment, &DeleteParams::default())).await {
        Ok(_) => Ok(()),
        Err(error) if error.is(404) => Ok(()),
        Err(error) => Err(error),
    }
}
