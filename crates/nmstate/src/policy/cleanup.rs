//! Cleans up after previous handlers of this node: their slots, and enactments of deleted policies
//! (nmstate §5.1-5, §5.8).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Client, ResourceExt};

use super::enactment::{self, State};
use super::{selection, slots};
use crate::conditions::Status;
use crate::names;
use crate::objects::{self, Enactment, Policy};
use crate::render::NodeFacts;
use crate::requests::{self, Part, within_timeout};

/// Releases the slots of the previous handler of this node, and resets the attempts of all policies. A failure is
/// logged: nodes that wait for the slots detect the leak. A policy that the previous handler was applying keeps its
/// slot, and its name is returned: this handler applies the policy again, and no other node may begin until it has
/// reported.
///
/// The enactment is written first. If this handler is killed between both writes, the slot leaks, and other nodes
/// detect that. In the other order the next handler would release the slot a second time, and one node too many would
/// apply the policy.
pub(super) async fn release(client: &Client, uid: &str, facts: &NodeFacts) -> BTreeSet<String> {
    let of_node = format!("{}={}", names::NODE_LABEL, facts.name);
    let api = objects::enactments(client);
    let enactments = match within_timeout(api.list(&ListParams::default().labels(&of_node))).await {
        Ok(list) => list.items,
        Err(error) => {
            tracing::warn!(%error, "cannot list the enactments that previous handlers of this node left");
            return BTreeSet::new();
        }
    };
    let mut kept = BTreeSet::new();
    for found in enactments {
        let name = found.name_any();
        match release_one(client, found, uid, facts).await {
            Ok(policy) => kept.extend(policy),
            Err(error) => {
                tracing::warn!(enactment = name, %error, "cannot release the slot of a previous handler");
            }
        }
    }
    kept
}

/// Whether this handler resumes what the previous one was applying: policy and selection are unchanged.
fn resumes(seen: &Enactment, policy: &Policy, labels: &BTreeMap<String, String>) -> bool {
    seen.progressing == Some(Status::True)
        && seen.generation == policy.generation()
        && !policy.is_dry_run()
        && selection::unmatched(&policy.node_selector(), labels).is_empty()
}

/// Releases the slot of one enactment. Returns the name of its policy if the policy keeps the slot.
async fn release_one(
    client: &Client,
    mut found: DynamicObject,
    uid: &str,
    facts: &NodeFacts,
) -> Result<Option<String>, requests::Error> {
    let policy = found.labels().get(names::POLICY_LABEL).cloned();
    let Some(policy) = policy.filter(|policy| !policy.is_empty()) else {
        return Ok(None);
    };
    let seen = Enactment::of(&found);
    if seen.available == Some(Status::True) {
        return Ok(None);
    }
    let keeps_slot = seen.progressing == Some(Status::True)
        && enactment::is_of_node(&found, uid)
        && requests::read_policy(client, &policy)
            .await?
            .is_some_and(|policy| seen.is_of(&policy.uid()) && resumes(&seen, &policy, &facts.labels));
    // An enactment that is Pending or Aborted holds no slot.
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
        requests::write_status(&objects::enactments(client), &found).await?;
    }
    if !gives_back {
        return Ok(keeps_slot.then_some(policy));
    }
    requests::edit(&objects::policies(client), &policy, Part::Status, |object| {
        let policy = Policy::new(object.clone());
        // The slot went with a deleted policy of the same name.
        if !seen.is_of(&policy.uid()) {
            return false;
        }
        let mut counts = policy.counts();
        let released = slots::release(&mut counts, seen.generation);
        *object = policy.with_status(None, Some(&counts));
        released
    })
    .await?;
    Ok(None)
}

/// Deletes an enactment if its policy is gone. Reads the policy first, because the watch may be stale.
pub(crate) async fn delete_orphan(
    client: &Client,
    enactment: &str,
    policy: &str,
) -> Result<(), requests::Error> {
    if requests::read_policy(client, policy).await?.is_some() {
        return Ok(());
    }
    let api = objects::enactments(client);
    match within_timeout(api.delete(enactment, &DeleteParams::default())).await {
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
    fn only_an_unchanged_policy_keeps_its_slot() {
        let applying = Enactment {
            generation: 2,
            progressing: Some(Status::True),
            ..Enactment::default()
        };
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let everywhere = policy(&json!({}), &json!({}));
        assert!(resumes(&applying, &everywhere, &labels));
        assert!(resumes(
            &applying,
            &policy(&json!({ "nodeSelector": { "zone": "a" } }), &json!({})),
            &labels
        ));
        for other in [
            policy(&json!({ "nodeSelector": { "zone": "b" } }), &json!({})),
            policy(&json!({}), &json!({ (names::DRY_RUN): "true" })),
        ] {
            assert!(!resumes(&applying, &other, &labels));
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
            assert!(!resumes(&other, &everywhere, &labels));
        }
    }
}
