//! One pass over a policy (nmstate §5.5).

use kube::api::DynamicObject;
use kube_kit::events::{Kind, Recorder};
use serde_json::Value;

use super::edge::Error;
use super::turn::Turn;
use super::{Controller, Memory, Next, WAKE, Wanted};
use crate::conditions::Status;
use crate::failure::Failure;
use crate::names::{self, condition};
use crate::policy::enactment::{self, State};
use crate::policy::objects::{self, Enactment, Policy};
use crate::policy::settler::Urgency;
use crate::policy::{messages, selection};
use crate::render::{self, NodeFacts, PolicySpec, Rendered};
use crate::{dry_run, engine, legacy};

impl Controller {
    /// Brings a policy and what this node has of it one step further.
    pub(super) async fn pass(&self, name: &str, memory: &mut Memory) -> Result<Next, Error> {
        let Some(policy) = self.policies.get(&name.to_owned()) else {
            self.settler.forget(name);
            return self.leave(name, memory).await;
        };
        let generation = policy.generation();
        self.remember(&policy, memory).await?;
        self.note_starts(memory);
        let waits = self.waiting().contains_key(name);
        if waits && self.still_full(name, memory) {
            return Ok(Next::Wait);
        }
        let Some(node) = self.node.get(&self.shared.node) else {
            return Err(Error::NoNode(self.shared.node.clone()));
        };
        let unmatched = selection::unmatched(&policy.node_selector(), &node.facts.labels);
        if !unmatched.is_empty() {
            tracing::info!(
                policy = name,
                ?unmatched,
                "Policy node selectors does not match node, removing previous enactment if any"
            );
            let release = memory.holds.then_some(generation);
            let name_here = enactment::name(&self.shared.node, name);
            let had_one = memory.has_enactment || self.enactments.contains(&name_here);
            let next = self.leave(name, memory).await?;
            if !had_one {
                // Of all the nodes that a policy is not for, one is enough to say so if none is left.
                self.settler.begin(name);
                return Ok(next);
            }
            self.settler.settle(name, None, release, Urgency::Calm);
            return Ok(next);
        }
        let Some(mut enactment) = self.enactment(&policy, &node, memory).await? else {
            return self.leave(name, memory).await;
        };
        let previous = Enactment::of(&enactment);
        let is_current = previous.generation == generation;
        let most = i64::from(self.shared.settings.max_retries.max(1));
        let may_begin_anew = memory.absence.begins_anew || policy.is_dry_run();
        if is_current && previous.attempts >= most && !may_begin_anew {
            tracing::info!(policy = name, "Retry count already exhausted, skipping apply");
            self.settle(name, &enactment, None, Urgency::Calm);
            return Ok(Next::Done);
        }
        // A predecessor that was killed while it applied the policy left its slot too.
        let takes_over =
            kube_kit::lock(&self.taken_over).remove(name) && previous.progressing == Some(Status::True);
        if is_current && (previous.is_retrying() || takes_over) && !policy.is_dry_run() {
            memory.holds = true;
        }
        if memory.rendered.is_none() && self.has_to_listen(&policy) {
            // Already to find out what it is on this node changes the host: LLDP is switched on.
            if previous.generation != generation {
                self.edit(&mut enactment, |status, now| {
                    enactment::set_generation(status, generation, now);
                })
                .await?;
            }
            if let Some(next) = self.turn(&policy, &mut enactment, memory).await? {
                return Ok(next);
            }
            self.waiting().remove(name);
            self.set_state(&mut enactment, &State::Progressing).await?;
        }
        let rendered = match memory.rendered.clone() {
            Some(rendered) => rendered,
            None => match self.rendered(&policy, &node.facts, &enactment).await {
                Ok(rendered) => {
                    let mut stored = rendered.clone();
                    if policy.is_dry_run() {
                        // A capture is kept from the first time that the policy is applied, for good.
                        stored.captured = enactment::captured(&enactment);
                    }
                    self.edit(&mut enactment, |status, now| {
                        enactment::set_generation(status, generation, now);
                        enactment::set_policy_uid(status, &policy.uid());
                        enactment::set_rendered(status, &stored, now);
                    })
                    .await?;
                    memory.rendered.insert(rendered).clone()
                }
                Err(failure) if memory.holds && failure.retry => {
                    return self.failed(&policy, &mut enactment, &failure, memory).await;
                }
                Err(failure) => {
                    return self.not_rendered(&policy, &mut enactment, &failure, memory).await;
                }
            },
        };
        if policy.is_dry_run() {
            memory.rendered = None;
            return self.tried(name, &mut enactment, &rendered).await;
        }
        if let Some(next) = self.turn(&policy, &mut enactment, memory).await? {
            return Ok(next);
        }
        self.apply(&policy, &mut enactment, &rendered, memory).await
    }

