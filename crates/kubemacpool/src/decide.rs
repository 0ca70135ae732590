//! What the decisions about pods and virtual machines share.
//!
//! ```text
//! Request ── read ──> Review ── needs ──> a look-up at the edge
//!                       │                     │
//!                       └── admit(Pool, Context) ──> Verdict, and what it holds from now on
//! ```
//!
//! `read` takes most of the time and needs nothing, so that the pool is held for `admit` alone.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use serde::Deserialize;
use serde::de::IgnoredAny;
use webhook::admission::{Request, Verdict};

use crate::mac::Mac;
use crate::messages;
use crate::pool::{Claimant, Draft, Kind, Owner, Pending, Pool};
use crate::timestamp::Timestamp;

/// What a decision has to know beside the request and the pool.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Whether the virtual machine exists that the review needs to know of; `false` where it needs none.
    pub exists: bool,
    /// Now, later than in every decision before.
    pub timestamp: Timestamp,
    /// Now, by a clock that never jumps.
    pub admitted: Instant,
    /// Whether an explicit address that others have is refused.
    pub reject_duplicates: bool,
    /// Whether objects of a kind in a namespace get their addresses from here. Others are never named to users.
    pub is_managed: &'a dyn Fn(Kind, &str) -> bool,
}

/// What is read of an object's metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
    pub(crate) labels: Option<Texts>,
    pub(crate) annotations: Option<Texts>,
    pub(crate) owner_references: Option<Vec<Reference>>,
}

/// Labels or annotations. `null` is an empty text.
pub(crate) type Texts = BTreeMap<String, Option<String>>;

/// An owner.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reference {
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
}

impl Metadata {
    /// The object's own namespace, else that of the request.
    pub(crate) fn namespace<'a>(&'a self, request: &'a Request) -> &'a str {
        let own = self.namespace.as_deref().unwrap_or_default();
        if own.is_empty() { &request.namespace } else { own }
    }

    /// The object's name; nothing when it is yet to be generated.
    pub(crate) fn name<'a>(&'a self, request: &'a Request) -> Option<&'a str> {
        let own = self.name.as_deref().unwrap_or_default();
        Some(if own.is_empty() { &request.name } else { own }).filter(|name| !name.is_empty())
    }

    /// An annotation's text.
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        let text = self.annotations.as_ref()?.get(key)?;
        Some(text.as_deref().unwrap_or_default())
    }

    /// Whose request this is.
    pub(crate) fn claimant(&self, kind: Kind, request: &Request) -> Claimant {
        let namespace = self.namespace(request).into();
        match self.name(request) {
            Some(name) => Claimant::Named(Owner {
                kind,
                namespace,
                name: name.into(),
            }),
            None => Claimant::Unnamed {
                kind,
                namespace,
                request: request.uid.as_str().into(),
            },
        }
    }
}

/// A request can't be understood.
pub(crate) fn undecodable(error: impl std::fmt::Display) -> Verdict {
    Verdict::denied(400, messages::excerpt(error.to_string()))
}

/// What a request holds from now on. Nothing is stored in a dry run, so nothing is held.
pub(crate) fn admit(
    pool: &mut Pool,
    request: &Request,
    pending: Pending,
    draft: Draft,
) -> Result<(), TooManyUnseen> {
    if !pool.has_room(&draft, pending.client) {
        return Err(TooManyUnseen);
    }
    if !request.dry_run {
        pool.admit(draft, pending);
    }
    Ok(())
}

/// A client asked for too many addresses for objects that were not seen since.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("too many addresses wait for their objects to be created, try again in a few minutes")]
pub(crate) struct TooManyUnseen;

/// The warning about an explicit address that other managed objects have; nothing when no other object has it.
pub(crate) fn used_by_others(
    pool: &Pool,
    context: &Context<'_>,
    claimant: &Claimant,
    mac: Mac,
) -> Option<String> {
    let mut others = pool.holders(mac);
    others.retain(|holder| {
        let (kind, namespace) = match &holder.claimant {
            Claimant::Named(owner) => (owner.kind, &owner.namespace),
            Claimant::Unnamed { kind, namespace, .. } => (*kind, namespace),
        };
        holder.claimant != *claimant && (context.is_managed)(kind, namespace)
    });
    let claimants: HashSet<&Claimant> = others.iter().map(|holder| &holder.claimant).collect();
    let more = claimants.len().saturating_sub(1);
    others
        .first()
        .map(|first| messages::already_used(mac, first, more))
}
