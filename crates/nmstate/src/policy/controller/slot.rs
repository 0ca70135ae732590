//! Takes this node's slot of a policy (nmstate §5.5-9).

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use tokio::time::Instant;

use super::writes::Error;
use super::{Controller, Observation, Revision, Tracked};
use crate::legacy;
use crate::objects;
use crate::policy::slots::{self, LeakDetector};
use crate::probes;
use crate::requests::{self, within_timeout};

/// Share of the time of all nodes' writes over which nodes take slots, in percent.
const TAKE_WINDOW: u32 = 200;
/// Attempts at a slot before other nodes went first.
const ATTEMPTS: u32 = 5;

/// Result of the attempt to take a slot.
#[derive(Debug)]
pub(super) enum Slot {
    /// This node holds a slot.
    Taken,
    /// Other nodes hold all slots.
    Full,
    /// Too many nodes failed.
    Aborted,
    /// The policy is gone.
    PolicyGone,
    /// The policy has a new revision.
    PolicyChanged,
}

impl Controller {
    /// Takes a slot if one is free.
    pub(super) async fn take_slot(
        &self,
        name: &str,
        generation: i64,
        tracked: &mut Tracked,
    ) -> Result<Slot, Error> {
        let client = &self.shared.client;
        let mut reusable = None;
        for attempt in 1..=ATTEMPTS {
            tokio::time::sleep(self.jitter.delay(TAKE_WINDOW * attempt)).await;
            if self.still_full(name, tracked) {
                return Ok(Slot::Full);
            }
            let enactments = match reusable.take() {
                Some(enactments) => enactments,
                None => within_timeout(objects::enactments_of(client, name)).await?.items,
            };
            self.jitter.raise_nodes(enactments.len());
            let began = Instant::now();
            let Some(policy) = self.read(name).await? else {
                return Ok(Slot::PolicyGone);
            };
            if tracked.revision != Some(Revision::of(&policy)) {
                return Ok(Slot::PolicyChanged);
            }
            let max_unavailable = legacy::max_unavailable(policy.spec());
            let limit = slots::limit(max_unavailable.as_ref(), enactments.len());
            if let Some(mistake) = &limit.mistake {
                tracing::error!(policy = name, mistake, "using the default of maxUnavailable");
            }
            let at = Instant::now();
            tracked.observation = Some(Observation {
                generation,
                limit: limit.nodes,
                at,
                version: objects::comparable(&policy.version()),
            });
            let own = policy.own(&enactments);
            let counts = policy.counts();
            let counted = counts.get(&generation.to_string()).copied().unwrap_or_default();
            let leaked = if counted < limit.nodes {
                0
            } else {
                let grace = self.shared.settings.slot_grace;
                let leaked = tracked.leaks.observe(generation, counted, &own, grace, at);
                without_slots_of_cut_off_nodes(client, leaked, &tracked.leaks).await?
            };
            let Some(counts) = slots::take(&counts, generation, limit.nodes, leaked) else {
                return Ok(slot_at_limit(&own, generation, limit.nodes));
            };
            if leaked > 0 {
                tracing::warn!(policy = name, leaked, "releasing slots that no node holds");
            }
            let object = policy.with_status(None, Some(&counts));
            let written = requests::write_status(&objects::policies(client), &object).await;
            self.jitter.record_write(began.elapsed());
            match written {
                Ok(object) => {
                    self.status_writer.store_written(&objects::Policy::new(object));
                    return Ok(Slot::Taken);
                }
                Err(error) if error.is(404) => return Ok(Slot::PolicyGone),
                // The write may have been stored. Then the slot leaks, and waiting nodes detect that.
                Err(error) if !error.is(409) && attempt == ATTEMPTS => return Err(error.into()),
                Err(error) if attempt == ATTEMPTS => {
                    tracing::debug!(policy = name, %error, "other nodes took the slots first");
                    return Ok(slot_at_limit(&own, generation, limit.nodes));
                }
                Err(_) => reusable = Some(enactments),
            }
        }
        Ok(Slot::PolicyChanged)
    }

    /// Whether the cache shows that nothing has changed for this node.
    pub(super) fn still_full(&self, name: &str, tracked: &Tracked) -> bool {
        // Only a read of the API server detects leaked slots.
        let recent = tracked
            .observation
            .filter(|observation| observation.at.elapsed() < tracked.leaks.interval());
        let is_full = |observation| {
            self.policies
                .with(&name.to_owned(), |policy| self.is_full(policy, observation))
        };
        recent.and_then(is_full) == Some(true)
    }
}

/// Leaked slots without those of nodes that are not ready: the policy may have cut such a node off, so it keeps its slot
/// until it has reported or is removed.
async fn without_slots_of_cut_off_nodes(
    client: &Client,
    leaked: i64,
    leaks: &LeakDetector,
) -> Result<i64, Error> {
    let mut left = leaked;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in leaks.silent_nodes() {
        if left <= 0 {
            break;
        }
        let node = within_timeout(nodes.get_opt(name)).await?;
        if node.is_some_and(|node| !probes::is_ready(&node)) {
            tracing::warn!(node = name, "a node that is NotReady keeps its slot");
            left -= 1;
        }
    }
    Ok(left)
}

/// The result when all slots are taken.
fn slot_at_limit(enactments: &[objects::Enactment], generation: i64, limit: i64) -> Slot {
    if slots::failures(enactments, generation) >= limit {
        Slot::Aborted
    } else {
        Slot::Full
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::conditions::Status;
    use crate::objects::Enactment;

    /// An API server with this answer about node `a`.
    fn server(code: u16, answer: Value) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = answer.clone();
            async move {
                assert_eq!(request.uri().path(), "/api/v1/nodes/a");
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).expect("an answer"))
            }
        });
        Client::new(service, "default")
    }

    fn node(ready: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a" },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
    }

    // nmstate#100
    #[tokio::test]
    async fn slot_of_a_silent_node_is_free_unless_the_node_is_not_ready() {
        let enactment = Enactment {
            name: "a.p".to_owned(),
            node: "a".to_owned(),
            version: "1".to_owned(),
            generation: 1,
            progressing: Some(Status::True),
            ..Enactment::default()
        };
        let (mut leaks, start) = (LeakDetector::default(), Instant::now());
        for minute in [0, 20] {
            let now = start + Duration::from_mins(minute);
            leaks.observe(1, 1, std::slice::from_ref(&enactment), slots::GRACE, now);
        }
        assert_eq!(leaks.silent_nodes().len(), 1);
        let free = async |client: &Client| {
            let free = without_slots_of_cut_off_nodes(client, 1, &leaks).await;
            free.expect("an answer")
        };
        for not_ready in ["False", "Unknown"] {
            assert_eq!(free(&server(200, node(not_ready))).await, 0, "{not_ready}");
        }
        assert_eq!(free(&server(200, node("True"))).await, 1);
        let absent = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404 });
        assert_eq!(free(&server(404, absent)).await, 1, "the node was deleted");
    }
}