    /// Makes sure that this node holds a slot; how the pass ends where it gets none.
    async fn turn(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        memory: &mut Memory,
    ) -> Result<Option<Next>, Error> {
        let name = &policy.name();
        if memory.holds {
            // The host is about to be changed, so what the watch knows is not enough.
            return Ok(match self.read(name).await? {
                None => Some(self.leave(name, memory).await?),
                // The watch is about to tell of it.
                Some(fresh) if memory.wanted != Some(Wanted::of(&fresh)) => Some(Next::Done),
                Some(_) => None,
            });
        }
        Ok(Some(
            match self.take_turn(name, policy.generation(), memory).await? {
                Turn::Taken => {
                    memory.holds = true;
                    memory.failures = 0;
                    return Ok(None);
                }
                Turn::Gone => self.leave(name, memory).await?,
                Turn::Changed => Next::Done,
                Turn::Wait => self.wait(name, enactment, memory).await?,
                Turn::Abort => self.abort(policy, enactment, memory).await?,
            },
        ))
    }

    /// Whether LLDP may have to be switched on to find out what a policy is on this node.
    fn has_to_listen(&self, policy: &Policy) -> bool {
        self.shared.settings.original_design
            && !policy.is_dry_run()
            && legacy::is_about_neighbours(policy.spec())
    }

    /// Nothing of a policy is to be left on this node.
    async fn leave(&self, policy: &str, memory: &mut Memory) -> Result<Next, Error> {
        self.waiting().remove(policy);
        let name = enactment::name(&self.shared.node, policy);
        if memory.has_enactment || self.enactments.contains(&name) {
            self.delete(&name).await?;
        }
        *memory = Memory {
            wanted: memory.wanted.take(),
            ..Memory::default()
        };
        Ok(Next::Done)
    }

    /// Forgets what belongs to an earlier wish, and tells users that what the policy says is about that one.
    async fn remember(&self, policy: &Policy, memory: &mut Memory) -> Result<(), Error> {
        let wanted = Wanted::of(policy);
        let before = memory.wanted.replace(wanted.clone());
        if before.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let name = policy.name();
        self.waiting().remove(&name);
        let held = std::mem::take(memory);
        if let Some(before) = before {
            if before.uid != wanted.uid {
                // What captures found and what failed was another policy's.
                self.delete(&enactment::name(&self.shared.node, &name)).await?;
            } else if held.holds {
                self.settler
                    .settle(&name, None, Some(before.generation), Urgency::Calm);
            }
            memory.has_enactment = held.has_enactment && before.uid == wanted.uid;
        }
        memory.wanted = Some(wanted);
        self.reset(&name).await
    }

