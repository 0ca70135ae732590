//! Guarded watches: one malformed object does not kill the stream, a lost connection heals by itself, and what is
//! known is kept in a store that is read without waiting.
//!
//! ```text
//! list (pages of 50) ─┐                    ┌─> Store: key -> trimmed value, read synchronously
//!                     ├─> guard ─> project ┤
//! watch (from there) ─┘                    └─> Change: which key, in order
//! ```

mod guard;
mod store;

pub use guard::{DeserializeGuard, Invalid};
pub use store::Store;

use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

/// Objects asked for at a time: the first list decides how much memory the process holds ever after.
const PAGE: u32 = 50;

/// How often to ask for a kind that the API server does not serve. [`Watch::retry`] asks at once.
const ABSENT: Duration = Duration::from_mins(5);

/// Which objects to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// A label selector, such as `app=multus`.
    pub labels: Option<String>,
    /// A field selector, such as `spec.nodeName=node1`.
    pub fields: Option<String>,
    /// How often to ask for a kind that the API server does not serve; every five minutes where nothing is said.
    pub absent: Option<Duration>,
    /// Objects asked for at a time by the first list; 50 where nothing is said.
    pub page: Option<u32>,
}

impl Options {
    /// All objects.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only objects with these labels.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects with these fields.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Asks so often for a kind that the API server does not serve.
    #[must_use]
    pub fn absent(mut self, pause: Duration) -> Self {
        self.absent = Some(pause);
        self
    }

    /// Only the object of this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.fields(format!("metadata.name={name}"))
    }

    /// So many objects at a time: more are listed faster and take more memory meanwhile, less so the less of them is
    /// read.
    #[must_use]
    pub fn page(mut self, objects: u32) -> Self {
        self.page = Some(objects);
        self
    }

    fn config(&self) -> watcher::Config {
        let mut config = watcher::Config::default().page_size(self.page.unwrap_or(PAGE));
        config.label_selector.clone_from(&self.labels);
        config.field_selector.clone_from(&self.fields);
        config
    }
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<Key> {
    /// The object is new or different; the store has it.
    Applied(Key),
    /// The object is gone, from the store too.
    Deleted(Key),
    /// The object does not have the form of its kind. The store keeps what it knew before, if anything.
    Invalid(Key, String),
    /// All objects that existed when the watch began (or began anew after a long silence) have been told about.
    Synced,
}

/// A running watch: a stream of changes with a store behind it. Ends when dropped.
#[derive(Debug)]
pub struct Watch<Key, T> {
    store: Store<Key, T>,
    changes: mpsc::UnboundedReceiver<Change<Key>>,
    retry: Arc<Notify>,
    /// Ends with the watch.
    task: Task,
}

impl<Key, T> Watch<Key, T> {
    /// What is known now. The store outlives the watch, but is then no longer kept up to date.
    pub fn store(&self) -> Store<Key, T> {
        self.store.clone()
    }

    /// The next change; waits for it.
    pub async fn next(&mut self) -> Option<Change<Key>> {
        self.changes.recv().await
    }

    /// A way to end the watch, whoever holds it: its stream of changes ends too.
    pub fn stop(&self) -> Stop {
        Stop(self.task.0.abort_handle())
    }

    /// Asks the API server now, when the watch waits because the kind was not served or the last request failed.
    pub fn retry(&self) {
        self.retry.notify_one();
    }

    /// For those who only read the store: changes are no longer collected.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.changes.close();
        while self.changes.try_recv().is_ok() {}
        self
    }
}

impl<Key, T> Stream for Watch<Key, T> {
    type Item = Change<Key>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.changes.poll_recv(cx)
    }
}

impl<Key, T> Unpin for Watch<Key, T> {}

/// A way to end a watch that somebody else holds.
#[derive(Debug, Clone)]
pub struct Stop(AbortHandle);

impl Stop {
    /// Ends it.
    pub fn stop(&self) {
        self.0.abort();
    }
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a watch on the current runtime. `key` names an object by its metadata; `project` keeps of an object what its
/// reader needs, so that the rest is freed at once.
pub fn start<K, Key, T>(
    api: Api<DeserializeGuard<K>>,
    options: &Options,
    key: impl Fn(&ObjectMeta) -> Key + Send + 'static,
    project: impl FnMut(K) -> T + Send + 'static,
) -> Watch<Key, T>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone,
    Key: Ord + Clone + Debug + Send + Sync + 'static,
    T: Send + 'static,
{
    let what = api.resource_url().to_owned();
    let events = watcher::watcher(api, options.config());
    run(what, options.absent.unwrap_or(ABSENT), events, key, project)
}

/// Like [`start`], of metadata alone: the API server sends nothing else of the objects.
pub fn start_metadata<Key, T>(
    api: Api<PartialObjectMeta<DynamicObject>>,
    options: &Options,
    key: impl Fn(&ObjectMeta) -> Key + Send + 'static,
    project: impl FnMut(PartialObjectMeta<DynamicObject>) -> T + Send + 'static,
) -> Watch<Key, T>
where
    Key: Ord + Clone + Debug + Send + Sync + 'static,
    T: Send + 'static,
{
    let what = api.resource_url().to_owned();
    let events = watcher::watcher(api, options.config()).map(|event| event.map(guarded));
    run(what, options.absent.unwrap_or(ABSENT), events, key, project)
}

/// Metadata needs no guard: whatever an object is, it has that.
fn guarded<K>(event: Event<K>) -> Event<DeserializeGuard<K>> {
    let guard = |object| DeserializeGuard(Ok(object));
    match event {
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(guard(object)),
        Event::Apply(object) => Event::Apply(guard(object)),
        Event::Delete(object) => Event::Delete(guard(object)),
        Event::InitDone => Event::InitDone,
    }
}

fn run<K, Key, T>(
    what: String,
    absent: Duration,
    events: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send + 'static,
    key: impl Fn(&ObjectMeta) -> Key + Send + 'static,
    project: impl FnMut(K) -> T + Send + 'static,
) -> Watch<Key, T>
where
    K: kube::Resource + Send + 'static,
    Key: Ord + Clone + Debug + Send + Sync + 'static,
    T: Send + 'static,
{
    let store = Store::new();
    let (sender, changes) = mpsc::unbounded_channel();
    let retry = Arc::new(Notify::new());
    let mut follower = Follower {
        what: what.clone(),
        store: store.clone(),
        sender,
        key,
        project,
    };
    let wake = Arc::clone(&retry);
    let task = tokio::spawn(async move {
        let mut backoff = DefaultBackoff::default();
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that has only begun is no success: its next page may fail again and again.
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        backoff.reset();
                    }
                    follower.follow(event);
                }
                Err(error) => {
                    let pause = pause_after(&what, &error, absent, &mut backoff);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = wake.notified() => {}
                    }
                }
            }
        }
    });
    Watch {
        store,
        changes,
        retry,
        task: Task(task),
    }
}

