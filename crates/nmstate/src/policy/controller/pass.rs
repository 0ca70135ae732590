//! One pass over a policy (nmstate §5.5).

use kube::api::DynamicObject;
use serde_json::Value;

use super::slot::Slot;
use super::writes::Error;
use super::{Controller, Next, Revision, Tracked, WAKE_WINDOW};
use crate::conditions::Status;
use crate::failure::Failure;
use crate::names::condition;
use crate::objects::{Enactment, Policy};
use crate::policy::enactment::{self, State};
use crate::policy::slots::Held;
use crate::policy::status_writer::Urgency;
use crate::policy::{messages, selection};
use crate::render::{self, NodeFacts, PolicySpec, Rendered};
use crate::{dry_run, engine, legacy};

impl Controller {
    /// Runs one pass: from the cached policy to the next written enactment.
    pub(super) async fn pass(&self, name: &str, tracked: &mut Tracked) -> Result<Next, Error> {
        let Some(policy) = self.policies.get(&name.to_owned()) else {
            self.status_writer.forget(name);
            return self.remove(name, tracked).await;
        };
        let generation = policy.generation();
        self.start_revision(&policy, tracked).await?;
        self.record_starts(tracked);
        let waits = self.waiting().contains_key(name);
        if waits && self.still_full(name, tracked) {
            return Ok(Next::AwaitSlot);
        }
        let Some(node) = self.node.get(&self.shared.node) else {
            return Err(Error::NoNode(self.shared.node.clone()));
        };
        let unmatched = selection::unmatched(&policy.node_selector(), &node.facts.labels);
        if !unmatched.is_empty() {
            return self.pass_unselected(&policy, &unmatched, tracked).await;
        }
        let Some(mut enactment) = self.enactment(&policy, &node, tracked).await? else {
            return self.remove(name, tracked).await;
        };
        let previous = Enactment::of(&enactment);
        let is_current = previous.generation == generation;
        let most = i64::from(self.shared.settings.max_retries.max(1));
        let may_retry = tracked.outage.resets_attempts || policy.is_dry_run();
        if is_current && previous.attempts >= most && !may_retry {
            tracing::info!(policy = name, "Retry count already exhausted, skipping apply");
            self.update_status(name, &enactment, None, Urgency::Deferrable);
            return Ok(Next::Done);
        }
        // A handler that was killed while it applied the policy left its slot.
        let takes_over =
            kube_kit::lock(&self.taken_over).remove(name) && previous.progressing == Some(Status::True);
        if is_current && (previous.is_retrying() || takes_over) && !policy.is_dry_run() {
            tracked.holds = true;
        }
        if tracked.rendered.is_none() && self.may_enable_lldp(&policy) {
            // Rendering already changes the host: it enables LLDP.
            if previous.generation != generation {
                self.edit(&mut enactment, |status, now| {
                    enactment::set_generation(status, generation, now);
                })
                .await?;
            }
            if let Some(next) = self.ensure_slot(&policy, &mut enactment, tracked).await? {
                return Ok(next);
            }
            self.waiting().remove(name);
            self.set_state(&mut enactment, &State::Progressing).await?;
        }
        let rendered = match tracked.rendered.clone() {
            Some(rendered) => rendered,
            None => match self.render(&policy, &node.facts, &enactment).await {
                Ok(rendered) => {
                    let mut stored = rendered.clone();
                    if policy.is_dry_run() {
                        // A capture is stored only when the policy is first applied, and then kept.
                        stored.captured = enactment::captured(&enactment);
                    }
                    self.edit(&mut enactment, |status, now| {
                        enactment::set_generation(status, generation, now);
                        enactment::set_policy_uid(status, &policy.uid());
                        enactment::set_rendered(status, &stored, now);
                    })
                    .await?;
                    tracked.rendered.insert(rendered).clone()
                }
                Err(failure) if tracked.holds && failure.retry => {
                    return self
                        .report_failure(&policy, &mut enactment, &failure, tracked)
                        .await;
                }
                Err(failure) => {
                    return self
                        .report_render_failure(&policy, &mut enactment, &failure, tracked)
                        .await;
                }
            },
        };
        if policy.is_dry_run() {
            tracked.rendered = None;
            return self.dry_run(name, &mut enactment, &rendered).await;
        }
        if let Some(next) = self.ensure_slot(&policy, &mut enactment, tracked).await? {
            return Ok(next);
        }
        self.apply(&policy, &mut enactment, &rendered, tracked).await
    }

