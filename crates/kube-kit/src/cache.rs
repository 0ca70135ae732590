//! Live objects of many kinds as JSON, kept current by watches: [`crate::apply`] compares with them instead of sending
//! requests.
//!
//! The cache contains the writes of its own process at once: an object that it created is present, and an object that
//! it deleted is absent, even while the watch lags.

use crate::document::text;
use crate::lock;
use crate::object::{Kind, ObjectId};
use crate::watch::{self, Change, Options, Stop, Store, Trouble, Watch};
use futures::StreamExt;
use futures::stream::SelectAll;
use kube::Client;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a watch may fail before conditions name it: an API server may restart meanwhile.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Part of a message about a missing right.
pub const REFUSED: &str = "not allowed to";

/// An object in its last observed state, shared and immutable.
pub type Object = Arc<Value>;

/// The cached state of an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    /// The kind is not watched there, or its first list is not complete.
    Unknown,
    /// It does not exist among the objects that the watch selects.
    Absent,
    /// The cached object.
    Present(Object),
}

/// Stores of several kinds behind one look-up. Clones share them.
#[derive(Clone, Default)]
pub struct Cache(Arc<Mutex<Vec<Watched>>>);

#[derive(Clone)]
struct Watched {
    kind: Kind,
    namespace: Option<String>,
    options: Options,
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
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches a kind, in one namespace or everywhere, and looks up its objects in the watch's store from now on. The
    /// caller has to poll the watch.
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
        self.start(client, kind, namespace, options, trim, true)
    }

    /// Like [`Cache::watch`], for a kind that may not be served: [`Cache::is_synced`] does not wait for its first list.
    /// Until that is complete, look-ups of the kind are `Unknown`.
    pub fn watch_if_served(
        &self,
        client: Client,
        kind: Kind,
        namespace: Option<&str>,
        options: &Options,
        trim: fn(&mut Value),
    ) -> Watch<ObjectId, Object> {
        self.start(client, kind, namespace, options, trim, false)
    }

    /// Like [`Cache::watch`], everywhere, of metadata alone: for objects whose existence is enough. Their annotations
    /// are dropped too, because one of them may hold a copy of the whole object.
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
        self.add(kind, None, options, keep_metadata, true, &watch);
        watch
    }

    fn start(
        &self,
        client: Client,
        kind: Kind,
        namespace: Option<&str>,
        options: &Options,
        trim: fn(&mut Value),
        awaited: bool,
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
        let watch = watch::start::<DynamicObject, _, _>(api, options, key(kind), project);
        self.add(kind, namespace, options, trim, awaited, &watch);
        watch
    }

    fn add(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        options: &Options,
        trim: fn(&mut Value),
        awaited: bool,
        watch: &Watch<ObjectId, Object>,
    ) {
        lock(&self.0).push(Watched {
            kind,
            namespace: namespace.map(str::to_owned),
            options: options.clone(),
            store: watch.store(),
            trim,
            awaited,
            stop: watch.stop(),
        });
    }

    /// Ends the watches of a kind, and drops its objects.
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

    /// Like [`Cache::is_synced`], but these kinds count as complete if the API server does not serve them: their objects
    /// do not exist.
    pub fn is_synced_without(&self, kinds: &[Kind]) -> bool {
        let is_absent = |watched: &Watched| {
            kinds.contains(&watched.kind) && watched.store.trouble(Duration::ZERO) == Some(Trouble::NotServed)
        };
        lock(&self.0)
            .iter()
            .all(|watched| !watched.awaited || watched.store.is_synced() || is_absent(watched))
    }

    /// The resource of each watch, its namespace if it has one, and whether it is up to date. A kind that is not served
    /// counts as an error only if it is awaited.
    pub(crate) fn health(&self, timeout: Duration) -> Vec<(String, String, bool)> {
        let health = |watched: &Watched| {
            let is_up = match watched.store.trouble(timeout) {
                None => true,
                Some(Trouble::NotServed) => !watched.awaited,
                Some(_) => false,
            };
            let namespace = watched.namespace.clone().unwrap_or_default();
            (resource(watched.kind), namespace, is_up)
        };
        lock(&self.0).iter().map(health).collect()
    }

    /// Whether a kind is known to be served: it is watched, and its first list is complete.
    pub fn serves(&self, kind: Kind) -> bool {
        let watched = lock(&self.0);
        let mut watches = watched.iter().filter(|watched| watched.kind == kind).peekable();
        watches.peek().is_some() && watches.all(|watched| watched.store.is_synced())
    }

    /// Looks up an object.
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

    /// All cached objects of a kind.
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

    /// Stores the answer to a write of this process, in the stores of all watches that select the object.
    pub(crate) fn put(&self, object: &Value) {
        let id = ObjectId::of(object);
        let version = text(object, "/metadata/resourceVersion");
        for watched in self.covering(&id) {
            if watched.options.select(object) == Some(true) || watched.store.contains(&id) {
                let mut object = object.clone();
                drop_managed_fields(&mut object);
                (watched.trim)(&mut object);
                watched.store.put(id.clone(), version, Arc::new(object));
            }
        }
    }

    /// Removes an object that this process deleted. `last` is the object before that.
    pub(crate) fn bury(&self, id: &ObjectId, last: &Value) {
        let (uid, version) = (
            text(last, "/metadata/uid"),
            text(last, "/metadata/resourceVersion"),
        );
        for watched in self.covering(id) {
            let is_it = |object: &Object| text(object, "/metadata/uid") == uid;
            watched.store.bury(id.clone(), uid, version, is_it);
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

impl Watched {
    fn blocked(&self, timeout: Duration) -> Option<Blocked> {
        Some(Blocked {
            resource: resource(self.kind),
            namespace: self.namespace.clone(),
            trouble: self.store.trouble(timeout)?,
            name: self.options.name().map(str::to_owned),
        })
    }
}

/// The awaited watches of these caches that have been refused, failing or stale for `timeout`, each once.
pub fn blocked<'a>(caches: impl IntoIterator<Item = &'a Cache>, timeout: Duration) -> Vec<Blocked> {
    let mut all = BTreeSet::new();
    for cache in caches {
        let watched = lock(&cache.0);
        let awaited = watched.iter().filter(|watched| watched.awaited);
        all.extend(awaited.filter_map(|watched| watched.blocked(timeout)));
    }
    // A right to the whole kind covers each object of it.
    let is_covered = |blocked: &&Blocked| {
        let whole = Blocked {
            name: None,
            ..(*blocked).clone()
        };
        blocked.name.is_some() && all.contains(&whole)
    };
    all.iter()
        .filter(|blocked| !is_covered(blocked))
        .cloned()
        .collect()
}

/// A watch that is refused, fails or is stale. Its text names the missing right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blocked {
    /// Resource and group, as in the rules of roles: `daemonsets.apps`.
    resource: String,
    namespace: Option<String>,
    trouble: Trouble,
    /// Set if a single object is watched.
    name: Option<String>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut what = self.resource.clone();
        if let Some(name) = &self.name {
            what.push_str(&format!(" {name}"));
        }
        if let Some(namespace) = &self.namespace {
            what.push_str(&format!(" in namespace {namespace}"));
        }
        match &self.trouble {
            Trouble::Refused(verb) => write!(f, "{REFUSED} {verb} {what}"),
            Trouble::NotServed => write!(f, "the API server does not serve {what}"),
            Trouble::Failed(verb, error) => write!(f, "cannot {verb} {what}: {error}"),
            Trouble::Silent => write!(f, "the API server has not answered the list of {what}"),
            Trouble::Behind => write!(f, "the watch of {what} is stale: it lacks recent writes"),
        }
    }
}

