//! A work queue of a controller: each key once, with back-off after failures, for one worker or for several.

use crate::lock;
use crate::metrics::{Reconciles, Workqueue};
use linux::backoff::Backoff;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Back-off of one key: 5 ms, doubled with each failure, up to about 16 minutes by default (operator.md §3).
const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1000);
/// Pause of a key whose controller is not ready.
const UNREADY: Duration = Duration::from_millis(200);

/// A queue of keys. Clones share it. One worker at a time processes a key: a key that is added meanwhile is requeued
/// afterwards.
pub struct Queue<Key> {
    state: Arc<Mutex<State<Key>>>,
    added: Arc<Notify>,
}

struct State<Key> {
    ready: VecDeque<Key>,
    queued: BTreeMap<Key, Instant>,
    later: BTreeMap<Key, Instant>,
    failures: BTreeMap<Key, u32>,
    /// Keys in work, with the start of the work.
    working: BTreeMap<Key, Instant>,
    longest: Duration,
    metrics: Workqueue,
    /// Metrics of the reconciles, if the queue counts them.
    reconciles: Option<Reconciles>,
}

impl<Key> Clone for Queue<Key> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            added: Arc::clone(&self.added),
        }
    }
}

impl<Key> fmt::Debug for Queue<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Queue")
            .field("ready", &state.ready.len())
            .field("later", &state.later.len())
            .finish_non_exhaustive()
    }
}

impl<Key: Ord + Clone> Default for Queue<Key> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Key: Ord + Clone> Queue<Key> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::counted(Workqueue::new(""))
    }

    /// An empty queue with metrics.
    pub fn counted(metrics: Workqueue) -> Self {
        Self::of(metrics, None, LONGEST)
    }

    /// An empty queue with this maximum back-off. It counts each work on a key as a reconcile.
    pub fn of_reconciles(reconciles: Reconciles, metrics: Workqueue, longest: Duration) -> Self {
        Self::of(metrics, Some(reconciles), longest)
    }

    /// An empty queue with this maximum back-off.
    pub fn with_longest(longest: Duration) -> Self {
        Self::of(Workqueue::new(""), None, longest)
    }

    fn of(metrics: Workqueue, reconciles: Option<Reconciles>, longest: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: BTreeMap::new(),
            later: BTreeMap::new(),
            failures: BTreeMap::new(),
            working: BTreeMap::new(),
            longest,
            metrics,
            reconciles,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            added: Arc::new(Notify::new()),
        }
    }

    /// Adds a key now, unless it is ready already. Ends a back-off of that key.
    pub fn add(&self, key: Key) {
        lock(&self.state).ready(key);
        self.added.notify_one();
    }

    /// Adds a key after a delay; an earlier due time of that key is kept.
    pub fn add_after(&self, key: Key, delay: Duration) {
        lock(&self.state).delay(key, Instant::now() + delay);
        self.added.notify_one();
    }

    /// The next key; waits until there is one. The worker answers with [`Queue::succeeded`] or [`Queue::failed`], and
    /// no other worker gets the key before.
    pub async fn next(&self) -> Key {
        loop {
            let wake_at = {
                let mut state = lock(&self.state);
                state.wake(Instant::now());
                if let Some(key) = state.start(Instant::now()) {
                    return key;
                }
                state.later.values().min().copied()
            };
            match wake_at {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.added.notified() => {}
                },
                None => self.added.notified().await,
            }
        }
    }

    /// [`Queue::next`], for a controller that needs the first lists of its watches. Until `is_ready`, it puts each key
    /// back for a moment: a watch whose kind is not served is ready without a change that would add a key.
    pub async fn next_when(&self, is_ready: impl Fn() -> bool) -> Key {
        loop {
            let key = self.next().await;
            if is_ready() {
                return key;
            }
            self.succeeded(&key);
            self.add_after(key, UNREADY);
        }
    }

    /// Ends the work with success, and resets the back-off of this key.
    pub fn succeeded(&self, key: &Key) {
        let mut state = lock(&self.state);
        state.end(key, true, Instant::now());
        state.failures.remove(key);
        drop(state);
        self.added.notify_one();
    }

    /// Ends the work with a failure: the key is requeued with back-off. Returns the delay.
    pub fn failed(&self, key: Key) -> Duration {
        self.failed_for(key, Duration::ZERO)
    }

    /// Ends the work with a failure: the key is requeued with back-off, after `least` at the earliest. Returns the
    /// delay.
    pub fn failed_for(&self, key: Key, least: Duration) -> Duration {
        let mut state = lock(&self.state);
        state.end(&key, false, Instant::now());
        state.metrics.retried();
        let longest = state.longest;
        let failures = state.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let pause = Backoff::new(FIRST, longest).after(*failures).max(least);
        state.delay(key, Instant::now() + pause);
        drop(state);
        self.added.notify_one();
        pause
    }
}

