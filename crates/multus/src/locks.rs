//! One lock per sandbox: a DEL that comes while its ADD still runs waits for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// Locks by container ID. One exists only as long as somebody holds it or waits for it.
#[derive(Debug, Default)]
pub struct SandboxLocks(Mutex<HashMap<String, Weak<Lock>>>);

impl SandboxLocks {
    /// Waits until nobody else works on the sandbox. First come, first served.
    pub async fn lock(&self, container_id: &str) -> OwnedMutexGuard<()> {
        self.of(container_id).lock_owned().await
    }

    /// The sandboxes that somebody works on or is about to.
    pub fn busy(&self) -> BTreeSet<String> {
        let locks = kube_kit::lock(&self.0);
        let busy = locks.iter().filter(|(_, lock)| lock.strong_count() > 0);
        busy.map(|(id, _)| id.clone()).collect()
    }

    fn of(&self, container_id: &str) -> Arc<Lock> {
        let mut locks = kube_kit::lock(&self.0);
        if let Some(lock) = locks.get(container_id).and_then(Weak::upgrade) {
            return lock;
        }
        // As many entries are dead at most as sandboxes were worked on since the last new one: there is nothing to
        // sweep on a timer.
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::new(()));
        locks.insert(container_id.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn one_at_a_time_and_others_undisturbed() {
        let locks = SandboxLocks::default();
        let held = locks.lock("a").await;
        assert!(locks.lock("a").now_or_never().is_none(), "the second one waits");
        assert!(locks.lock("b").now_or_never().is_some());
        assert_eq!(locks.busy(), ["a".to_owned()].into());
        drop(held);
        assert!(locks.lock("a").now_or_never().is_some());
    }

    #[tokio::test]
    async fn dead_locks_do_not_pile_up() {
        let locks = SandboxLocks::default();
        let held = locks.lock("held").await;
        for number in 0..100 {
            drop(locks.lock(&number.to_string()).await);
        }
        assert!(
            locks.0.lock().unwrap().len() <= 2,
            "the one that is held and the last one"
        );
        assert!(
            locks.lock("held").now_or_never().is_none(),
            "sweeping spares what is held"
        );
        drop(held);
    }
}
