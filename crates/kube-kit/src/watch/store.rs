//! What a watch knows.

use crate::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Objects by key, as of the last event. Clones share the content; reading never waits for the network.
pub struct Store<Key, T> {
    state: Arc<Mutex<State<Key, T>>>,
    synced: Arc<watch::Sender<bool>>,
}

struct State<Key, T> {
    entries: BTreeMap<Key, Entry<T>>,
    /// Keys seen since the list began, while one is under way.
    listing: Option<BTreeSet<Key>>,
    /// The newest version that the stream has told about.
    newest: u64,
}

struct Entry<T> {
    version: Box<str>,
    value: T,
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
            listing: None,
            newest: 0,
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

    /// Whether there is such a key.
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

    /// How many objects there are.
    pub fn len(&self) -> usize {
        lock(&self.state).entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete: before that, a missing key means nothing.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Takes in the answer to a write of our own, so that it is known before the watch tells about it. Ignored when
    /// the watch is already past it.
    pub fn put(&self, key: Key, version: &str, value: T) {
        let mut state = lock(&self.state);
        if number(version) > state.newest {
            state.entries.insert(
                key,
                Entry {
                    version: version.into(),
                    value,
                },
            );
        }
    }

    /// A list begins.
    pub(super) fn begin(&self) {
        lock(&self.state).listing = Some(BTreeSet::new());
    }

    /// An object was told about. Whether that is news: what is older than the answer to a write of our own is none. A
    /// list is believed whatever it says, for an API server may have been restored to what it was.
    pub(super) fn insert(&self, key: Key, version: &str, value: impl FnOnce() -> T) -> bool {
        let mut state = lock(&self.state);
        if let Some(seen) = &mut state.listing {
            seen.insert(key.clone());
        }
        state.newest = state.newest.max(number(version));
        let listing = state.listing.is_some();
        let known = state.entries.get(&key).is_some_and(|entry| {
            let same = !version.is_empty() && *entry.version == *version;
            same || (!listing && number(version) < number(&entry.version))
        });
        if !known {
            state.entries.insert(
                key,
                Entry {
                    version: version.into(),
                    value: value(),
                },
            );
        }
        !known
    }

    /// An object was told about that can't be read: whatever is known of it stays.
    pub(super) fn keep(&self, key: &Key) {
        if let Some(seen) = &mut lock(&self.state).listing {
            seen.insert(key.clone());
        }
    }

    /// An object is gone. Whether it was known: it is not when we have made another one of its name since.
    pub(super) fn remove(&self, key: &Key, version: Option<&str>) -> bool {
        let version = version.map_or(0, number);
        let mut state = lock(&self.state);
        state.newest = state.newest.max(version);
        let newer = |entry: &Entry<T>| version > 0 && version < number(&entry.version);
        if state.entries.get(key).is_some_and(newer) {
            return false;
        }
        state.entries.remove(key).is_some()
    }

    /// A list is complete: returns the keys that it did not contain, and drops them.
    pub(super) fn complete(&self) -> Vec<Key> {
        let mut state = lock(&self.state);
        let seen = state.listing.take().unwrap_or_default();
        let gone: Vec<Key> = state
            .entries
            .keys()
            .filter(|key| !seen.contains(*key))
            .cloned()
            .collect();
        for key in &gone {
            state.entries.remove(key);
        }
        drop(state);
        self.synced.send_replace(true);
        gone
    }
}

/// Resource versions of one API server are growing numbers; one that is not counts as oldest.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(entries: &[(&str, &str)]) -> Store<String, u8> {
        let store = Store::new();
        store.begin();
        for (key, version) in entries {
            assert!(store.insert((*key).to_owned(), version, || 0));
        }
        store.complete();
        store
    }

    #[test]
    fn a_new_list_tells_about_what_is_new_and_what_is_gone() {
        let store = store(&[("a", "1"), ("b", "2")]);
        assert!(store.is_synced());
        store.begin();
        assert!(
            !store.insert("a".to_owned(), "1", || 1),
            "the same version is no news"
        );
        assert!(store.insert("c".to_owned(), "3", || 1));
        assert_eq!(store.complete(), ["b"]);
        assert_eq!(store.keys(), ["a", "c"]);
        assert_eq!(store.get(&"a".to_owned()), Some(0));
    }

    #[test]
    fn an_object_that_turned_malformed_is_kept_as_it_was() {
        let store = store(&[("a", "1")]);
        store.begin();
        store.keep(&"a".to_owned());
        assert!(store.complete().is_empty());
        assert!(store.contains(&"a".to_owned()));
    }

    #[test]
    fn the_answer_to_a_write_counts_until_the_watch_is_past_it() {
        let store = store(&[("a", "5")]);
        store.put("a".to_owned(), "6", 6);
        assert_eq!(store.get(&"a".to_owned()), Some(6));
        assert!(
            !store.insert("a".to_owned(), "6", || 7),
            "our own write is no news"
        );
        assert!(store.remove(&"a".to_owned(), Some("8")));
        store.put("a".to_owned(), "7", 7);
        assert_eq!(store.get(&"a".to_owned()), None, "deleted after that write");
    }

    #[test]
    fn what_the_watch_tells_late_is_not_believed_any_more() {
        let store = store(&[("a", "5")]);
        store.put("a".to_owned(), "8", 8);
        assert!(!store.insert("a".to_owned(), "6", || 6), "from before our write");
        assert!(
            !store.remove(&"a".to_owned(), Some("7")),
            "what we wrote is another one"
        );
        assert_eq!(store.get(&"a".to_owned()), Some(8));
        // A new list counts, whatever it says: the API server may have been restored to what it was.
        store.begin();
        assert!(store.insert("a".to_owned(), "4", || 4));
        store.complete();
        assert_eq!(store.get(&"a".to_owned()), Some(4));
    }

    #[tokio::test]
    async fn waiting_for_the_first_list_ends_with_it() {
        let store = Store::<String, u8>::new();
        assert!(!store.is_synced());
        store.begin();
        let waiting = store.clone();
        let wait = tokio::spawn(async move { waiting.synced().await });
        store.complete();
        wait.await.expect("the wait ends");
    }
}
