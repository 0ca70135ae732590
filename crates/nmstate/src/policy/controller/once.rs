//! Policies on a node, each applied once (nmstate §3.2-9).

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use super::{Controller, Memory, Next, begin};
use crate::apply::Pipeline;
use crate::conditions::Status;
use crate::handler::Shared;
use crate::policy::ask::patiently;
use crate::policy::enactment;
use crate::policy::objects::{self, Enactment};

/// How often a node that waits for a slot looks whether one was given back.
const GLANCE: Duration = Duration::from_secs(1);

/// Applies every policy until it is applied or has failed for good, and tells what came of it. `false` when one failed,
/// or when what came of it could not be told: others may wait for a slot.
pub async fn once(shared: Shared, pipeline: Arc<Pipeline>) -> bool {
    let (controller, _watches) = begin(shared, pipeline).await;
    controller.enqueue_all();
    let (mut succeeded, mut is_all_told) = (true, true);
    for _ in 0..controller.policies.len() {
        let name = controller.queue.next().await;
        let applied = controller.bring_to_an_end(&name).await;
        controller.queue.succeeded(&name);
        // What could not be told of the policies before is tried again with it.
        is_all_told = controller.settler.finish().await;
        if !applied {
            tracing::warn!(policy = name, "the policy could not be applied");
        }
        succeeded &= applied;
    }
    if controller.reports.notified().now_or_never().is_some() {
        controller.ask_for_report().await;
    }
    succeeded && is_all_told
}

impl Controller {
    /// Passes over a policy until nothing is left to be done. `false` when it failed.
    async fn bring_to_an_end(&self, policy: &str) -> bool {
        let mut memory = Memory::default();
        loop {
            let next = match Box::pin(self.pass(policy, &mut memory)).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(policy, %error, "cannot go on with the policy, trying again");
                    Next::Again
                }
            };
            let Some(pause) = memory.pause_after(&next, &self.shared.settings) else {
                break;
            };
            // No watch ends the wait for a slot here.
            let pause = if matches!(next, Next::Wait) { GLANCE } else { pause };
            // A slot may be ours, whose return others wait for.
            self.settler.finish().await;
            tokio::time::sleep(pause).await;
        }
        let name = enactment::name(&self.shared.node, policy);
        match patiently(objects::enactments(&self.shared.client).get_opt(&name)).await {
            // The policy is not for this node.
            Ok(None) => true,
            Ok(Some(found)) => {
                let enactment = Enactment::of(&found);
                enactment.failing != Some(Status::True) && enactment.aborted != Some(Status::True)
            }
            Err(error) => {
                tracing::warn!(policy, %error, "cannot read what came of it");
                false
            }
        }
    }
}
