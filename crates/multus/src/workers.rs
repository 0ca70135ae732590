//! Threads for what blocks: plugins that are waited for, namespaces that are visited, files that are synced.

use crate::metrics::Overdue;
use futures::FutureExt as _;
use kube_kit::places::{Places, Taken};
use kube_kit::process::contained;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Stack of a worker, bytes: the deepest thing on it is a JSON parser, of multus or of a plugin. Only touched pages count.
const STACK: usize = 512 * 1024;
/// How long a thread without work waits for some.
const KEEP: Duration = Duration::from_secs(10);

/// How long work may take: as long as the shim waits for ADD. Each program that a plugin starts has
/// [a limit of its own](cni::exec::RESIDENT_LIMIT), so that work that takes longer hangs.
pub const PATIENCE: Duration = Duration::from_mins(4);

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No thread could be had.
    #[error("no thread for the work")]
    NoThread,
    /// The work panicked; it alone ends.
    #[error("the work ended unexpectedly")]
    Panicked,
    /// The work took too long and was given up. Its thread can't be ended and may still finish it.
    #[error("the work was given up after {} s", .0.as_secs())]
    Overdue(Duration),
}

/// A place for a piece of work, held by the namespace of its pod.
pub type Place = Taken<String>;

/// A bounded number of pieces of work at once, each on a thread for itself.
#[derive(Debug, Clone)]
pub struct Workers {
    places: Places<String>,
    threads: Arc<Threads>,
    given_up: Arc<GivenUp>,
    patience: Duration,
}

/// Counts work that was given up and still runs.
#[derive(Debug)]
struct GivenUp {
    now: Mutex<usize>,
    /// Beyond this number, work that is given up keeps its place: the number of threads stays bounded.
    most: usize,
    counted: Overdue,
}

/// Who holds the place of a piece of work.
#[derive(Debug)]
enum Turn {
    /// The work itself.
    Working(Place),
    /// Others: the work was given up.
    GivenUp,
    /// Others: the work has ended.
    Over,
}

/// Ends the turn when the work ends, also by a panic.
struct End(Arc<Mutex<Turn>>, Arc<GivenUp>);

impl Drop for End {
    fn drop(&mut self) {
        let turn = mem::replace(&mut *kube_kit::lock(&self.0), Turn::Over);
        if matches!(turn, Turn::GivenUp) {
            *kube_kit::lock(&self.1.now) -= 1;
            self.1.counted.ended();
        }
    }
}

impl GivenUp {
    /// Gives the work's place to others.
    fn add(&self, turn: &Mutex<Turn>) {
        self.counted.given_up();
        let mut now = kube_kit::lock(&self.now);
        let mut turn = kube_kit::lock(turn);
        if *now >= self.most || matches!(*turn, Turn::Over) {
            return;
        }
        if let Turn::Working(place) = mem::replace(&mut *turn, Turn::GivenUp) {
            *now += 1;
            self.counted.began();
            drop((turn, now));
            drop(place);
        }
    }
}

impl Workers {
    /// As many at once as `limit`; more work [waits](Places). Work that takes longer than `patience` is given up and
    /// counted.
    pub fn new(limit: usize, patience: Duration, counted: Overdue) -> Self {
        Self::keeping(limit, KEEP, patience, counted)
    }

    fn keeping(limit: usize, keep: Duration, patience: Duration, counted: Overdue) -> Self {
        let threads = Threads {
            keep,
            waiting: Mutex::default(),
            given: Condvar::new(),
        };
        Self {
            places: Places::new(limit),
            threads: Arc::new(threads),
            given_up: Arc::new(GivenUp {
                now: Mutex::new(0),
                most: limit,
                counted,
            }),
            patience,
        }
    }