    async fn rendered(
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
            // Whoever only tries changes nothing, not even whether the host listens for neighbours.
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

    /// The document could not be made: finally, when it is the policy's fault.
    async fn not_rendered(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        failure: &Failure,
        memory: &mut Memory,
    ) -> Result<Next, Error> {
        let name = policy.name();
        let state = State::Failed(if failure.retry {
            messages::not_generated_yet(&failure.text)
        } else {
            messages::not_generated(&failure.text)
        });
        tracing::warn!(
            policy = name,
            error = failure.text,
            "cannot make the policy's document"
        );
        self.edit(enactment, |status, now| {
            enactment::set_generation(status, policy.generation(), now);
            enactment::set_policy_uid(status, &policy.uid());
            // The same failure at each attempt is no news.
            if !enactment::is_in_state(status, &state) {
                enactment::set_state(status, &state, now);
            }
        })
        .await?;
        // Nothing was changed, so others may go on.
        let release = std::mem::take(&mut memory.holds).then_some(policy.generation());
        self.settle(&name, enactment, release, Urgency::Brisk);
        if !failure.retry {
            return Ok(Next::Done);
        }
        // With or without NetworkManager: the back-off goes on meanwhile.
        self.is_stranded(&name, memory).await;
        Ok(Next::Again)
    }

    /// Says what the policy would change.
    async fn tried(
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
            Err(failure) => {
                let next = if failure.retry { Next::Again } else { Next::Done };
                (Value::Null, State::Failed(failure.text), next)
            }
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
        self.settle(policy, enactment, None, Urgency::Calm);
        Ok(next)
    }

    /// As many nodes as may are at it.
    async fn wait(
        &self,
        policy: &str,
        enactment: &mut DynamicObject,
        memory: &Memory,
    ) -> Result<Next, Error> {
        let look = memory.look;
        let before = look.and_then(|look| self.waiting().insert(policy.to_owned(), look));
        if look.is_some_and(|look| self.has_moved_on(policy, look)) {
            self.queue.add_after(policy.to_owned(), self.spread.moment(WAKE));
        }
        if Enactment::of(enactment).pending != Some(Status::True) {
            self.set_state(enactment, &State::Pending).await?;
        }
        if before.is_none() {
            self.settle(policy, enactment, None, Urgency::Calm);
        }
        Ok(Next::Wait)
    }

    /// Too many nodes failed.
    async fn abort(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        memory: &mut Memory,
    ) -> Result<Next, Error> {
        let name = policy.name();
        let text = messages::aborted(&enactment::name(&self.shared.node, &name));
        self.waiting().remove(&name);
        memory.rendered = None;
        let state = State::Aborted(text.clone());
        self.set_state(enactment, &state).await?;
        self.settle(&name, enactment, None, Urgency::Calm);
        self.tell(policy, &text).await;
        Ok(Next::Done)
    }

    /// It is this node's turn.
    async fn apply(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        rendered: &Rendered,
        memory: &mut Memory,
    ) -> Result<Next, Error> {
        let (name, generation) = (policy.name(), policy.generation());
        self.waiting().remove(&name);
        let begins_anew = std::mem::take(&mut memory.absence.begins_anew);
        self.edit(enactment, |status, now| {
            status.shift_remove("diff");
            if begins_anew {
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
            // It was settled before this node came to it.
            self.settle(&name, enactment, None, Urgency::Brisk);
        } else {
            self.settler.begin(&name);
        }
        let wanted = Wanted::of(policy);
        let superseded = self.superseded(&name, &wanted);
        let applied = tokio::select! {
            applied = self.pipeline.apply_until(&rendered.desired, superseded) => applied,
            never = self.keep_alive(enactment.clone()) => match never {},
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
                memory.holds = false;
                memory.rendered = None;
                let urgency = self.release_urgency(&name, memory);
                self.settle(&name, enactment, Some(generation), urgency);
                self.reports.notify_one();
                Ok(Next::Done)
            }
            // It says nothing about the policy as it is now, whose pass gives the slot back.
            Err(failure) if !self.is_wanted(&name, &wanted) => {
                tracing::info!(
                    policy = name,
                    error = failure.text,
                    "the policy changed while it was applied"
                );
                Ok(Next::Again)
            }
            Err(failure) => self.failed(policy, enactment, &failure, memory).await,
        }
    }

    async fn failed(
        &self,
        policy: &Policy,
        enactment: &mut DynamicObject,
        failure: &Failure,
        memory: &mut Memory,
    ) -> Result<Next, Error> {
        let (name, generation) = (policy.name(), policy.generation());
        let most = self.shared.settings.max_retries.max(1);
        let before = if std::mem::take(&mut memory.absence.begins_anew) {
            0
        } else {
            u32::try_from(Enactment::of(enactment).attempts).unwrap_or_default()
        };
        // What no other attempt would change counts as all of them.
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
        // Another attempt begins with what the host is like then.
        memory.rendered = None;
        if failure.retry && self.is_stranded(&name, memory).await && is_final {
            memory.absence.gave_up = Some(memory.absence.starts);
        }
        if !is_final {
            self.settle(&name, enactment, None, Urgency::Calm);
            return Ok(Next::Again);
        }
        // The slot is kept: those who wait are to see that it does not work.
        self.settle(&name, enactment, None, Urgency::Brisk);
        let own = enactment::name(&self.shared.node, &name);
        let text = if failure.retry {
            messages::failed(&own, most)
        } else {
            messages::refused(&own)
        };
        self.tell(policy, &text).await;
        Ok(Next::Done)
    }

    /// Warns on the policy.
    async fn tell(&self, policy: &Policy, text: &str) {
        let source = format!("{}.{}", self.shared.node, names::EVENT_SOURCE);
        // One that remembers would count what it told before, and handlers may only create events.
        let recorder = Recorder::new(self.shared.client.clone(), &source);
        recorder
            .publish(&policy.reference(), Kind::Warning, names::RECONCILE_FAILED, text)
            .await;
    }

    /// The enactment was written so: the policy's status is to follow.
    fn settle(&self, policy: &str, enactment: &DynamicObject, release: Option<i64>, urgency: Urgency) {
        let version = enactment.metadata.resource_version.as_deref();
        let written = version.and_then(objects::comparable);
        self.settler.settle(policy, written, release, urgency);
    }

    /// Whether others wait for the slot that is given back.
    fn release_urgency(&self, policy: &str, memory: &Memory) -> Urgency {
        let counts = self.policies.with(&policy.to_owned(), Policy::counts);
        let generation = memory.wanted.as_ref().map(|wanted| wanted.generation);
        let key = generation.unwrap_or_default().to_string();
        let counted = counts.and_then(|counts| counts.get(&key).copied());
        match (counted, memory.look) {
            (Some(counted), Some(look)) if counted < look.limit => Urgency::Calm,
            _ => Urgency::Brisk,
        }
    }
}

/// Whether a policy is to be told anew that nothing is known yet of its newest generation.
pub(super) fn is_to_be_reset(policy: &Policy) -> bool {
    if policy.is(condition::PROGRESSING) == Status::True {
        return false;
    }
    let mut conditions = policy.conditions();
    conditions.retain(|one| condition::OF_POLICIES.contains(&one.kind.as_str()));
    let is_unknown = conditions.len() >= 4
        && conditions
            .iter()
            .all(|condition| condition.status == Status::Unknown && condition.reason.is_empty());
    let observed = policy.observed_generation();
    !is_unknown && observed != Some(policy.generation())
}
