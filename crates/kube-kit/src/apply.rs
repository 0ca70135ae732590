//! Executes the decisions of [`crate::merge`].
//!
//! ```text
//! rendered ──> live object (cache, else GET) ──> plan ──> POST | PUT | DELETE and POST | nothing
//!                     ▲                                        │ conflict: read again
//!                     └────────────────────────────────────────┘
//! ```
//!
//! An object that another client keeps changing back is written with back-off (`contest`), and the error names that
//! client. `server_side` is for objects that several clients write, each its own fields. `requests` sends.

pub mod contest;
mod error;
mod requests;
mod server_side;
mod upkeep;

pub use error::{Attempt, Cause, Error};
pub use server_side::apply_always;
pub use upkeep::{Pause, Upkeep};

use crate::cache::{Cache, Lookup};
use crate::lock;
use crate::merge::{self, Change, Difference, Policy};
use crate::object::{self, Kind, ObjectId};
use contest::{Contest, Verdict};
use kube::Client;
use kube::core::params;
use requests::requests;
use serde_json::Value;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use tokio::time::Instant;

/// Maximum number of attempts on an object that other clients write at the same time.
const ATTEMPTS: usize = 3;

/// The outcome of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It did not exist.
    Created,
    /// It differed.
    Updated,
    /// It did not differ; nothing was written.
    Unchanged,
    /// It differed in an immutable field: it was deleted and created.
    Recreated,
}

/// The outcome of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It is deleted, or waits for its finalizers.
    Deleted,
    /// It did not exist.
    Absent,
    /// The API server does not serve its kind.
    UnknownKind,
    /// It has another owner, and stays.
    NotOwned,
}

/// Applies and deletes objects.
pub struct Applier {
    client: Client,
    policy: Policy,
    cache: Cache,
    /// Fields that the server stored beyond a write. Without these, an unknown default would cause writes for ever.
    learned: Mutex<HashMap<ObjectId, Learned>>,
    /// Recent writes, for the back-off.
    contests: Mutex<HashMap<ObjectId, Contest>>,
    /// The same for objects that are written by [`Self::store`].
    upkeeps: Mutex<HashMap<ObjectId, Upkeep>>,
    /// Renderings that [`Self::apply_as`] sent.
    sent: server_side::Sent,
}

#[derive(Debug)]
struct Learned {
    rendered: u64,
    differences: Vec<Difference>,
}

impl Applier {
    /// An applier that reads every object from the API server.
    pub fn new(client: Client, policy: Policy) -> Self {
        Self::with_cache(client, policy, Cache::new())
    }

    /// An applier that uses the cache for watched objects.
    pub fn with_cache(client: Client, policy: Policy, cache: Cache) -> Self {
        Self {
            client,
            policy,
            cache,
            learned: Mutex::new(HashMap::new()),
            contests: Mutex::default(),
            upkeeps: Mutex::default(),
            sent: server_side::Sent::default(),
        }
    }