    /// A pass over a policy that does not select this node.
    async fn pass_unselected(
        &self,
        policy: &Policy,
        unmatched: &[String],
        tracked: &mut Tracked,
    ) -> Result<Next, Error> {
        let name = &policy.name();
        tracing::info!(
            policy = name,
            ?unmatched,
            "Policy node selectors does not match node, removing previous enactment if any"
        );
        let release = tracked.holds.then(|| Held::of(policy));
        let name_here = enactment::name(&self.shared.node, name);
        let had_one = tracked.has_enactment || self.enactments.contains(&name_here);
        let next = self.remove(name, tracked).await?;
        if !had_one {
            // Any of the nodes that the policy does not select may report that it selects none.
            self.status_writer.set_progressing(name);
            return Ok(next);
        }
        self.status_writer
            .update(name, None, release, Urgency::Deferrable);
        Ok(next)
    }

    /// Takes a slot unless this node holds one. Returns the end of the pass if it gets none.
    async fn ensure_slot(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        tracked: &mut Tracked,
    ) -> Result<Option<Next>, Error> {
        let name = &policy.name();
        if tracked.holds {
            // The host is about to be changed, and the watch may be stale.
            return Ok(match self.read(name).await? {
                None => Some(self.remove(name, tracked).await?),
                // The watch is about to report this change.
                Some(fresh) if tracked.revision != Some(Revision::of(&fresh)) => Some(Next::Done),
                Some(_) => None,
            });
        }
        Ok(Some(
            match self.take_slot(name, policy.generation(), tracked).await? {
                Slot::Taken => {
                    tracked.holds = true;
                    tracked.failures = 0;
                    return Ok(None);
                }
                Slot::PolicyGone => self.remove(name, tracked).await?,
                Slot::PolicyChanged => Next::Done,
                Slot::Full => self.report_waiting(name, enactment, tracked).await?,
                Slot::Aborted => self.report_abort(policy, enactment, tracked).await?,
            },
        ))
    }

    /// Whether rendering the policy may enable LLDP on this node.
    fn may_enable_lldp(&self, policy: &Policy) -> bool {
        self.shared.settings.original_design && !policy.is_dry_run() && legacy::needs_lldp(policy.spec())
    }

    /// Removes the policy's enactment from this node.
    async fn remove(&self, policy: &str, tracked: &mut Tracked) -> Result<Next, Error> {
        self.waiting().remove(policy);
        let name = enactment::name(&self.shared.node, policy);
        if tracked.has_enactment || self.enactments.contains(&name) {
            self.delete_enactment(&name).await?;
        }
        *tracked = Tracked {
            revision: tracked.revision.take(),
            ..Tracked::default()
        };
        Ok(Next::Done)
    }

    /// Drops the state of an earlier revision, and resets the policy's conditions.
    async fn start_revision(&self, policy: &Policy, tracked: &mut Tracked) -> Result<(), Error> {
        let revision = Revision::of(policy);
        let before = tracked.revision.replace(revision.clone());
        if before.as_ref() == Some(&revision) {
            return Ok(());
        }
        let name = policy.name();
        self.waiting().remove(&name);
        let held = std::mem::take(tracked);
        if let Some(before) = before {
            if before.uid != revision.uid {
                // Captures and failures belong to a deleted policy of the same name.
                self.delete_enactment(&enactment::name(&self.shared.node, &name))
                    .await?;
            } else if held.holds {
                let release = Held {
                    uid: before.uid.clone(),
                    generation: before.generation,
                };
                self.status_writer
                    .update(&name, None, Some(release), Urgency::Deferrable);
            }
            tracked.has_enactment = held.has_enactment && before.uid == revision.uid;
        }
        tracked.revision = Some(revision);
        self.reset(&name).await
    }