/// A typed watch keyed by namespace and name.
pub fn start_named<K, T>(
    api: Api<DeserializeGuard<K>>,
    options: &Options,
    project: impl FnMut(K) -> T + Send + 'static,
) -> Watch<Name, T>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone,
    T: Send + 'static,
{
    start(api, options, Name::of, project)
}

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

impl Name {
    /// As given.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name that stands in an object's metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

/// How long to wait after an error, told to the log.
fn pause_after(
    what: &str,
    error: &watcher::Error,
    absent: Duration,
    backoff: &mut DefaultBackoff,
) -> Duration {
    let is_absent =
        matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404);
    if is_absent {
        tracing::debug!(what, "not served, watching later");
        return absent;
    }
    let pause = backoff.next().unwrap_or(ABSENT);
    tracing::warn!(what, error = %cause(error), retry = ?pause, "watch failed");
    pause
}

fn cause(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => crate::client::message(error),
        other => other.to_string(),
    }
}

/// Carries events into the store and tells about what changed.
struct Follower<Key, T, KeyOf, Project> {
    what: String,
    store: Store<Key, T>,
    sender: mpsc::UnboundedSender<Change<Key>>,
    key: KeyOf,
    project: Project,
}

impl<Key, T, KeyOf, Project> Follower<Key, T, KeyOf, Project>
where
    Key: Ord + Clone + Debug,
{
    fn follow<K>(&mut self, event: Event<DeserializeGuard<K>>)
    where
        K: kube::Resource,
        KeyOf: Fn(&ObjectMeta) -> Key,
        Project: FnMut(K) -> T,
    {
        match event {
            Event::Init => self.store.begin(),
            Event::InitApply(object) | Event::Apply(object) => self.apply(object),
            Event::Delete(object) => {
                let metadata = kube::Resource::meta(&object);
                let key = (self.key)(metadata);
                if self.store.remove(&key, metadata.resource_version.as_deref()) {
                    self.tell(Change::Deleted(key));
                }
            }
            Event::InitDone => {
                for key in self.store.complete() {
                    self.tell(Change::Deleted(key));
                }
                self.tell(Change::Synced);
            }
        }
    }

    fn apply<K>(&mut self, object: DeserializeGuard<K>)
    where
        K: kube::Resource,
        KeyOf: Fn(&ObjectMeta) -> Key,
        Project: FnMut(K) -> T,
    {
        let metadata = kube::Resource::meta(&object);
        let key = (self.key)(metadata);
        let version = metadata.resource_version.clone().unwrap_or_default();
        match object.0 {
            Ok(object) => {
                let project = &mut self.project;
                if self.store.insert(key.clone(), &version, || project(object)) {
                    self.tell(Change::Applied(key));
                }
            }
            Err(invalid) => {
                tracing::warn!(
                    what = self.what,
                    ?key,
                    error = invalid.error,
                    "malformed object, left aside"
                );
                self.store.keep(&key);
                self.tell(Change::Invalid(key, invalid.error));
            }
        }
    }

    fn tell(&self, change: Change<Key>) {
        // Nobody listens when only the store is wanted.
        let _ = self.sender.send(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_again_and_again_is_asked_for_ever_less_often() {
        let lists = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&lists);
        // As the stream of a watch is while listing fails: each attempt begins with `Init`.
        let attempts = futures::stream::unfold(false, move |begun| {
            let counted = Arc::clone(&counted);
            async move {
                if !begun {
                    return Some((Ok(Event::<DeserializeGuard<DynamicObject>>::Init), true));
                }
                counted.fetch_add(1, Ordering::Relaxed);
                Some((Err(watcher::Error::NoResourceVersion), false))
            }
        });
        let _watch = run("things".to_owned(), ABSENT, attempts, Name::of, drop);
        tokio::time::sleep(Duration::from_mins(10)).await;
        // Every half minute at last, each pause up to twice as long by chance.
        let lists = lists.load(Ordering::Relaxed);
        assert!((10..40).contains(&lists), "{lists} lists in ten minutes");
    }
}