impl<Key: Ord + Clone> State<Key> {
    fn ready(&mut self, key: Key) {
        self.later.remove(&key);
        if self.queued.contains_key(&key) {
            return;
        }
        self.queued.insert(key.clone(), Instant::now());
        self.metrics.added();
        self.ready.push_back(key);
    }

    /// Starts work on the first ready key that is not in work.
    fn start(&mut self, now: Instant) -> Option<Key> {
        let place = self
            .ready
            .iter()
            .position(|key| !self.working.contains_key(key))?;
        let key = self.ready.remove(place)?;
        let since = self.queued.remove(&key).unwrap_or(now);
        self.metrics.started(now - since);
        if let Some(reconciles) = &self.reconciles {
            reconciles.started();
        }
        self.working.insert(key.clone(), now);
        Some(key)
    }

    fn end(&mut self, key: &Key, succeeded: bool, now: Instant) {
        let Some(since) = self.working.remove(key) else {
            return;
        };
        self.metrics.ended(now - since);
        if let Some(reconciles) = &self.reconciles {
            reconciles.ended(succeeded, now - since);
        }
    }

    fn delay(&mut self, key: Key, at: Instant) {
        if self.queued.contains_key(&key) {
            return;
        }
        let planned = self.later.entry(key).or_insert(at);
        *planned = at.min(*planned);
    }

    /// Makes keys ready whose delay is over.
    fn wake(&mut self, now: Instant) {
        let due: Vec<Key> = self
            .later
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.ready(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn key_added_several_times_is_processed_once() {
        let queue = Queue::new();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        assert!(queue.next().now_or_never().is_none());
        queue.add("a");
        assert!(queue.next().now_or_never().is_none(), "another worker has it");
        queue.succeeded(&"b");
        assert!(queue.next().now_or_never().is_none());
        queue.succeeded(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_worker_gets_key_once_it_is_free() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.add("a");
        let (next, ()) = tokio::join!(queue.next(), async { queue.succeeded(&key) });
        assert_eq!(next, "a");
        queue.succeeded(&next);
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_put_back_until_controller_is_ready() {
        let queue = Queue::new();
        queue.add("a");
        let looks = Cell::new(0);
        let is_ready = || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        };
        let before = Instant::now();
        assert_eq!(queue.next_when(is_ready).await, "a");
        assert_eq!(looks.get(), 3);
        assert!(before.elapsed() >= 2 * UNREADY);
        // The key is in work: another worker waits for it.
        queue.add("a");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_is_bounded() {
        let queue = Queue::with_longest(Duration::from_millis(10));
        queue.add("a");
        let mut pauses = Vec::new();
        for least in [0, 0, 0, 70] {
            let key = queue.next().await;
            pauses.push(queue.failed_for(key, Duration::from_millis(least)).as_millis());
        }
        assert_eq!(pauses, [5, 10, 10, 70]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_key_is_requeued_with_backoff_until_success() {
        let queue = Queue::new();
        queue.add("a");
        let mut key = queue.next().await;
        for expected in [5, 10, 20] {
            let before = Instant::now();
            assert_eq!(queue.failed(key).as_millis(), expected);
            queue.add_after("b", Duration::from_millis(1));
            let other = queue.next().await;
            assert_eq!(other, "b");
            queue.succeeded(&other);
            let waited = queue.next().now_or_never();
            assert!(waited.is_none(), "not before its pause is over");
            queue.add_after("a", Duration::from_hours(1));
            key = queue.next().await;
            assert!(before.elapsed().as_millis() >= expected);
        }
        queue.succeeded(&key);
        queue.add("a");
        let key = queue.next().await;
        assert_eq!(queue.failed(key).as_millis(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn add_ends_backoff() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.failed(key);
        queue.add("a");
        let key = queue.next().now_or_never();
        assert_eq!(key, Some("a"));
        queue.succeeded(&"a");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(queue.next().now_or_never().is_none(), "the pause is gone");
    }
}