    /// The client of the requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The cache of live objects.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Ownership of rendered objects.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Updates the live object to the rendered one, and writes only if they differ (operator.md §9.1).
    ///
    /// # Errors
    /// If the object is refused, here or by the API server; if another client writes it at the same time; or if another
    /// client keeps reverting it.
    pub async fn apply(&self, rendered: &Value) -> Result<Applied, Error> {
        let id = ObjectId::of(rendered);
        let failed = |cause| Error {
            attempt: Attempt::Apply,
            id: id.clone(),
            cause,
        };
        // Refuse before the read: an object without a name cannot be read.
        merge::plan(rendered, None, &self.policy).map_err(|error| failed(Cause::Refused(error)))?;
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(&id)))?;
        let mut live = match self.cache.lookup(&id) {
            Lookup::Present(object) => Some(Value::clone(&object)),
            Lookup::Absent => None,
            Lookup::Unknown => self.read(kind, &id).await.map_err(failed)?,
        };
        let mut attempt = 1;
        loop {
            match self.attempt(kind, &id, rendered, live.as_ref()).await {
                Ok(applied) => return Ok(applied),
                Err(cause)
                    if attempt < ATTEMPTS
                        && (cause.is_conflict() || (live.is_some() && cause.is_not_found())) =>
                {
                    attempt += 1;
                    live = self.read(kind, &id).await.map_err(failed)?;
                }
                Err(cause) => return Err(failed(cause)),
            }
        }
    }

    async fn attempt(
        &self,
        kind: Kind,
        id: &ObjectId,
        rendered: &Value,
        live: Option<&Value>,
    ) -> Result<Applied, Cause> {
        let fingerprint = fingerprint(rendered);
        let known = self.known(id, fingerprint);
        let change = merge::plan_knowing(rendered, live, &self.policy, &known).map_err(Cause::Refused)?;
        if change != Change::Unchanged {
            self.may_write(kind, id, rendered, fingerprint).await?;
        }
        let (applied, stored) = match change {
            Change::Unchanged => return Ok(Applied::Unchanged),
            Change::Create(object) => (Applied::Created, self.create(kind, id, &object).await?),
            Change::Update(object) => (Applied::Updated, self.replace(kind, id, &object).await?),
            Change::Recreate(object) => {
                if let Some(live) = live {
                    self.remove(kind, id, live).await?;
                }
                (Applied::Recreated, self.create(kind, id, &object).await?)
            }
        };
        self.learn(id, fingerprint, rendered, &stored);
        self.cache.put(&stored);
        self.wrote(id);
        tracing::info!(object = %id, ?applied, "applied");
        Ok(applied)
    }

    /// Delays another write of the same rendering while another client reverts each, and names that client.
    async fn may_write(
        &self,
        kind: Kind,
        id: &ObjectId,
        rendered: &Value,
        fingerprint: u64,
    ) -> Result<(), Cause> {
        let verdict = lock(&self.contests)
            .entry(id.clone())
            .or_default()
            .ask(fingerprint, Instant::now());
        let opponent = match verdict {
            Verdict::Write => return Ok(()),
            Verdict::Wait(Some(opponent)) => opponent,
            Verdict::Wait(None) => {
                // The cache drops `managedFields`.
                let live = self.read(kind, id).await?;
                let differences = live
                    .as_ref()
                    .and_then(|live| merge::differences(rendered, live, &self.policy).ok());
                let first = differences.iter().flatten().next();
                let path = first.map_or("it", |difference| difference.path.as_str());
                let opponent = contest::opponent(live.as_ref(), path);
                tracing::warn!(object = %id, opponent, "another client reverts each write, retrying with back-off");
                if let Some(contest) = lock(&self.contests).get_mut(id) {
                    contest.name(opponent.clone());
                }
                opponent
            }
        };
        Err(Cause::Contested(opponent))
    }

    fn wrote(&self, id: &ObjectId) {
        let now = Instant::now();
        let mut contests = lock(&self.contests);
        contests.retain(|other, contest| other == id || !contest.is_over(now));
        contests.entry(id.clone()).or_default().wrote(now);
    }

    fn known(&self, id: &ObjectId, fingerprint: u64) -> Vec<Difference> {
        lock(&self.learned)
            .get(id)
            .filter(|learned| learned.rendered == fingerprint)
            .map(|learned| learned.differences.clone())
            .unwrap_or_default()
    }

    fn learn(&self, id: &ObjectId, rendered_as: u64, rendered: &Value, stored: &Value) {
        let differences = merge::differences(rendered, stored, &self.policy).unwrap_or_default();
        let mut learned = lock(&self.learned);
        if differences.is_empty() {
            learned.remove(id);
        } else {
            let paths: Vec<&str> = differences
                .iter()
                .map(|difference| difference.path.as_str())
                .collect();
            tracing::debug!(object = %id, ?paths, "the server stores more than was sent");
            learned.insert(
                id.clone(),
                Learned {
                    rendered: rendered_as,
                    differences,
                },
            );
        }
    }

    /// Reads the live object from the API server; `None` if it does not exist.
    ///
    /// # Errors
    /// If there is no answer, or the kind is not served.
    pub async fn get(&self, id: &ObjectId) -> Result<Option<Value>, Error> {
        let failed = |cause| Error {
            attempt: Attempt::Read,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(id)))?;
        self.read(kind, id).await.map_err(failed)
    }

    /// Writes an object once and unchanged, and returns the stored one: an update if it has a `resourceVersion`, else a
    /// creation. This is for objects whose content depends on the live state, because only their writer can resolve a
    /// conflict. The writer consults [`Self::upkeep`] before a repair that another client may revert.
    ///
    /// # Errors
    /// If the API server refuses or does not answer, or another client wrote the object meanwhile.
    pub async fn store(&self, object: &Value) -> Result<Value, Error> {
        let id = ObjectId::of(object);
        let failed = |cause| Error {
            attempt: Attempt::Apply,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(&id)))?;
        let stored = if object.pointer("/metadata/resourceVersion").is_some() {
            self.replace(kind, &id, object).await
        } else {
            self.create(kind, &id, object).await
        };
        let stored = stored.map_err(failed)?;
        self.cache.put(&stored);
        tracing::info!(object = %id, "stored");
        Ok(stored)
    }

    /// Deletes an object if one of its owners is of this kind (operator.md §9.2).
    ///
    /// # Errors
    /// If the API server refuses or does not answer, or other clients keep recreating the object.
    pub async fn delete_if_owned(&self, id: &ObjectId, owner_kind: &str) -> Result<Deleted, Error> {
        self.delete_if(id, |live| object::owned_by(live, owner_kind))
            .await
    }

    /// Deletes an object, whatever its owner.
    ///
    /// # Errors
    /// If the API server refuses or does not answer, or other clients keep recreating the object.
    pub async fn delete(&self, id: &ObjectId) -> Result<Deleted, Error> {
        self.delete_if(id, |_| true).await
    }

    /// Deletes an object if `may` allows it for the live object.
    ///
    /// # Errors
    /// If the API server refuses or does not answer, or other clients keep recreating the object.
    pub async fn delete_if(&self, id: &ObjectId, may: impl Fn(&Value) -> bool) -> Result<Deleted, Error> {
        let failed = |cause| Error {
            attempt: Attempt::Delete,
            id: id.clone(),
            cause,
        };
        let Some(kind) = id.known_kind() else {
            return Ok(Deleted::UnknownKind);
        };
        let mut attempt = 1;
        loop {
            // The cache may not select objects of an older version: a deletion reads from the API server.
            let live = match self.read(kind, id).await {
                Ok(Some(live)) => live,
                Ok(None) => return Ok(Deleted::Absent),
                Err(Cause::UnknownKind { .. }) => return Ok(Deleted::UnknownKind),
                Err(cause) => return Err(failed(cause)),
            };
            if !may(&live) {
                return Ok(Deleted::NotOwned);
            }
            match self.remove(kind, id, &live).await {
                Ok(()) => {
                    // A later creation reverts no other client.
                    lock(&self.contests).remove(id);
                    lock(&self.upkeeps).remove(id);
                    tracing::info!(object = %id, "deleted");
                    return Ok(Deleted::Deleted);
                }
                // Another object with this name exists by now: check its owner.
                Err(cause) if cause.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                Err(cause) => return Err(failed(cause)),
            }
        }
    }

    /// Applies a merge patch to an object or one of its subresources (`status`), and returns the result.
    ///
    /// # Errors
    /// If the object does not exist, or the API server refuses or does not answer.
    pub async fn merge_patch(
        &self,
        id: &ObjectId,
        subresource: Option<&str>,
        patch: &Value,
    ) -> Result<Value, Error> {
        let failed = |cause| Error {
            attempt: Attempt::Patch,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(id)))?;
        let parameters = params::PatchParams::default();
        let patch = params::Patch::Merge(patch);
        let request = requests(kind, id);
        let request = match subresource {
            Some(subresource) => request.patch_subresource(subresource, &id.name, &parameters, &patch),
            None => request.patch(&id.name, &parameters, &patch),
        };
        let stored = self.send(id, request).await.map_err(failed)?;
        self.cache.put(&stored);
        Ok(stored)
    }
}

