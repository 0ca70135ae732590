//! Live objects of many kinds as JSON, kept by watches: what [`crate::apply`] compares with instead of asking.

use crate::lock;
use crate::object::{Kind, ObjectId};
use crate::watch::{self, Change, Options, Stop, Store, Watch};
use futures::StreamExt;
use futures::stream::SelectAll;
use kube::Client;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
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
    /// Whether [`Cache::is_synced`] waits for it.
    awaited: bool,
    stop: Stop,
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
    /// watch has to be driven by whoever holds it.
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
        let watch = Self::start(client, kind, namespace, options, trim);
        self.add(kind, namespace, trim, true, &watch);
        watch
    }

    /// Like [`Cache::watch`], for a kind that may not be served: nobody waits for its first list. Until that is
    /// complete, nothing is known of the kind.
    pub fn watch_if_served(
        &self,
        client: Client,
        kind: Kind,
        namespace: Option<&str>,
        options: &Options,
        trim: fn(&mut Value),
    ) -> Watch<ObjectId, Object> {
        let watch = Self::start(client, kind, namespace, options, trim);
        self.add(kind, namespace, trim, false, &watch);
        watch
    }

    /// Like [`Cache::watch`], everywhere, of metadata alone: for objects of which that they are there says enough. Their
    /// annotations are dropped too: one of them may hold a copy of the whole object.
    pub fn watch_metadata(&self, client: Client, kind: Kind, options: &Options) -> Watch<ObjectId, Object> {
        let project = move |object: PartialObjectMeta<DynamicObject>| {
            let mut metadata = DynamicObject::new("", &kind.api_resource());
            metadata.metadata = ObjectMeta {
                annotations: None,
                ..object.metadata
            };
            Arc::new(value(metadata, kind))
        };
        let api = kube::Api::all_with(client, &kind.api_resource());
        let watch = watch::start_metadata(api, options, key(kind), project);
        self.add(kind, None, keep_all, true, &watch);
        watch
    }

    fn start(
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
        let project = move |object: DynamicObject| {
            let mut object = value(object, kind);
            trim(&mut object);
            Arc::new(object)
        };
        watch::start::<DynamicObject, _, _>(api, options, key(kind), project)
    }

    fn add(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        trim: fn(&mut Value),
        awaited: bool,
        watch: &Watch<ObjectId, Object>,
    ) {
        lock(&self.0).push(Watched {
            kind,
            namespace: namespace.map(str::to_owned),
            store: watch.store(),
            trim,
            awaited,
            stop: watch.stop(),
        });
    }

    /// Ends the watches of a kind, and forgets what is known of it.
    pub fn forget(&self, kind: Kind) {
        lock(&self.0).retain(|watched| {
            let other = watched.kind != kind;
            if !other {
                watched.stop.stop();
            }
            other
        });
    }

    /// Whether the first lists of all watched kinds are complete, apart from kinds that may not be served. Another kind
    /// that is not served never completes.
    pub fn is_synced(&self) -> bool {
        lock(&self.0)
            .iter()
            .all(|watched| !watched.awaited || watched.store.is_synced())
    }

    /// Whether a kind is known to be served: it is watched, and its first list is complete.
    pub fn serves(&self, kind: Kind) -> bool {
        let watched = lock(&self.0);
        let mut watches = watched.iter().filter(|watched| watched.kind == kind).peekable();
        watches.peek().is_some() && watches.all(|watched| watched.store.is_synced())
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

/// How the objects of a kind are named by their metadata.
fn key(kind: Kind) -> impl Fn(&ObjectMeta) -> ObjectId + Send + 'static {
    move |metadata| {
        kind.object(
            metadata.namespace.as_deref(),
            metadata.name.as_deref().unwrap_or_default(),
        )
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
        fields.shift_remove("status");
    }
}

fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
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
