//! Objects by key: those that a watch reported, and those that this process wrote.
//!
//! ```text
//! events ───────────────┐
//!                       ├──> entries
//! answers to our writes ┘      own: writes that the watch has not reported yet
//!                              buried: deletions that the watch has not reported yet
//! ```
//!
//! Resource versions compare as decimal integers (Kubernetes 1.35 guarantees it). Where a version is not a number, the
//! answer to a write only adds a missing object, and the next list that began after the write replaces it.

use super::health::{Failure, Trouble};
use crate::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Objects by key, as of the last event and of the last own write. Clones share the content; a read never waits for the
/// network.
pub struct Store<Key, T> {
    state: Arc<Mutex<State<Key, T>>>,
    synced: Arc<watch::Sender<bool>>,
}

struct State<Key, T> {
    entries: BTreeMap<Key, Entry<T>>,
    /// Own writes that the watch has not reported yet, by the time of the first.
    own: BTreeMap<Key, Instant>,
    /// Own deletions that the watch has not reported yet.
    buried: BTreeMap<Key, Grave>,
    listing: Option<Listing<Key>>,
    /// Number of lists so far.
    lists: u32,
    /// The watch has reported every event up to this version.
    reached: u64,
    started: Instant,
    failure: Option<Failure>,
}

struct Entry<T> {
    version: Version,
    /// Number of the last list that contained the key: a set of the listed keys would copy each of them.
    listed: u32,
    value: T,
}

struct Grave {
    uid: Box<str>,
    /// The last known version before the deletion.
    version: Version,
    /// Number of the last list that contained the key.
    listed: u32,
}

/// A resource version. Stores have thousands, and a number takes no heap.
enum Version {
    Number(u64),
    Text(Box<str>),
}

/// A list in progress.
struct Listing<Key> {
    /// Keys written since its start.
    written: BTreeSet<Key>,
}

impl<Key, T> Clone for Store<Key, T> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            synced: Arc::clone(&self.synced),
        }
    }
}

impl<Key, T> fmt::Debug for Store<Key, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("synced", &*self.synced.borrow())
            .finish_non_exhaustive()
    }
}

impl<Key: Ord + Clone, T> Store<Key, T> {
    /// An empty store that is not synced.
    pub(super) fn new() -> Self {
        let state = State {
            entries: BTreeMap::new(),
            own: BTreeMap::new(),
            buried: BTreeMap::new(),
            listing: None,
            lists: 0,
            reached: 0,
            started: Instant::now(),
            failure: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            synced: Arc::new(watch::Sender::new(false)),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Option<T>
    where
        T: Clone,
    {
        self.with(key, T::clone)
    }

    /// Reads the value of a key in place. `read` must not use the store.
    pub fn with<R>(&self, key: &Key, read: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.state).entries.get(key).map(|entry| read(&entry.value))
    }

    /// Whether the key exists.
    pub fn contains(&self, key: &Key) -> bool {
        lock(&self.state).entries.contains_key(key)
    }

    /// All keys in order.
    pub fn keys(&self) -> Vec<Key> {
        lock(&self.state).entries.keys().cloned().collect()
    }

    /// All values in the order of their keys.
    pub fn values(&self) -> Vec<T>
    where
        T: Clone,
    {
        lock(&self.state)
            .entries
            .values()
            .map(|entry| entry.value.clone())
            .collect()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        lock(&self.state).entries.len()
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete: before that, an absent key may exist.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        // It fails only without a sender, and `self` holds it.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Stores the answer to an own write of an object that the watch selects. The object stays until the watch reports
    /// a newer one, or passes this version without reporting it. Ignored if the watch is already past this version.
    pub fn put(&self, key: Key, version: &str, value: T) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let known = state.entries.get(&key);
        let is_old = match number(version) {
            Some(written) => written <= state.reached,
            None => known.is_some(),
        };
        let is_known = known.is_some_and(|known| known.version.is(version) || older(version, &known.version));
        if is_old || is_known {
            return;
        }
        if let Some(listing) = &mut state.listing {
            listing.written.insert(key.clone());
        }
        let listed = state.listed(&key);
        state.buried.remove(&key);
        state.own.entry(key.clone()).or_insert_with(Instant::now);
        state.entries.insert(key, Entry::new(version, listed, value));
    }

    /// Removes an object that this process deleted. Late events of the same object do not restore it. `version` is its
    /// last known version; `is_it` distinguishes the object from a later one with the same name.
    pub fn bury(&self, key: Key, uid: &str, version: &str, is_it: impl Fn(&T) -> bool) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        match state.entries.get(&key) {
            Some(another) if !is_it(&another.value) => return,
            // The watch has reported the deletion already, or does not select the object.
            None if number(version).is_some_and(|version| version <= state.reached) => return,
            Some(_) | None => {}
        }
        let grave = Grave {
            uid: uid.into(),
            version: Version::new(version),
            listed: state.listed(&key),
        };
        state.entries.remove(&key);
        state.own.remove(&key);
        state.buried.insert(key, grave);
    }

