//! Threads for what blocks: plugins that are waited for, namespaces that are visited, files that are synced.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Stack of a worker, bytes: the deepest thing on it is a JSON parser, of multus or of a plugin. Only touched pages count.
const STACK: usize = 512 * 1024;
/// How long a thread without work waits for some.
const KEEP: Duration = Duration::from_secs(10);

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

/// A bounded number of pieces of work at once, each on a thread for itself.
#[derive(Debug, Clone)]
pub struct Workers {
    free: Arc<Semaphore>,
    threads: Arc<Threads>,
}

impl Workers {
    /// As many at once as `limit`; more work waits in the order it came.
    pub fn new(limit: usize) -> Self {
        Self::keeping(limit, KEEP)
    }

    fn keeping(limit: usize, keep: Duration) -> Self {
        let threads = Threads {
            keep,
            waiting: Mutex::default(),
            given: Condvar::new(),
        };
        Self {
            free: Arc::new(Semaphore::new(limit)),
            threads: Arc::new(threads),
        }
    }

    /// Does the work on a thread for itself and waits for it. The work is done to its end even when nobody waits any
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
        let work = move || {
            let _permit = permit;
            work()
        };
        self.beside(work).end().await
    }

    /// Begins a part of a piece of work that goes on beside it, and so has its place among those that are done at once. It
    /// is done to its end even when nobody waits any more.
    pub fn beside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Beside<T> {
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            // Nobody may wait any more.
            let _ = sender.send(work());
        };
        let given = self.threads.give(Box::new(work));
        Beside(given.is_ok().then_some(receiver))
    }
}

/// Work that was begun; `None` where no thread could be had for it.
#[derive(Debug)]
pub struct Beside<T>(Option<oneshot::Receiver<T>>);

impl<T> Beside<T> {
    /// Waits for its end.
    pub async fn end(self) -> Result<T, Error> {
        let end = self.0.ok_or(Error::NoThread)?;
        end.await.map_err(|_| Error::Panicked)
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads that stay for a while after their work: where processors are busy a new one is the last that gets to run, one
/// that slept among the first. Work leaves a thread as it was, or ends it by a panic.
#[derive(Debug)]
struct Threads {
    keep: Duration,
    waiting: Mutex<Waiting>,
    given: Condvar,
}

/// Work without a thread, and threads without work.
#[derive(Default)]
struct Waiting {
    work: VecDeque<Work>,
    threads: usize,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("work", &self.work.len())
            .field("threads", &self.threads)
            .finish()
    }
}

impl Threads {
    /// Has a thread do the work, a new one if none waits.
    fn give(self: &Arc<Self>, work: Work) -> io::Result<()> {
        let mut waiting = kube_kit::lock(&self.waiting);
        if waiting.threads > waiting.work.len() {
            waiting.work.push_back(work);
            self.given.notify_one();
            return Ok(());
        }
        drop(waiting);
        let threads = Arc::clone(self);
        let thread = thread::Builder::new().name("attach".into()).stack_size(STACK);
        thread.spawn(move || threads.work(work)).map(drop)
    }

    fn work(&self, first: Work) {
        linux::thread::spare_this_thread();
        let mut next = Some(first);
        while let Some(work) = next {
            work();
            next = self.next();
        }
    }

    /// The next work; `None` when there was none for long.
    fn next(&self) -> Option<Work> {
        let mut waiting = kube_kit::lock(&self.waiting);
        waiting.threads += 1;
        let none = |waiting: &mut Waiting| waiting.work.is_empty();
        let (mut waiting, _) = self
            .given
            .wait_timeout_while(waiting, self.keep, none)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.threads -= 1;
        waiting.work.pop_front()
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
    async fn a_thread_is_used_again_unless_its_work_panicked() {
        let workers = Workers::new(1);
        let thread = || thread::current().id();
        let mut first = workers.run(thread).await;
        until(|| kube_kit::lock(&workers.threads.waiting).threads == 1);
        assert_eq!(workers.run(thread).await, first);
        for _ in 0..2 {
            until(|| kube_kit::lock(&workers.threads.waiting).threads == 1);
            assert_eq!(
                workers.run(|| -> u8 { panic!("on purpose") }).await,
                Err(Error::Panicked)
            );
            let other = workers.run(thread).await;
            assert_ne!(other, first);
            first = other;
        }
    }

    #[tokio::test]
    async fn a_thread_without_work_ends() {
        let workers = Workers::keeping(4, Duration::from_millis(1));
        for number in 0..4 {
            assert_eq!(workers.run(move || number).await, Ok(number));
        }
        // Each thread holds on to it.
        until(|| Arc::strong_count(&workers.threads) == 1);
        assert_eq!(kube_kit::lock(&workers.threads.waiting).threads, 0);
    }

    fn until(condition: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_mins(1));
            thread::yield_now();
        }
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
