//! Reviews of created or changed virtual machines (kubemacpool §10).
//!
//! ```text
//! create   interfaces without address ──> allocate          with address ──> hold
//! update   interfaces without address ──> keep the earlier one, or allocate for new interfaces
//!          addresses after the change ──> hold      earlier ones are held until the change is observed
//! ```

mod plan;
mod wire;

use std::collections::BTreeMap;

use kube_kit::patch::escape;
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
pub(crate) use wire::Spec;

/// The review of a virtual machine that is created or changed.
#[derive(Debug)]
pub(crate) struct Review<'r> {
    request: &'r Request,
    claimant: Claimant,
    /// UID of the changed object.
    uid: Option<String>,
    /// Time of the last admitted change that the object includes.
    last: Option<Timestamp>,
    deleting: bool,
    annotations: Texts,
    plan: Result<Plan, Refusal>,
}

/// A virtual machine with an unparsed `spec`.
#[derive(Deserialize)]
struct Object<'a> {
    metadata: Option<Metadata>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

/// The time of the last admitted change that a virtual machine includes, by its annotation.
///
/// # Errors
/// If the annotation is no time.
pub(crate) fn transaction(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<Timestamp>, InvalidTimestamp> {
    annotations
        .and_then(|annotations| annotations.get(names::TRANSACTION_TIMESTAMP))
        .map(|text| Timestamp::parse(text))
        .transpose()
}

/// The verdict if it is unknown whether a virtual machine exists ([`Review::needs`]).
pub(crate) fn lookup_failed(error: impl std::fmt::Display) -> Verdict {
    Verdict::denied(500, messages::create_failed(messages::lookup_failed(error)))
}

impl<'r> Review<'r> {
    /// Reads a request.
    ///
    /// # Errors
    /// The verdict if there is nothing to decide: the object is malformed, has no template, is being deleted, or has no
    /// relevant change.
    pub(crate) fn read(request: &'r Request) -> Result<Self, Verdict> {
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
            // A malformed old object counts as missing: none of its addresses can be kept.
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

    /// The virtual machine that [`Context::exists`] is about. If it cannot be read, the verdict is [`lookup_failed`].
    pub(crate) fn needs(&self) -> Option<&Owner> {
        match &self.claimant {
            Claimant::Named(owner) if self.request.operation == Operation::Create => Some(owner),
            Claimant::Named(_) | Claimant::Unnamed { .. } => None,
        }
    }

    /// Sets missing addresses of the interfaces, and holds all of them.
    pub(crate) fn admit(self, pool: &mut Pool, context: &Context<'_>) -> Verdict {
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
        // The API server refuses to create an existing object, whatever this verdict is.
        if create && context.exists {
            return verdict;
        }
        let mut draft = Draft::new();
        let filled = self
            .plan
            .and_then(|plan| plan.apply(pool, context, &self.claimant, &mut draft));
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

    /// Writes the annotation.
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
            escape(names::TRANSACTION_TIMESTAMP)
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

/// Whether labels and annotations are equal except for the timestamp. A missing map counts as empty.
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

/// Whether two values are equal. The API server serializes both with sorted keys and without white space, so texts can
/// be compared.
fn same_json(now: Option<&RawValue>, before: Option<&RawValue>) -> bool {
    now.map(RawValue::get) == before.map(RawValue::get)
}

#[cfg(test)]
mod tests;