fn fingerprint(rendered: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    rendered.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{self, Inventory, Ledger};
    use crate::object::CONFIG_MAP;
    use axum::http::{Method, Request as HttpRequest, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    const OWNER: &str = "NetworkAddonsConfig";

    /// An API server that has a new object of the same name and owner at each deletion.
    fn restless() -> Client {
        let service = service_fn(|request: HttpRequest<Body>| async move {
            let (code, body) = if request.method() == Method::DELETE {
                let conflict = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409,
                    "message": "the UID in the precondition does not match",
                });
                (409_u16, conflict)
            } else {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": { "name": "a", "uid": "1", "ownerReferences": [{ "kind": OWNER }] },
                });
                (200, object)
            };
            let body = Body::from(body.to_string().into_bytes());
            Response::builder()
                .status(code)
                .body(body)
                .map_err(BoxError::from)
        });
        Client::new(service, "default")
    }

    // operator#89
    #[tokio::test]
    async fn delete_of_recreated_object_keeps_it_on_record() {
        let applier = Applier::new(restless(), Policy::owned_by(OWNER));
        let id = CONFIG_MAP.object(Some("ns"), "a");
        let error = applier.delete_if_owned(&id, OWNER).await.expect_err("a conflict");
        assert!(error.is_conflict(), "{error}");
        let recorded = Inventory::of([id.clone()]);
        let ledger = Ledger::new(CONFIG_MAP.object(Some("ns"), "record"));
        let pruned = inventory::prune(&applier, &ledger, &recorded, &[id], OWNER).await;
        assert_eq!((pruned.recorded, pruned.failures.len()), (recorded, 1));
    }
}
