//! This node's turn at a policy (nmstate §5.5-9).

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

use super::edge::Error;
use super::{Controller, Look, Memory, Wanted};
use crate::legacy;
use crate::policy::ask::patiently;
use crate::policy::objects;
use crate::policy::slots::{self, Sightings};
use crate::probes;

/// Share of the time of all nodes' writes in which slots are taken, in percent.
const TAKE: u32 = 200;
/// How often it is tried before others have gone first.
const ATTEMPTS: u32 = 5;

/// Whose turn it is.
#[derive(Debug)]
pub(super) enum Turn {
    /// This node's: it holds a slot.
    Taken,
    /// Others'.
    Wait,
    /// Nobody's: too many failed.
    Abort,
    /// The policy is gone.
    Gone,
    /// The policy wants something else now.
    Changed,
}

impl Controller {
    /// Takes a slot, if one is left.
    pub(super) async fn take_turn(
        &self,
        name: &str,
        generation: i64,
        memory: &mut Memory,
    ) -> Result<Turn, Error> {
        let client = &self.shared.client;
        let mut known = None;
        for attempt in 1..=ATTEMPTS {
            tokio::time::sleep(self.spread.moment(TAKE * attempt)).await;
            if self.still_full(name, memory) {
                return Ok(Turn::Wait);
            }
            let enactments = match known.take() {
                Some(enactments) => enactments,
                None => patiently(objects::enactments_of(client, name)).await?.items,
            };
            self.spread.learn_at_least(enactments.len());
            let began = Instant::now();
            let Some(policy) = self.read(name).await? else {
                return Ok(Turn::Gone);
            };
            if memory.wanted != Some(Wanted::of(&policy)) {
                return Ok(Turn::Changed);
            }
            let wanted = legacy::max_unavailable(policy.spec());
            let limit = slots::limit(wanted.as_ref(), enactments.len());
            if let Some(mistake) = &limit.mistake {
                tracing::error!(policy = name, mistake, "taking the default");
            }
            let at = Instant::now();
            memory.look = Some(Look {
                generation,
                limit: limit.nodes,
                at,
                version: objects::comparable(&policy.version()),
            });
            let counts = policy.counts();
            let counted = counts.get(&generation.to_string()).copied().unwrap_or_default();
            let unheld = if counted < limit.nodes {
                0
            } else {
                let unheld = memory.sightings.observe(generation, counted, &enactments, at);
                without_those_of_cut_off_nodes(client, unheld, &memory.sightings).await?
            };
            let Some(counts) = slots::take(&counts, generation, limit.nodes, unheld) else {
                return Ok(turn_at_limit(&enactments, generation, limit.nodes));
            };
            if unheld > 0 {
                tracing::warn!(policy = name, unheld, "slots that no node holds are given back");
            }
            let object = policy.with_status(None, Some(&counts));
            let api = objects::policies(client);
            let written = patiently(api.replace_status(name, &PostParams::default(), &object)).await;
            self.spread.took(began.elapsed());
            match written {
                Ok(object) => {
                    self.settler.wrote(&objects::Policy::new(object));
                    return Ok(Turn::Taken);
                }
                Err(error) if error.is(404) => return Ok(Turn::Gone),
                // Whether it was written is not known; if it was, nobody holds it, and that is found in time.
                Err(error) if !error.is(409) && attempt == ATTEMPTS => return Err(error.into()),
                Err(error) if attempt == ATTEMPTS => {
                    tracing::debug!(policy = name, %error, "others were faster");
                    return Ok(turn_at_limit(&enactments, generation, limit.nodes));
                }
                Err(_) => known = Some(enactments),
            }
        }
        Ok(Turn::Changed)
    }

    /// Whether it is clear without asking that nothing has changed for this node.
    pub(super) fn still_full(&self, name: &str, memory: &Memory) -> bool {
        // Only a look finds slots without a holder.
        let recent = memory
            .look
            .filter(|look| look.at.elapsed() < memory.sightings.pause());
        let is_full = |look| {
            self.policies
                .with(&name.to_owned(), |policy| self.is_full(policy, look))
        };
        recent.and_then(is_full) == Some(true)
    }
}

/// How many of the slots without a holder are free. A node that is not ready keeps its slot: the policy may have cut it
/// off, and no other node begins until it has reported or is removed.
async fn without_those_of_cut_off_nodes(
    client: &Client,
    unheld: i64,
    sightings: &Sightings,
) -> Result<i64, Error> {
    let mut left = unheld;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in sightings.silent() {
        if left <= 0 {
            break;
        }
        let node = patiently(nodes.get_opt(name)).await?;
        if node.is_some_and(|node| !probes::is_ready(&node)) {
            tracing::warn!(node = name, "a node that is NotReady keeps its slot");
            left -= 1;
        }
    }
    Ok(left)
}

/// What is left to do when all slots are taken.
fn turn_at_limit(enactments: &[objects::Enactment], generation: i64, limit: i64) -> Turn {
    if slots::failures(enactments, generation) >= limit {
        Turn::Abort
    } else {
        Turn::Wait
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
    use crate::policy::objects::Enactment;

    /// An API server whose answer about node `a` is this.
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
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        for minute in [0, 20] {
            let now = start + Duration::from_secs(60 * minute);
            sightings.observe(1, 1, std::slice::from_ref(&enactment), now);
        }
        assert_eq!(sightings.silent().len(), 1);
        let free = async |client: &Client| {
            let free = without_those_of_cut_off_nodes(client, 1, &sightings).await;
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