/// Resource and group, as in the rules of roles: `daemonsets.apps`.
fn resource(kind: Kind) -> String {
    if kind.group.is_empty() {
        return kind.plural.to_owned();
    }
    format!("{}.{}", kind.plural, kind.group)
}

/// The function that identifies the objects of a kind by their metadata.
fn key(kind: Kind) -> impl Fn(&ObjectMeta) -> ObjectId + Send + 'static {
    move |metadata| {
        kind.object(
            metadata.namespace.as_deref(),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

/// Merged stream of the changes of several watches. It never ends while it has a watch.
#[derive(Default)]
pub struct Changes(SelectAll<Watch<ObjectId, Object>>);

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changes").field(&self.0.len()).finish()
    }
}

impl Changes {
    /// A stream without watches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a watch.
    pub fn push(&mut self, watch: Watch<ObjectId, Object>) {
        self.0.push(watch);
    }

    /// Makes every waiting watch send its request now, for instance because a definition was installed.
    pub fn retry(&self) {
        for watch in &self.0 {
            watch.retry();
        }
    }

    /// The next change of any watch; pending for ever without watches.
    pub async fn next(&mut self) -> Change<ObjectId> {
        match self.0.next().await {
            Some(change) => change,
            None => futures::future::pending().await,
        }
    }
}

/// Keeps everything but `managedFields`.
pub fn keep_all(_: &mut Value) {}

/// Drops the status too, for kinds whose status is not read.
pub fn drop_status(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
    }
}

/// Keeps kind and metadata alone, without annotations.
fn keep_metadata(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|key, _| ["apiVersion", "kind", "metadata"].contains(&key.as_str()));
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("annotations");
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
    // The object was parsed from JSON, so its serialization cannot fail.
    serde_json::to_value(object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn lookup_of_unwatched_kind_is_unknown() {
        let cache = Cache::new();
        assert_eq!(
            cache.lookup(&object::NAMESPACE.object(None, "a")),
            Lookup::Unknown
        );
        assert!(cache.list(object::NAMESPACE).is_empty());
        assert!(cache.is_synced());
    }

    #[test]
    fn blocked_watch_names_missing_right() {
        let blocked = |kind, namespace: Option<&str>, name: Option<&str>, trouble| Blocked {
            resource: resource(kind),
            namespace: namespace.map(str::to_owned),
            trouble,
            name: name.map(str::to_owned),
        };
        let definitions = object::CUSTOM_RESOURCE_DEFINITION;
        for (blocked, expected) in [
            (
                blocked(definitions, None, None, Trouble::Refused("list")),
                "not allowed to list customresourcedefinitions.apiextensions.k8s.io",
            ),
            (
                blocked(object::SECRET, Some("ns"), Some("s"), Trouble::Refused("watch")),
                "not allowed to watch secrets s in namespace ns",
            ),
            (
                blocked(
                    object::ROLE,
                    Some("ns"),
                    None,
                    Trouble::Failed("list", "no leader".to_owned()),
                ),
                "cannot list roles.rbac.authorization.k8s.io in namespace ns: no leader",
            ),
        ] {
            assert_eq!(blocked.to_string(), expected);
        }
    }
}
