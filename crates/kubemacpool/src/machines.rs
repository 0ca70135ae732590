//! What is decided about a virtual machine that is to be created or changed (kubemacpool §10).
//!
//! ```text
//! create   interfaces without address ──> allocate          with address ──> hold
//! update   interfaces without address ──> what they had, else, where they are new, allocate
//!          addresses after the change ──> hold      those before it are held until the change is seen
//! ```

mod plan;
mod wire;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use webhook::admission::{Change, Operation, Request, Verdict};

use crate::decide::{self, Context, Metadata, Texts};
use crate::messages;
use crate::names;
use crate::pool::{Claimant, Draft, Kind, Owner, Pending, Pool};
use crate::timestamp::{InvalidTimestamp, Timestamp};

use plan::{Plan, Refusal, State};
pub use wire::{Interface, Spec};

/// A virtual machine that is created or changed.
#[derive(Debug)]
pub struct Review<'r> {
    request: &'r Request,
    claimant: Claimant,
    /// The object that is changed.
    uid: Option<String>,
    /// When the last change was admitted that it includes.
    last: Option<Timestamp>,
    deleting: bool,
    annotations: Texts,
    plan: Result<Plan, Refusal>,
}

/// A virtual machine whose `spec` is still text.
#[derive(Deserialize)]
struct Object<'a> {
    metadata: Option<Metadata>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

