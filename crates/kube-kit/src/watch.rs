//! Guarded watches: a malformed object does not end the stream, a lost connection is replaced, and the objects are in a
//! store that is read without waiting.
//!
//! ```text
//! list (pages of 50) ─┐                    ┌─> Store: key -> trimmed value, read synchronously
//!                     ├─> guard ─> project ┤     ▲
//! watch (from there) ─┘                    │     └── answers to our own writes
//!                                          └─> Change: which key, in order
//! ```

mod events;
mod guard;
mod health;
mod options;
mod store;
mod waking;

pub use guard::{DeserializeGuard, Invalid};
pub use health::Trouble;
pub use options::Options;
pub use store::Store;
pub use waking::{Waking, has_begun};

use events::Event;

use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{DefaultBackoff, Error};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

/// Retry interval of a kind that the API server does not serve. [`Watch::retry`] retries at once.
const ABSENT: Duration = Duration::from_mins(5);

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<Key> {
    /// The object is new or different; the store has it.
    Applied(Key),
    /// The object is gone, from the store too.
    Deleted(Key),
    /// The object does not match its kind's schema. The store keeps the previous value, if it has one.
    Invalid(Key, String),
    /// All objects of the list that started the watch (or restarted it after an interruption) have been reported.
    Synced,
}

/// A running watch: a stream of changes with a store behind it. It ends when dropped.
#[derive(Debug)]
pub struct Watch<Key, T> {
    store: Store<Key, T>,
    changes: mpsc::UnboundedReceiver<Change<Key>>,
    retry: Arc<Notify>,
    /// Ends with the watch.
    task: Task,
}

impl<Key, T> Watch<Key, T> {
    /// The store of the watch. It outlives the watch, but is not updated any more then.
    pub fn store(&self) -> Store<Key, T> {
        self.store.clone()
    }

    /// The next change; waits for it.
    pub async fn next(&mut self) -> Option<Change<Key>> {
        self.changes.recv().await
    }

    /// A handle that ends the watch and its stream of changes.
    pub fn stop(&self) -> Stop {
        Stop(self.task.0.abort_handle())
    }

    /// Sends the request now, if the watch waits because the kind was not served or the last request failed.
    pub fn retry(&self) {
        self.retry.notify_one();
    }

    /// Discards changes, for readers of the store alone.
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

/// A handle that ends a watch.
#[derive(Debug, Clone)]
pub struct Stop(AbortHandle);

impl Stop {
    /// Ends the watch.
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

/// Starts a watch on the current runtime. `key` identifies an object by its metadata; `project` keeps the parts of an
/// object that its reader needs, so that the rest is freed at once.
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
    let events = events::events(api, options.list(), options.watch());
    run(what, options.absent.unwrap_or(ABSENT), events, key, project)
}

/// Like [`start`], of metadata alone: the API server sends nothing else.
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
    let events = events::events(api, options.list(), options.watch());
    let events = events.map(|event| event.map(guarded));
    run(what, options.absent.unwrap_or(ABSENT), events, key, project)
}

/// Metadata needs no guard: every object has it.
fn guarded<K>(event: Event<K>) -> Event<DeserializeGuard<K>> {
    let guard = |object| DeserializeGuard(Ok(object));
    match event {
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(guard(object)),
        Event::InitDone(version) => Event::InitDone(version),
        Event::Started => Event::Started,
        Event::Apply(object) => Event::Apply(guard(object)),
        Event::Delete(object) => Event::Delete(guard(object)),
        Event::Bookmark(version) => Event::Bookmark(version),
    }
}