    /// The cause of a stale store, once that has lasted for `limit`.
    pub fn trouble(&self, limit: Duration) -> Option<Trouble> {
        let long = |since: &Instant| since.elapsed() >= limit;
        let synced = self.is_synced();
        let state = lock(&self.state);
        match &state.failure {
            Some(failure) if long(&failure.since) || (!synced && long(&state.started)) => {
                Some(failure.trouble.clone())
            }
            _ if !synced => long(&state.started).then_some(Trouble::Silent),
            _ => state.own.values().any(long).then_some(Trouble::Behind),
        }
    }

    /// Records a failed request of the watch.
    pub(super) fn failed(&self, trouble: Trouble) {
        let mut state = lock(&self.state);
        let since = state
            .failure
            .as_ref()
            .map_or_else(Instant::now, |failure| failure.since);
        state.failure = Some(Failure { since, trouble });
    }

    /// Records that the watch works again.
    pub(super) fn recovered(&self) {
        lock(&self.state).failure = None;
    }

    /// Starts a list. It overrides all earlier own deletions, because it reads the state after them.
    pub(super) fn begin(&self) {
        let mut state = lock(&self.state);
        state.buried.clear();
        state.lists = state.lists.wrapping_add(1);
        state.listing = Some(Listing {
            written: BTreeSet::new(),
        });
    }

    /// Applies an object of the watch or the list. Returns whether that is a change: neither a version older than an
    /// own write is, nor an object that was deleted. A list overrides newer entries too, apart from own writes since
    /// its start: an API server may have been restored from a backup.
    pub(super) fn insert(
        &self,
        key: Key,
        version: &str,
        uid: Option<&str>,
        value: impl FnOnce() -> T,
    ) -> bool {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let may_be_late = if let Some(listing) = &state.listing {
            let is_written = listing.written.contains(&key);
            state.list(&key);
            is_written
        } else {
            state.reached = state.reached.max(number(version).unwrap_or(0));
            true
        };
        if let Some(grave) = state.buried.get(&key) {
            if uid == Some(&*grave.uid) || older(version, &grave.version) {
                return false;
            }
            state.buried.remove(&key);
        }
        let known = state.entries.get(&key);
        if may_be_late && known.is_some_and(|known| older(version, &known.version)) {
            return false;
        }
        state.own.remove(&key);
        if known.is_some_and(|known| !version.is_empty() && known.version.is(version)) {
            return false;
        }
        let listed = match state.listing {
            Some(_) => state.lists,
            None => 0,
        };
        state.entries.insert(key, Entry::new(version, listed, value()));
        true
    }

    /// Applies a malformed object of the watch: the entry stays unchanged.
    pub(super) fn keep(&self, key: &Key) {
        let mut state = lock(&self.state);
        state.own.remove(key);
        if state.listing.is_some() {
            state.list(key);
        }
    }