    async fn render(
        &self,
        policy: &Policy,
        facts: &NodeFacts,
        enactment: &DynamicObject,
    ) -> Result<Rendered, Failure> {
        let engine = &self.shared.engine;
        let refused = |error: &engine::Error| Failure::of_unchanged(error, policy.spec());
        let mut captured = enactment::captured(enactment);
        let mut spec = PolicySpec::read(policy.spec()).map_err(|error| refused(&error))?;
        let mut is_unmatched = false;
        if self.shared.settings.original_design {
            // A dry run changes nothing, not even whether the host receives LLDP.
            let pipeline = (!policy.is_dry_run()).then_some(&*self.pipeline);
            let backend = self.shared.settings.backend;
            let document = legacy::document(engine, pipeline, policy.spec(), backend).await;
            let document = document.map_err(|error| Failure {
                text: error.to_string(),
                retry: error.retry(),
            })?;
            if let Some(document) = document {
                captured.clear();
                is_unmatched = !document.is_matched;
                spec = PolicySpec::only(document.desired);
            }
        }
        let rendered = render::render(engine, &spec, facts, captured).await;
        let rendered = rendered.map_err(|error| refused(&error))?;
        Ok(Rendered {
            is_unmatched,
            ..rendered
        })
    }

    /// Reports that the document could not be rendered: finally, if the policy is at fault.
    async fn report_render_failure(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        failure: &Failure,
        tracked: &mut Tracked,
    ) -> Result<Next, Error> {
        let name = policy.name();
        let state = if failure.retry {
            State::NotYet(messages::not_generated_yet(&failure.text))
        } else {
            State::Failed(messages::not_generated(&failure.text))
        };
        tracing::warn!(policy = name, error = failure.text, "cannot render the policy");
        let holds = tracked.holds;
        self.edit(enactment, |status, now| {
            enactment::set_generation(status, policy.generation(), now);
            enactment::set_policy_uid(status, &policy.uid());
            if holds {
                // The slot is released: without attempts, the enactment does not stand for one.
                status.shift_remove("retryCount");
            }
            // The same failure again is not written again.
            if !enactment::is_in_state(status, &state) {
                enactment::set_state(status, &state, now);
            }
        })
        .await?;
        // The host is unchanged, so other nodes may continue.
        let release = std::mem::take(&mut tracked.holds).then(|| Held::of(policy));
        self.update_status(&name, enactment, release, Urgency::Soon);
        if !failure.retry {
            return Ok(Next::Done);
        }
        // The policy is requeued with back-off even if NetworkManager does not start.
        self.is_stranded(&name, tracked).await;
        Ok(Next::Requeue)
    }

    /// Reports what the policy would change.
    async fn dry_run(
        &self,
        policy: &str,
        enactment: &mut DynamicObject,
        rendered: &Rendered,
    ) -> Result<Next, Error> {
        let (diff, state, next) = match dry_run::outcome(&self.shared.engine, &rendered.desired).await {
            Ok(outcome) if rendered.is_unmatched => {
                let text = messages::UNMATCHED_TRIED.to_owned();
                (outcome.diff, State::Tried(text), Next::Done)
            }
            Ok(outcome) => (outcome.diff, State::Tried(outcome.message), Next::Done),
            Err(failure) if failure.retry => {
                let text = messages::again(&failure.text);
                (Value::Null, State::NotYet(text), Next::Requeue)
            }
            Err(failure) => (Value::Null, State::Failed(failure.text), Next::Done),
        };
        self.edit(enactment, |status, now| {
            if diff.is_null() {
                status.shift_remove("diff");
            } else {
                status.insert("diff".to_owned(), diff.clone());
            }
            // The counts belong to the state that is replaced.
            status.shift_remove("retryCount");
            enactment::set_state(status, &state, now);
        })
        .await?;
        self.update_status(policy, enactment, None, Urgency::Deferrable);
        Ok(next)
    }

