//! Threads for what blocks: plugins that are waited for, namespaces that are visited, files that are synced.

use std::sync::Arc;
use std::thread;
use tokio::sync::{Semaphore, oneshot};

/// Stack of a worker, bytes: the deepest thing on it is a JSON parser, of multus or of a plugin. Only touched pages count.
const STACK: usize = 512 * 1024;

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No thread could be had.
    #[error("no thread for the work")]
    NoThread,
    /// The work panicked; it alone ends.
    #[error("the work ended unexpectedly")]
    Panicked,
}

/// A bounded number of threads. A thread lives for one piece of work: starting it costs microseconds, an idle one
/// memory for ever.
#[derive(Debug, Clone)]
pub struct Workers {
    free: Arc<Semaphore>,
}

impl Workers {
    /// As many at once as `limit`; more work waits in the order it came.
    pub fn new(limit: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(limit)),
        }
    }

    /// Does the work on a thread of its own and waits for it. The work is done to its end even when nobody waits any
    /// more.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free)
            .acquire_owned()
            .await
            .map_err(|_| Error::NoThread)?;
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new()
            .name("attach".into())
            .stack_size(STACK)
            .spawn(move || {
                linux::thread::spare_this_thread();
                let _permit = permit;
                // Nobody may wait any more.
                let _ = sender.send(work());
            })
            .map_err(|_| Error::NoThread)?;
        receiver.await.map_err(|_| Error::Panicked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_panic_ends_that_work_alone() {
        let workers = Workers::new(1);
        let panicked = workers.run(|| -> u8 { panic!("on purpose") }).await;
        assert_eq!(panicked, Err(Error::Panicked));
        assert_eq!(workers.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn no_more_at_once_than_allowed() {
        // multus#69 (the bound)
        let workers = Workers::new(1);
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(workers.run(move || wait.recv().is_ok()));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(workers.run(|| true));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(workers.free.available_permits(), 0);
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(second.await, Ok(true));
    }
}
