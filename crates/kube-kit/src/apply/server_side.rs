//! Server-side apply: for objects that several clients write, each its own fields.
//!
//! The API server merges, and records the owner of each field; fields that are not rendered have other owners, and
//! stay. Nothing is sent if the live object has all rendered fields and the same rendering was sent before: the API
//! server removes fields of an earlier rendering when the new one is sent.

use super::{Applied, Applier, Attempt, Cause, Error, fingerprint, requests};
use crate::cache::Lookup;
use crate::document::text;
use crate::lock;
use crate::merge::cover;
use crate::object::{Kind, ObjectId};
use kube::Client;
use kube::core::params::{Patch, PatchParams};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;

/// An object, its subresource, and the field manager.
type Key = (ObjectId, Option<&'static str>, String);

/// Renderings that were sent.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<HashMap<Key, Entry>>);

#[derive(Debug, Clone)]
struct Entry {
    /// The hash of the rendering.
    rendering: u64,
    /// Paths at which the answer differed from the rendering: the server or a webhook changed them, and would do so
    /// again.
    uncovered: Vec<String>,
}

/// Sends an object as the field manager `manager`, who takes over fields of other managers, and returns the stored
/// object. For controllers with watches of their own: it compares with no live object, and sends always.
///
/// # Errors
/// If the API server refuses the object or does not answer.
pub async fn apply_always(
    client: &Client,
    kind: &Kind,
    manager: &str,
    object: &Value,
) -> Result<Value, kube::Error> {
    let parameters = PatchParams::apply(manager).force();
    let api = kind.api(client, Some(text(object, "/metadata/namespace")));
    let name = text(object, "/metadata/name");
    let stored = api.patch(name, &parameters, &Patch::Apply(object)).await?;
    serde_json::to_value(stored).map_err(kube::Error::SerdeError)
}

impl Applier {
    /// Sends an object, or a subresource of it (`status`), as the field manager `manager`, who takes over fields of
    /// other managers. Nothing is sent if that would change nothing. The first rendering in each process is always
    /// sent, so that the API server removes fields of an earlier version.
    ///
    /// # Errors
    /// If the object is refused or does not exist, or another client keeps reverting it.
    pub async fn apply_as(
        &self,
        manager: &str,
        rendered: &Value,
        subresource: Option<&'static str>,
    ) -> Result<Applied, Error> {
        let id = ObjectId::of(rendered);
        let failed = |cause| Error {
            attempt: Attempt::Apply,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(&id)))?;
        let known = match self.cache.lookup(&id) {
            Lookup::Present(object) => Some(object),
            // A watch may select only objects with our labels.
            Lookup::Absent | Lookup::Unknown => None,
        };
        let rendering = fingerprint(&content(rendered));
        let key = (id.clone(), subresource, manager.to_owned());
        if let Some(live) = &known {
            let before = lock(&self.sent.0).get(&key).cloned();
            let uncovered = cover::uncovered(rendered, live);
            let is_known = |path: &String| before.iter().any(|before| before.uncovered.contains(path));
            if before
                .as_ref()
                .is_some_and(|before| before.rendering == rendering)
                && uncovered.iter().all(is_known)
            {
                return Ok(Applied::Unchanged);
            }
        }
        self.may_write(kind, &id, rendered, rendering)
            .await
            .map_err(failed)?;
        let stored = self
            .patch_as(manager, kind, &id, rendered, subresource)
            .await
            .map_err(failed)?;
        let entry = Entry {
            rendering,
            uncovered: cover::uncovered(rendered, &stored),
        };
        lock(&self.sent.0).insert(key, entry);
        let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        let applied = match &known {
            // An apply that changes nothing is not a write.
            Some(live) if version(live) == version(&stored) => Applied::Unchanged,
            Some(_) => Applied::Updated,
            None => Applied::Created,
        };
        if applied != Applied::Unchanged {
            self.wrote(&id);
        }
        self.cache.put(&stored);
        Ok(applied)
    }

    /// Applies a strategic merge patch to an object, and returns the result.
    ///
    /// # Errors
    /// If the object does not exist, or the API server refuses or does not answer.
    pub async fn strategic_patch(&self, id: &ObjectId, patch: &Value) -> Result<Value, Error> {
        let failed = |cause| Error {
            attempt: Attempt::Patch,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(id)))?;
        let parameters = PatchParams::default();
        let request = requests(kind, id).patch(&id.name, &parameters, &Patch::Strategic(patch));
        let stored = self.send(id, request).await.map_err(failed)?;
        self.cache.put(&stored);
        Ok(stored)
    }

    /// [`Applier::strategic_patch`] that prepares an object for the apply of its rendering. It counts as a write of the
    /// rendering: another client that keeps reverting it causes a back-off.
    ///
    /// # Errors
    /// If the object does not exist, the API server refuses or does not answer, or another client keeps reverting it.
    pub async fn prepare(&self, rendered: &Value, patch: &Value) -> Result<(), Error> {
        let id = ObjectId::of(rendered);
        let failed = |cause| Error {
            attempt: Attempt::Patch,
            id: id.clone(),
            cause,
        };
        let kind = id.known_kind().ok_or_else(|| failed(Cause::unknown_kind(&id)))?;
        let rendering = fingerprint(&content(rendered));
        let verdict = self.may_write(kind, &id, rendered, rendering).await;
        verdict.map_err(failed)?;
        self.strategic_patch(&id, patch).await?;
        self.wrote(&id);
        Ok(())
    }

    async fn patch_as(
        &self,
        manager: &str,
        kind: Kind,
        id: &ObjectId,
        rendered: &Value,
        subresource: Option<&str>,
    ) -> Result<Value, Cause> {
        let parameters = PatchParams::apply(manager).force();
        let patch = Patch::Apply(rendered);
        let request = requests(kind, id);
        let request = match subresource {
            Some(subresource) => request.patch_subresource(subresource, &id.name, &parameters, &patch),
            None => request.patch(&id.name, &parameters, &patch),
        };
        self.send(id, request).await
    }
}

/// An object without the version that a write expects: the same content sent again is the same write.
fn content(rendered: &Value) -> Cow<'_, Value> {
    if rendered.pointer("/metadata/resourceVersion").is_none() {
        return Cow::Borrowed(rendered);
    }
    let mut content = rendered.clone();
    if let Some(metadata) = content.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("resourceVersion");
    }
    Cow::Owned(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expected_version_is_not_part_of_the_content() {
        let object = |metadata: Value| json!({ "kind": "ConfigMap", "metadata": metadata });
        let of = |metadata| fingerprint(&content(&object(metadata)));
        let plain = of(json!({ "name": "a" }));
        assert_eq!(of(json!({ "name": "a", "resourceVersion": "7" })), plain);
        assert_ne!(of(json!({ "name": "b", "resourceVersion": "7" })), plain);
    }
}
