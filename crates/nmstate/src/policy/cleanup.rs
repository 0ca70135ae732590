//! What a handler finds of its predecessors: slots that they held, and enactments of policies that are gone
//! (nmstate §5.1-5, §5.8).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Client, ResourceExt};

use super::ask::{self, patiently};
use super::controller::ThisNode;
use super::enactment::{self, State};
use super::objects::{self, Enactment, Policy};
use super::{selection, slots};
use crate::conditions::Status;
use crate::names;

/// How often a slot is tried to be given back: other nodes write the same policy.
const ATTEMPTS: u32 = 10;

/// Gives back the slots that a former handler of this node held, and lets every policy be tried anew. What can't be done
/// is logged: those who wait for the slots find out by themselves. A policy that was being applied keeps its slot, and its
/// name is returned: this handler applies it again, and until it has reported, no other node may begin.
///
/// The enactment is written first. Were this handler killed between both writes, a slot would be left that nobody holds,
/// which is found later; the other way round the next handler would give the same slot back again, and one node too many
/// would be at it.
pub(super) async fn release(client: &Client, node: &ThisNode) -> BTreeSet<String> {
    let of_node = format!("{}={}", names::NODE_LABEL, node.facts.name);
    let api = objects::enactments(client);
    let enactments = match patiently(api.list(&ListParams::default().labels(&of_node))).await {
        Ok(list) => list.items,
        Err(error) => {
            tracing::warn!(%error, "cannot list what former handlers of this node left");
            return BTreeSet::new();
        }
    };
    let mut kept = BTreeSet::new();
    for found in enactments {
        let name = found.name_any();
        match release_one(client, found, node).await {
            Ok(policy) => kept.extend(policy),
            Err(error) => {
                tracing::warn!(enactment = name, %error, "cannot give back a slot of a former handler");
            }
        }
    }
    kept
}

/// Whether the handler goes on with what its predecessor was applying: it is still wanted so, on this node.
fn goes_on(seen: &Enactment, policy: &Policy, labels: &BTreeMap<String, String>) -> bool {
    seen.progressing == Some(Status::True)
        && seen.generation == policy.generation()
        && !policy.is_dry_run()
        && selection::unmatched(&policy.node_selector(), labels).is_empty()
}

/// Gives back the slot of one enactment; the name of its policy where it keeps it.
async fn release_one(
    client: &Client,
    mut found: DynamicObject,
    node: &ThisNode,
) -> Result<Option<String>, ask::Error> {
    let policy = found.labels().get(names::POLICY_LABEL).cloned();
    let Some(policy) = policy.filter(|policy| !policy.is_empty()) else {
        return Ok(None);
    };
    let seen = Enactment::of(&found);
    if seen.available == Some(Status::True) {
        return Ok(None);
    }
    let keeps_slot = seen.progressing == Some(Status::True)
        && enactment::is_of_node(&found, &node.uid)
        && ask::policy(client, &policy).await?.is_some_and(|policy| {
            !enactment::is_of_another(&found, &policy.uid()) && goes_on(&seen, &policy, &node.facts.labels)
        });
    // One that waits or was aborted has none.
    let gives_back = seen.holds_slot() && !keeps_slot;
    if seen.attempts > 0 || gives_back {
        found.types = Some(objects::types(&objects::enactment_resource()));
        objects::edit_status(&mut found, |status| {
            if seen.attempts > 0 {
                enactment::set_attempts(status, seen.generation, 0);
            }
            if gives_back {
                enactment::set_state(status, &State::Created, Timestamp::now());
            }
        });
        let api = objects::enactments(client);
        patiently(api.replace_status(&seen.name, &PostParams::default(), &found)).await?;
    }
    if !gives_back {
        return Ok(keeps_slot.then_some(policy));
    }
    let api = objects::policies(client);
    for attempt in 1..=ATTEMPTS {
        let Some(policy_object) = ask::policy(client, &policy).await? else {
            return Ok(None);
        };
        let mut counts = policy_object.counts();
        if !slots::release(&mut counts, seen.generation) {
            return Ok(None);
        }
        let object = policy_object.with_status(None, Some(&counts));
        match patiently(api.replace_status(&policy, &PostParams::default(), &object)).await {
            Ok(_) => return Ok(None),
            Err(error) if error.is(404) => return Ok(None),
            Err(error) if error.is(409) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: &Value, annotations: &Value) -> Policy {
        let metadata = json!({ "name": "p", "generation": 2, "annotations": annotations });
        let object = json!({ "metadata": metadata, "spec": spec });
        Policy::new(serde_json::from_value(object).expect("an object"))
    }

    // nmstate#100
    #[test]
    fn only_a_policy_that_is_still_wanted_so_keeps_its_slot() {
        let applying = Enactment {
            generation: 2,
            progressing: Some(Status::True),
            ..Enactment::default()
        };
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let everywhere = policy(&json!({}), &json!({}));
        assert!(goes_on(&applying, &everywhere, &labels));
        assert!(goes_on(
            &applying,
            &policy(&json!({ "nodeSelector": { "zone": "a" } }), &json!({})),
            &labels
        ));
        for other in [
            policy(&json!({ "nodeSelector": { "zone": "b" } }), &json!({})),
            policy(&json!({}), &json!({ (names::DRY_RUN): "true" })),
        ] {
            assert!(!goes_on(&applying, &other, &labels));
        }
        let older = Enactment {
            generation: 1,
            ..applying.clone()
        };
        let failed = Enactment {
            progressing: Some(Status::False),
            failing: Some(Status::True),
            attempts: 5,
            ..applying
        };
        for other in [older, failed] {
            assert!(!goes_on(&other, &everywhere, &labels));
        }
    }
}