    /// Applies a deletion of the watch. Returns whether that is a change: it is not if this process has created another
    /// object with the same name since.
    pub(super) fn remove(&self, key: &Key, version: Option<&str>, uid: Option<&str>) -> bool {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let version = version.unwrap_or_default();
        state.reached = state.reached.max(number(version).unwrap_or(0));
        if state
            .buried
            .get(key)
            .is_some_and(|grave| uid == Some(&*grave.uid))
        {
            state.buried.remove(key);
        }
        let known = state.entries.get(key);
        if known.is_some_and(|known| older(version, &known.version)) {
            return false;
        }
        state.own.remove(key);
        state.entries.remove(key).is_some()
    }

    /// Records that the watch has reported every event up to this version.
    pub(super) fn reach(&self, version: &str) {
        let mut state = lock(&self.state);
        state.reached = state.reached.max(number(version).unwrap_or(0));
    }

    /// Drops own writes that the watch has passed without reporting them, and returns their keys: another client
    /// deleted these objects meanwhile.
    pub(super) fn overtaken(&self) -> Vec<Key> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let is_passed = |key: &&Key| {
            let version = state.entries.get(*key).and_then(|entry| entry.version.number());
            version.is_some_and(|version| version <= state.reached)
        };
        let passed: Vec<Key> = state.own.keys().filter(is_passed).cloned().collect();
        for key in &passed {
            state.own.remove(key);
            state.entries.remove(key);
        }
        passed
    }

    /// Completes a list, as of this version. Drops the keys that it did not contain, and returns them; objects written
    /// after that version stay.
    pub(super) fn complete(&self, version: &str) -> Vec<Key> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let written = state
            .listing
            .take()
            .map(|listing| listing.written)
            .unwrap_or_default();
        let (list, listed) = (state.lists, number(version));
        let is_later = |version: &Version| Some(version.number()? > listed?);
        let outlasts = |key: &Key, entry: &Entry<T>| {
            state.own.contains_key(key) && is_later(&entry.version).unwrap_or_else(|| written.contains(key))
        };
        let gone: Vec<Key> = state
            .entries
            .iter()
            .filter(|(key, entry)| entry.listed != list && !outlasts(key, entry))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &gone {
            state.entries.remove(key);
            state.own.remove(key);
        }
        // The watch will not report a deletion before this version.
        state
            .buried
            .retain(|_, grave| grave.listed == list || is_later(&grave.version).unwrap_or(true));
        state.reached = listed.unwrap_or(0);
        drop(guard);
        self.synced.send_replace(true);
        gone
    }
}

impl<Key: Ord, T> State<Key, T> {
    /// Number of the last list that contained a key; 0 if there was none.
    fn listed(&self, key: &Key) -> u32 {
        let entry = self.entries.get(key).map(|entry| entry.listed);
        let grave = self.buried.get(key).map(|grave| grave.listed);
        entry.or(grave).unwrap_or(0)
    }

    /// Records that the current list contains a key.
    fn list(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.listed = self.lists;
        }
        if let Some(grave) = self.buried.get_mut(key) {
            grave.listed = self.lists;
        }
    }
}

impl<T> Entry<T> {
    fn new(version: &str, listed: u32, value: T) -> Self {
        Self {
            version: Version::new(version),
            listed,
            value,
        }
    }
}

impl Version {
    fn new(text: &str) -> Self {
        number(text).map_or_else(|| Self::Text(text.into()), Self::Number)
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    fn is(&self, text: &str) -> bool {
        match self {
            Self::Number(known) => number(text) == Some(*known),
            Self::Text(known) => **known == *text,
        }
    }
}

/// The number of a resource version, if it is one.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// Whether a version is known to be older than another one.
fn older(version: &str, than: &Version) -> bool {
    matches!((number(version), than.number()), (Some(version), Some(than)) if version < than)
}

#[cfg(test)]
mod tests;
