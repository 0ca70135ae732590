//! Shared parts of the reviews of pods and virtual machines.
//!
//! ```text
//! Request ── read ──> Review ── needs ──> read of a virtual machine
//!                       │                     │
//!                       └── admit(Pool, Context) ──> Verdict, and held addresses
//! ```
//!
//! `read` takes most of the time and needs no state, so that the pool is locked for `admit` alone.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use cni::mac::Mac;
use serde::Deserialize;
use serde::de::IgnoredAny;
use webhook::admission::{Request, Verdict};

use crate::messages;
use crate::pool::{Claimant, Draft, Kind, Owner, Pending, Pool};
use crate::timestamp::Timestamp;

/// Inputs of a decision beside the request and the pool.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// Whether the virtual machine exists that the review depends on; `false` without one.
    pub exists: bool,
    /// The current time, later than in every earlier decision.
    pub timestamp: Timestamp,
    /// The current time of a monotonic clock.
    pub admitted: Instant,
    /// Whether an explicit address of another object is denied.
    pub reject_duplicates: bool,
    /// Whether objects of a kind in a namespace are managed. Others are never named to users.
    pub is_managed: &'a dyn Fn(Kind, &str) -> bool,
}

/// The parts of an object's metadata that reviews read.
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

/// Labels or annotations. `null` is an empty string.
pub(crate) type Texts = BTreeMap<String, Option<String>>;

/// An owner reference.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reference {
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
}

impl Metadata {
    /// Namespace of the object, or of the request.
    pub(crate) fn namespace<'a>(&'a self, request: &'a Request) -> &'a str {
        let own = self.namespace.as_deref().unwrap_or_default();
        if own.is_empty() { &request.namespace } else { own }
    }

    /// Name of the object; `None` if it is yet to be generated.
    pub(crate) fn name<'a>(&'a self, request: &'a Request) -> Option<&'a str> {
        let own = self.name.as_deref().unwrap_or_default();
        Some(if own.is_empty() { &request.name } else { own }).filter(|name| !name.is_empty())
    }

    /// The value of an annotation.
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        let text = self.annotations.as_ref()?.get(key)?;
        Some(text.as_deref().unwrap_or_default())
    }

    /// The object that the request is for.
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

/// The verdict about a malformed request.
pub(crate) fn undecodable(error: impl std::fmt::Display) -> Verdict {
    Verdict::denied(400, messages::excerpt(error.to_string()))
}

/// Admits a draft. A dry run stores nothing, so it holds no addresses.
pub(crate) fn admit(
    pool: &mut Pool,
    request: &Request,
    pending: Pending,
    draft: Draft,
) -> Result<(), TooManyPending> {
    if !pool.has_capacity(&draft, pending.client) {
        return Err(TooManyPending);
    }
    if !request.dry_run {
        pool.admit(draft, pending);
    }
    Ok(())
}

/// A client requested too many addresses for objects that were not observed since.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("too many addresses wait for their objects to be created, try again in a few minutes")]
pub(crate) struct TooManyPending;

/// The warning about an explicit address that other managed objects have; `None` if there are none.
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