/// When the change was admitted that a virtual machine includes, by its annotations; nothing when none was.
///
/// # Errors
/// When the annotation is no time.
pub fn transaction(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<Timestamp>, InvalidTimestamp> {
    annotations
        .and_then(|annotations| annotations.get(names::TRANSACTION_TIMESTAMP))
        .map(|text| Timestamp::parse(text))
        .transpose()
}

/// The answer when it can't be found out whether a virtual machine exists ([`Review::needs`]).
pub fn lookup_failed(error: impl std::fmt::Display) -> Verdict {
    Verdict::denied(500, messages::create_failed(messages::lookup_failed(error)))
}

impl<'r> Review<'r> {
    /// Reads a request.
    ///
    /// # Errors
    /// When there is nothing more to decide: the object can't be read, has no template, is being deleted, or does not
    /// change in what counts.
    pub fn read(request: &'r Request) -> Result<Self, Verdict> {
        if !matches!(request.operation, Operation::Create | Operation::Update) {
            return Err(Verdict::allowed());
        }
        let Object { metadata, spec } = object(request.object.as_deref())
            .map_err(decide::undecodable)?
            .ok_or_else(|| decide::undecodable(messages::NO_OBJECT))?;
        let metadata = metadata.unwrap_or_default();
        let deleting = metadata.deletion_timestamp.is_some();
        if deleting && request.operation == Operation::Update {
            return Err(Verdict::allowed());
        }
        let now = State::read(spec)
            .map_err(decide::undecodable)?
            .ok_or_else(|| Verdict {
                message: Some(messages::NO_TEMPLATE.to_owned()),
                ..Verdict::allowed()
            })?;
        let (uid, last, plan) = if request.operation == Operation::Create {
            (None, None, now.create())
        } else {
            // What can't be read is like what is not there: nothing of it can be kept.
            let before = object(request.old_object.as_deref()).ok().flatten();
            let before = before.ok_or_else(Verdict::allowed)?;
            let metadata_before = before.metadata.unwrap_or_default();
            if same_texts(&metadata, &metadata_before) && same_json(spec, before.spec) {
                return Err(Verdict::allowed());
            }
            let before = State::read(before.spec).ok().flatten().unwrap_or_default();
            let last = metadata_before.annotation(names::TRANSACTION_TIMESTAMP);
            let last = last.and_then(|last| Timestamp::parse(last).ok());
            (metadata_before.uid, last, now.update(&before))
        };
        Ok(Self {
            request,
            claimant: metadata.claimant(Kind::Machine, request),
            uid,
            last,
            deleting,
            annotations: metadata.annotations.unwrap_or_default(),
            plan,
        })
    }

    /// The virtual machine of which [`Context::exists`] tells whether it exists. When that can't be found out, the answer
    /// is [`lookup_failed`].
    pub fn needs(&self) -> Option<&Owner> {
        match &self.claimant {
            Claimant::Named(owner) if self.request.operation == Operation::Create => Some(owner),
            Claimant::Named(_) | Claimant::Unnamed { .. } => None,
        }
    }

    /// Completes the interfaces with addresses, and holds them.
    pub fn admit(self, pool: &mut Pool, context: &Context<'_>) -> Verdict {
        let create = self.request.operation == Operation::Create;
        if create && self.deleting {
            let name = match &self.claimant {
                Claimant::Named(owner) => &*owner.name,
                Claimant::Unnamed { .. } => "",
            };
            return if context.exists {
                Verdict::allowed()
            } else {
                lookup_failed(messages::machine_not_found(name))
            };
        }
        let timestamp = context.timestamp.or_after(self.last);
        let mut verdict = Verdict::patched(self.write(timestamp));
        // The API server refuses to create what exists; it does not matter what this one says.
        if create && context.exists {
            return verdict;
        }
        let mut draft = Draft::new();
        let filled = self
            .plan
            .and_then(|plan| plan.carry_out(pool, context, &self.claimant, &mut draft));
        match filled {
            Ok((addresses, warnings)) => {
                verdict.patch.extend(addresses);
                verdict.warnings = warnings;
            }
            Err(refusal) if create => {
                let message = messages::create_failed(messages::allocation_failed(refusal));
                return Verdict::denied(500, message);
            }
            Err(refusal) => return Verdict::denied(500, messages::update_failed(refusal)),
        }
        let pending = Pending {
            claimant: self.claimant,
            timestamp,
            uid: self.uid.map(Into::into),
            admitted: context.admitted,
            client: self.request.client,
        };
        match decide::admit(pool, self.request, pending, draft) {
            Ok(()) => verdict,
            Err(refusal) if create => {
                Verdict::denied(500, messages::create_failed(messages::allocation_failed(refusal)))
            }
            Err(refusal) => Verdict::denied(500, messages::update_failed(refusal)),
        }
    }

    /// How the annotation is written.
    fn write(&self, timestamp: Timestamp) -> Vec<Change> {
        let mut patch = Vec::new();
        if self.annotations.is_empty() {
            patch.push(Change::Add {
                path: names::ANNOTATIONS_PATH.to_owned(),
                value: json!({}),
            });
        }
        let path = format!(
            "{}/{}",
            names::ANNOTATIONS_PATH,
            names::TRANSACTION_TIMESTAMP.replace('/', "~1")
        );
        let value = Value::String(timestamp.to_string());
        patch.push(if self.annotations.contains_key(names::TRANSACTION_TIMESTAMP) {
            Change::Replace { path, value }
        } else {
            Change::Add { path, value }
        });
        patch
    }
}

fn object(text: Option<&RawValue>) -> Result<Option<Object<'_>>, serde_json::Error> {
    serde_json::from_str(text.map_or("null", RawValue::get))
}

/// Whether labels and annotations are the same, the timestamp apart. A map that is missing is an empty one.
fn same_texts(now: &Metadata, before: &Metadata) -> bool {
    fn entries(texts: Option<&Texts>) -> impl Iterator<Item = (&str, &str)> {
        let texts = texts.into_iter().flatten();
        texts
            .map(|(key, text)| (key.as_str(), text.as_deref().unwrap_or_default()))
            .filter(|(key, _)| *key != names::TRANSACTION_TIMESTAMP)
    }
    let same =
        |now: &Option<Texts>, before: &Option<Texts>| entries(now.as_ref()).eq(entries(before.as_ref()));
    same(&now.labels, &before.labels) && same(&now.annotations, &before.annotations)
}

/// Whether two values are the same. The API server writes both by the same rules, keys sorted and without white space,
/// so that texts that differ are values that differ.
fn same_json(now: Option<&RawValue>, before: Option<&RawValue>) -> bool {
    now.map(RawValue::get) == before.map(RawValue::get)
}

#[cfg(test)]
mod tests;
