//! One lock per sandbox: a DEL waits for a running ADD of the same sandbox.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// Locks by container ID. A lock exists only while a task holds it or waits for it.
#[derive(Debug, Default)]
pub(crate) struct SandboxLocks(Mutex<HashMap<String, Weak<Lock>>>);

impl SandboxLocks {
    /// Waits for the sandbox's lock, in order of arrival.
    pub(crate) async fn lock(&self, container_id: &str) -> OwnedMutexGuard<()> {
        self.of(container_id).lock_owned().await
    }

    /// The sandboxes whose lock is held or waited for.
    pub(crate) fn busy(&self) -> BTreeSet<String> {
        let locks = kube_kit::lock(&self.0);
        let busy = locks.iter().filter(|(_, lock)| lock.strong_count() > 0);
        busy.map(|(id, _)| id.clone()).collect()
    }

    fn of(&self, container_id: &str) -> Arc<Lock> {
        let mut locks = kube_kit::lock(&self.0);
        if let Some(lock) = locks.get(container_id).and_then(Weak::upgrade) {
            return lock;
        }
        // Removes unused locks. No timer is needed: they cannot outnumber the concurrent calls.
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
    async fn lock_blocks_only_its_sandbox() {
        let locks = SandboxLocks::default();
        let held = locks.lock("a").await;
        assert!(locks.lock("a").now_or_never().is_none(), "the second one waits");
        assert!(locks.lock("b").now_or_never().is_some());
        assert_eq!(locks.busy(), ["a".to_owned()].into());
        drop(held);
        assert!(locks.lock("a").now_or_never().is_some());
    }

    #[tokio::test]
    async fn unused_locks_are_removed() {
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
