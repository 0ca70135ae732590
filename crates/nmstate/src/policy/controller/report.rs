//! Reports the result of a pass: in the enactment, the policy's status, and events.

use kube::api::DynamicObject;
use kube_kit::events::{Kind, Recorder};

use super::writes::Error;
use super::{Controller, Next, Tracked};
use crate::failure::Failure;
use crate::names;
use crate::objects::{self, Enactment, Policy};
use crate::policy::enactment::{self, State};
use crate::policy::messages;
use crate::policy::slots::Held;
use crate::policy::status_writer::Urgency;

impl Controller {
    pub(super) async fn report_failure(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        failure: &Failure,
        tracked: &mut Tracked,
    ) -> Result<Next, Error> {
        let (name, generation) = (policy.name(), policy.generation());
        let most = self.shared.settings.max_retries.max(1);
        let before = if std::mem::take(&mut tracked.outage.resets_attempts) {
            0
        } else {
            u32::try_from(Enactment::of(enactment).attempts).unwrap_or_default()
        };
        // A final error counts as all attempts.
        let attempts = if failure.retry {
            before.saturating_add(1)
        } else {
            most
        };
        let is_final = attempts >= most;
        tracing::warn!(
            policy = name,
            attempts,
            most,
            error = failure.text,
            "policy failed"
        );
        let state = if is_final {
            State::Failed(messages::not_applied(&self.shared.node, &failure.text))
        } else {
            State::Retrying(messages::retrying(&self.shared.node, before, most))
        };
        self.edit(enactment, |status, now| {
            enactment::set_attempts(status, generation, attempts);
            enactment::set_state(status, &state, now);
        })
        .await?;
        // The next attempt renders the policy for the host as it is then.
        tracked.rendered = None;
        if failure.retry && self.is_stranded(&name, tracked).await && is_final {
            tracked.outage.failed_for_good_at = Some(tracked.outage.starts);
        }
        if !is_final {
            self.update_status(&name, enactment, None, Urgency::Deferrable);
            return Ok(Next::Requeue);
        }
        // The slot stays taken: waiting nodes must see the failure.
        self.update_status(&name, enactment, None, Urgency::Soon);
        let own = enactment::name(&self.shared.node, &name);
        let text = if failure.retry {
            messages::failed(&own, most)
        } else {
            messages::refused(&own)
        };
        self.publish_warning(policy, text);
        Ok(Next::Done)
    }

    /// Publishes a Warning event on the policy. Other policies do not wait for it.
    pub(super) fn publish_warning(&self, policy: &Policy, text: String) {
        let source = format!("{}.{}", self.shared.node, names::EVENT_SOURCE);
        // A recorder that lives longer would update its events, and handlers may only create events.
        let recorder = Recorder::new(self.shared.client.clone(), &source);
        let regarding = policy.reference();
        let mut events = kube_kit::lock(&self.events);
        while events.try_join_next().is_some() {}
        events.spawn(async move {
            recorder
                .publish(&regarding, Kind::Warning, names::RECONCILE_FAILED, &text)
                .await;
        });
    }

    /// Updates the policy's status after a write of the enactment.
    pub(super) fn update_status(
        &self,
        policy: &str,
        enactment: &DynamicObject,
        release: Option<Held>,
        urgency: Urgency,
    ) {
        let version = enactment.metadata.resource_version.as_deref();
        let written = version.and_then(objects::comparable);
        self.status_writer.update(policy, written, release, urgency);
    }

    /// Whether other nodes wait for the released slot.
    pub(super) fn release_urgency(&self, policy: &str, tracked: &Tracked) -> Urgency {
        let counts = self.policies.with(&policy.to_owned(), Policy::counts);
        let generation = tracked.revision.as_ref().map(|revision| revision.generation);
        let key = generation.unwrap_or_default().to_string();
        let counted = counts.and_then(|counts| counts.get(&key).copied());
        match (counted, tracked.observation) {
            (Some(counted), Some(observation)) if counted < observation.limit => Urgency::Deferrable,
            _ => Urgency::Soon,
        }
    }
}
