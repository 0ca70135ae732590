//! Applies each policy of a node once (nmstate §3.2-9).

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use super::{Controller, Next, Tracked, begin};
use crate::apply::Pipeline;
use crate::conditions::Status;
use crate::objects::{self, Enactment};
use crate::policy::enactment;
use crate::requests::within_timeout;
use crate::shared::Shared;

/// Interval at which a node that waits for a slot checks the policy.
const POLL: Duration = Duration::from_secs(1);

/// Applies every policy until it succeeds or fails for good, and reports the results. `false` if a policy failed, or if
/// a result could not be written: other nodes may wait for the slot.
pub async fn once(shared: Shared, pipeline: Arc<Pipeline>) -> bool {
    let (controller, _watches) = begin(shared, pipeline).await;
    controller.enqueue_all();
    let (mut succeeded, mut all_written) = (true, true);
    for _ in 0..controller.policies.len() {
        let name = controller.queue.next().await;
        let applied = controller.run_to_completion(&name).await;
        controller.queue.succeeded(&name);
        // This also retries the writes of earlier policies.
        all_written = controller.status_writer.flush().await;
        if !applied {
            tracing::warn!(policy = name, "cannot apply the policy");
        }
        succeeded &= applied;
    }
    if controller.reports.notified().now_or_never().is_some() {
        controller.request_report().await;
    }
    let mut events = std::mem::take(&mut *kube_kit::lock(&controller.events));
    while events.join_next().await.is_some() {}
    succeeded && all_written
}

impl Controller {
    /// Passes over a policy until it succeeds or fails for good. `false` if it failed.
    async fn run_to_completion(&self, policy: &str) -> bool {
        let mut tracked = Tracked::default();
        loop {
            let next = match Box::pin(self.pass(policy, &mut tracked)).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(policy, %error, "cannot continue with the policy, retrying");
                    Next::Requeue
                }
            };
            let Some(pause) = tracked.delay_after(&next, &self.shared.settings) else {
                break;
            };
            // No watch ends the wait for a slot here.
            let pause = if matches!(next, Next::AwaitSlot) {
                POLL
            } else {
                pause
            };
            // This may release a slot that other nodes wait for.
            self.status_writer.flush().await;
            tokio::time::sleep(pause).await;
        }
        let name = enactment::name(&self.shared.node, policy);
        match within_timeout(objects::enactments(&self.shared.client).get_opt(&name)).await {
            // The policy does not select this node.
            Ok(None) => true,
            Ok(Some(found)) => {
                let enactment = Enactment::of(&found);
                enactment.failing != Some(Status::True) && enactment.aborted != Some(Status::True)
            }
            Err(error) => {
                tracing::warn!(policy, %error, "cannot read the enactment of the policy");
                false
            }
        }
    }
}