    /// Does an owner's work on a thread for itself and waits for it. The work is done to its end even when nobody waits
    /// any more. Work that takes too long gives its place back.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.run_at(self.place(owner).await, work).await
    }

    /// Waits for a place for an owner's work.
    pub async fn place(&self, owner: &str) -> Place {
        self.places.take(&owner.to_owned()).await
    }

    /// [`Workers::run`] at a place that was waited for.
    pub async fn run_at<T: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::new(Mutex::new(Turn::Working(place)));
        let end = End(Arc::clone(&turn), Arc::clone(&self.given_up));
        let work = move || {
            let _end = end;
            work()
        };
        let Ok(ended) = timeout(self.patience, self.beside(work).end()).await else {
            tracing::error!(
                "a plugin hangs: its call is given up after {} s",
                self.patience.as_secs()
            );
            self.given_up.add(&turn);
            return Err(Error::Overdue(self.patience));
        };
        ended
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
/// that slept among the first. Work leaves a thread as it was, or panics: then the thread ends, and nothing else does.
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
            let Some(Ok(())) = contained(async { work() }).now_or_never() else {
                return;
            };
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
    use std::os::unix::process::ExitStatusExt as _;

    /// Both sides of this are the same test: the process that ends is one of its own.
    #[test]
    fn panic_of_work_ends_no_process_that_panics_end() {
        // multus#121
        const ROLE: &str = "WEFT_TEST_TO_END";
        if std::env::var_os(ROLE).is_some() {
            kube_kit::process::end_on_panic();
            let main = async {
                let workers = Workers::new(1, PATIENCE, Overdue::default());
                let panicked = workers.run("ns", || -> u8 { panic!("of a plugin") }).await;
                println!("survived: {panicked:?}");
                let _ = tokio::spawn(async { panic!("of a watch") }).await;
                println!("survived both");
            };
            kube_kit::process::run(main).unwrap();
            return;
        }
        let name = "workers::tests::panic_of_work_ends_no_process_that_panics_end";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(told.contains("survived: Err(Panicked)"), "{ended:?}");
        assert!(!told.contains("survived both"), "{told}");
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
    }

    #[tokio::test]
    async fn a_panic_ends_that_work_alone() {
        let workers = Workers::new(1, PATIENCE, Overdue::default());
        let panicked = workers.run("ns", || -> u8 { panic!("on purpose") }).await;
        assert_eq!(panicked, Err(Error::Panicked));
        assert_eq!(workers.run("ns", || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_thread_is_used_again_unless_its_work_panicked() {
        let workers = Workers::new(1, PATIENCE, Overdue::default());
        let thread = || thread::current().id();
        let mut first = workers.run("ns", thread).await;
        until(|| kube_kit::lock(&workers.threads.waiting).threads == 1);
        assert_eq!(workers.run("ns", thread).await, first);
        for _ in 0..2 {
            until(|| kube_kit::lock(&workers.threads.waiting).threads == 1);
            assert_eq!(
                workers.run("ns", || -> u8 { panic!("on purpose") }).await,
                Err(Error::Panicked)
            );
            let other = workers.run("ns", thread).await;
            assert_ne!(other, first);
            first = other;
        }
    }

    #[tokio::test]
    async fn a_thread_without_work_ends() {
        let workers = Workers::keeping(4, Duration::from_millis(1), PATIENCE, Overdue::default());
        for number in 0..4 {
            assert_eq!(workers.run("ns", move || number).await, Ok(number));
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
        let workers = Workers::new(1, PATIENCE, Overdue::default());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(workers.run("ns", move || wait.recv().is_ok()));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(workers.run("ns", || true));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(workers.places.free(), 0);
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(second.await, Ok(true));
    }

    #[tokio::test]
    async fn work_that_hangs_gives_its_place_back() {
        // multus#109
        let counted = Overdue::default();
        let patience = Duration::from_millis(20);
        let workers = Workers::keeping(1, KEEP, patience, counted.clone());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let hung = workers.run("a", move || wait.recv().is_ok()).await;
        assert_eq!(hung, Err(Error::Overdue(patience)));
        assert_eq!((workers.places.free(), counted.now()), (1, 1));
        // There is a bound to that: the next one keeps its place.
        let (again, wait) = std::sync::mpsc::channel::<()>();
        let hung = workers.run("a", move || wait.recv().is_ok()).await;
        assert_eq!(hung, Err(Error::Overdue(patience)));
        assert_eq!((workers.places.free(), counted.now()), (0, 1));
        release.send(()).unwrap();
        again.send(()).unwrap();
        until(|| workers.places.free() == 1 && counted.now() == 0);
        assert_eq!(workers.run("a", || 7).await, Ok(7));
    }
}
