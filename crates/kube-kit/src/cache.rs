//! Live objects of many kinds as JSON, kept by watches: what [`crate::apply`] compares with instead of asking.

use crate::lock;
use crate::object::{Kind, ObjectId};
use crate::watch::{self, Change, Options, Store, Watch};
use futures::StreamExt;
use futures::stream::SelectAll;
use kube::Client;
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::Value;
use std::fmt;
use std::sync::{Arc, Mutex};

/// An object as it was last told about, shared and never changed.
pub type Object = Arc<Value>;

/// What the cache knows about an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    /// Nothing: the kind is not watched there, or its first list is not complete.
    Unknown,
    /// There is none (among those that the watch selects).
    Absent,
    /// This.
    Present(Object),
}

/// Stores of several kinds behind one look-up. Clones share them.
#[derive(Clone, Default)]
pub struct Cache(Arc<Mutex<Vec<Watched>>>);

#[derive(Clone)]
struct Watched {
    kind: Kind,
    namespace: Option<String>,
    store: Store<ObjectId, Object>,
    trim: fn(&mut Value),
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&lock(&self.0).len()).finish()
    }
}

impl Cache {
    /// A cache that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches a kind, in one namespace or everywhere, and looks its objects up in the watch's store from now on. The
    /// watch has to be driven by whoever holds it; when it is dropped, call [`Cache::forget`].
    ///
    /// `managedFields` are dropped from every object; `trim` may drop more.
    pub fn watch(
        &self,
        client: Client,
        kind: Kind,
        namespace: Option<&str>,
        options: &Options,
        trim: fn(&mut Value),
    ) -> Watch<ObjectId, Object> {
        let resource = kind.api_resource();
        let api = match namespace {
            Some(namespace) => kube::Api::namespaced_with(client, namespace, &resource),
            None => kube::Api::all_with(client, &resource),
        };
        let key = move |metadata: &ObjectMeta| {
            kind.object(
                metadata.namespace.as_deref(),
                metadata.name.as_deref().unwrap_or_default(),
            )
        };
        let project = move |object: DynamicObject| {
            let mut object = value(object, kind);
            trim(&mut object);
            Arc::new(object)
        };
        let watch = watch::start::<DynamicObject, _, _>(api, options, key, project);
        lock(&self.0).push(Watched {
            kind,
            namespace: namespace.map(str::to_owned),
            store: watch.store(),
            trim,
        });
        watch
    }

    /// Forgets what is known of a kind.
    pub fn forget(&self, kind: Kind) {
        lock(&self.0).retain(|watched| watched.kind != kind);
    }

    /// Whether the first lists of all watched kinds are complete. A kind that is not served never completes.
    pub fn is_synced(&self) -> bool {
        lock(&self.0).iter().all(|watched| watched.store.is_synced())
    }

    /// What is known about an object.
    pub fn lookup(&self, id: &ObjectId) -> Lookup {
        let watched: Vec<_> = self
            .covering(id)
            .into_iter()
            .filter(|watched| watched.store.is_synced())
            .collect();
        if watched.is_empty() {
            return Lookup::Unknown;
        }
        watched
            .iter()
            .find_map(|watched| watched.store.get(id))
            .map_or(Lookup::Absent, Lookup::Present)
    }

    /// All known objects of a kind.
    pub fn list(&self, kind: Kind) -> Vec<Object> {
        let watched: Vec<_> = lock(&self.0)
            .iter()
            .filter(|watched| watched.kind == kind)
            .cloned()
            .collect();
        watched
            .iter()
            .flat_map(|watched| watched.store.values())
            .collect()
    }

    /// Takes in the answer to a write of our own.
    pub(crate) fn put(&self, object: &Value) {
        let id = ObjectId::of(object);
        let version = object
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for watched in self.covering(&id) {
            // Only what passed the watch's selector before: whether a new object passes it, the watch knows.
            if watched.store.contains(&id) {
                let mut object = object.clone();
                drop_managed_fields(&mut object);
                (watched.trim)(&mut object);
                watched.store.put(id.clone(), version, Arc::new(object));
            }
        }
    }

    fn covering(&self, id: &ObjectId) -> Vec<Watched> {
        let covers = |watched: &&Watched| {
            watched.kind.kind == id.kind
                && watched.kind.group == id.group
                && (watched.namespace.is_none() || watched.namespace == id.namespace)
        };
        lock(&self.0).iter().filter(covers).cloned().collect()
    }
}

/// Changes of many watches as one stream. Ends never as long as it holds a watch.
#[derive(Default)]
pub struct Changes(SelectAll<Watch<ObjectId, Object>>);

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changes").field(&self.0.len()).finish()
    }
}

impl Changes {
    /// A stream of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a watch.
    pub fn push(&mut self, watch: Watch<ObjectId, Object>) {
        self.0.push(watch);
    }

    /// Makes every watch that waits ask the API server now, for instance because a definition was installed.
    pub fn retry(&self) {
        for watch in &self.0 {
            watch.retry();
        }
    }

    /// The next change of any watch; waits for ever when there is none.
    pub async fn next(&mut self) -> Change<ObjectId> {
        match self.0.next().await {
            Some(change) => change,
            None => futures::future::pending().await,
        }
    }
}

/// Keeps everything but `managedFields`.
pub fn keep_all(_: &mut Value) {}

/// Drops the status too, for kinds whose status nobody reads.
pub fn drop_status(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
}

fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// The object as JSON; items of a list come without `apiVersion` and `kind`.
fn value(mut object: DynamicObject, kind: Kind) -> Value {
    object.metadata.managed_fields = None;
    object.types = Some(kube::core::TypeMeta {
        api_version: kind.api_version(),
        kind: kind.kind.to_owned(),
    });
    // It was JSON a moment ago: writing it cannot fail.
    serde_json::to_value(object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn nothing_is_known_of_what_is_not_watched() {
        let cache = Cache::new();
        assert_eq!(
            cache.lookup(&object::NAMESPACE.object(None, "a")),
            Lookup::Unknown
        );
        assert!(cache.list(object::NAMESPACE).is_empty());
        assert!(cache.is_synced());
    }
}