    /// Reports that this node waits for a slot.
    async fn report_waiting(
        &self,
        policy: &str,
        enactment: &mut DynamicObject,
        tracked: &Tracked,
    ) -> Result<Next, Error> {
        let observation = tracked.observation;
        let before =
            observation.and_then(|observation| self.waiting().insert(policy.to_owned(), observation));
        if observation.is_some_and(|observation| self.may_have_slot(policy, observation)) {
            self.queue
                .add_after(policy.to_owned(), self.jitter.delay(WAKE_WINDOW));
        }
        if Enactment::of(enactment).pending != Some(Status::True) {
            self.set_state(enactment, &State::Pending).await?;
        }
        if before.is_none() {
            self.update_status(policy, enactment, None, Urgency::Deferrable);
        }
        Ok(Next::AwaitSlot)
    }

    /// Reports that too many nodes failed.
    async fn report_abort(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        tracked: &mut Tracked,
    ) -> Result<Next, Error> {
        let name = policy.name();
        let text = messages::aborted(&enactment::name(&self.shared.node, &name));
        self.waiting().remove(&name);
        tracked.rendered = None;
        let state = State::Aborted(text.clone());
        self.set_state(enactment, &state).await?;
        self.update_status(&name, enactment, None, Urgency::Deferrable);
        self.publish_warning(policy, text);
        Ok(Next::Done)
    }

    /// Applies the policy; this node holds a slot.
    async fn apply(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        rendered: &Rendered,
        tracked: &mut Tracked,
    ) -> Result<Next, Error> {
        let (name, generation) = (policy.name(), policy.generation());
        self.waiting().remove(&name);
        let resets_attempts = std::mem::take(&mut tracked.outage.resets_attempts);
        self.edit(enactment, |status, now| {
            status.shift_remove("diff");
            if resets_attempts {
                enactment::set_attempts(status, generation, 0);
            }
            enactment::set_state(status, &State::Progressing, now);
        })
        .await?;
        let says = |kind| {
            let policies = &self.policies;
            policies.with(&name, |policy| policy.is(kind)) == Some(Status::True)
        };
        if says(condition::AVAILABLE) || says(condition::IGNORED) {
            // The status was final before this node began.
            self.update_status(&name, enactment, None, Urgency::Soon);
        } else {
            self.status_writer.set_progressing(&name);
        }
        let revision = Revision::of(policy);
        let superseded = self.superseded(&name, &revision);
        let applied = tokio::select! {
            applied = self.pipeline.apply_until(&rendered.desired, superseded) => applied,
            never = self.send_heartbeats(enactment.clone()) => match never {},
        };
        match applied {
            Ok(text) => {
                let text = if rendered.is_unmatched {
                    messages::UNMATCHED.to_owned()
                } else {
                    text
                };
                tracing::info!(policy = name, text, "policy applied");
                let state = State::Success(text);
                self.set_state(enactment, &state).await?;
                tracked.holds = false;
                tracked.rendered = None;
                let urgency = self.release_urgency(&name, tracked);
                self.update_status(&name, enactment, Some(Held::of(policy)), urgency);
                self.reports.notify_one();
                Ok(Next::Done)
            }
            // This failure does not concern the new revision, whose pass releases the slot.
            Err(failure) if !self.is_current(&name, &revision) => {
                tracing::info!(
                    policy = name,
                    error = failure.text,
                    "the policy changed while it was being applied"
                );
                Ok(Next::Requeue)
            }
            Err(failure) => self.report_failure(policy, enactment, &failure, tracked).await,
        }
    }
}