fn run<K, Key, T>(
    what: String,
    absent: Duration,
    events: impl Stream<Item = Result<Event<DeserializeGuard<K>>, Error>> + Send + 'static,
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
                    // A list that has only begun is not a success: its next page may fail again and again. Nor is a
                    // watch that has reported nothing yet.
                    if !matches!(event, Event::Init | Event::InitApply(_) | Event::Started) {
                        backoff.reset();
                    }
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        follower.store.recovered();
                    }
                    follower.follow(event);
                }
                Err(error) => {
                    follower.store.failed(Trouble::of(&error));
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
    /// Makes a name of its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The name in an object's metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

/// Delay before the list that replaces a watch whose resource version has expired, as after a restart of the API
/// server.
const EXPIRED: Duration = Duration::from_secs(1);

/// The delay after an error, which is logged.
fn pause_after(what: &str, error: &Error, absent: Duration, backoff: &mut DefaultBackoff) -> Duration {
    if matches!(error, Error::InitialListFailed(_)) && health::code(error) == 404 {
        tracing::debug!(what, "kind is not served, retrying later");
        return absent;
    }
    if matches!(error, Error::WatchError(_)) && health::code(error) == 410 {
        // The API server answers, so the back-off of an outage does not apply.
        tracing::info!(what, "the version of the watch has expired, listing again");
        return EXPIRED;
    }
    let pause = backoff.next().unwrap_or(ABSENT);
    tracing::warn!(what, error = health::cause(error), retry = ?pause, "watch failed");
    pause
}

/// Applies events to the store, and reports the changes.
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
            Event::InitApply(object) => self.apply(object),
            Event::InitDone(version) => {
                self.tell_deleted(self.store.complete(&version));
                self.tell(Change::Synced);
            }
            Event::Started => {}
            Event::Apply(object) => {
                self.apply(object);
                self.tell_deleted(self.store.overtaken());
            }
            Event::Delete(object) => {
                let metadata = kube::Resource::meta(&object);
                let key = (self.key)(metadata);
                let version = metadata.resource_version.as_deref();
                if self.store.remove(&key, version, metadata.uid.as_deref()) {
                    self.tell(Change::Deleted(key));
                }
                self.tell_deleted(self.store.overtaken());
            }
            Event::Bookmark(version) => {
                self.store.reach(&version);
                self.tell_deleted(self.store.overtaken());
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
        let uid = metadata.uid.clone();
        match object.0 {
            Ok(object) => {
                let project = &mut self.project;
                let news = self
                    .store
                    .insert(key.clone(), &version, uid.as_deref(), || project(object));
                if news {
                    self.tell(Change::Applied(key));
                }
            }
            Err(invalid) => {
                tracing::warn!(
                    what = self.what,
                    ?key,
                    error = invalid.error,
                    "malformed object, ignored"
                );
                self.store.keep(&key);
                self.tell(Change::Invalid(key, invalid.error));
            }
        }
    }

    fn tell_deleted(&self, keys: Vec<Key>) {
        for key in keys {
            self.tell(Change::Deleted(key));
        }
    }

    fn tell(&self, change: Change<Key>) {
        // It fails without a receiver, if only the store is used.
        let _ = self.sender.send(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn expired_watch_is_listed_again_without_backoff_of_outage() {
        let mut backoff = DefaultBackoff::default();
        let unreachable = Error::NoResourceVersion;
        for _ in 0..8 {
            pause_after("things", &unreachable, ABSENT, &mut backoff);
        }
        let status =
            |code: u16| serde_json::from_value(serde_json::json!({ "code": code, "message": "" })).unwrap();
        let expired = Error::WatchError(Box::new(status(410)));
        assert_eq!(pause_after("things", &expired, ABSENT, &mut backoff), EXPIRED);
        let failed = Error::WatchError(Box::new(status(500)));
        assert!(pause_after("things", &failed, ABSENT, &mut backoff) > EXPIRED * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_list_is_retried_with_backoff() {
        let lists = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&lists);
        // The stream of a watch while lists fail: each attempt starts with `Init`.
        let attempts = futures::stream::unfold(false, move |begun| {
            let counted = Arc::clone(&counted);
            async move {
                if !begun {
                    return Some((Ok(Event::<DeserializeGuard<DynamicObject>>::Init), true));
                }
                counted.fetch_add(1, Ordering::Relaxed);
                Some((Err(Error::NoResourceVersion), false))
            }
        });
        let _watch = run("things".to_owned(), ABSENT, attempts, Name::of, drop);
        tokio::time::sleep(Duration::from_mins(10)).await;
        // Every half minute at the end, each delay with a jitter up to its double.
        let lists = lists.load(Ordering::Relaxed);
        assert!((10..40).contains(&lists), "{lists} lists in ten minutes");
    }
}
