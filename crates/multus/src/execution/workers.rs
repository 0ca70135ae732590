//! Threads for blocking work: plugin calls, namespace switches, file syncs.

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

/// Stack size of a worker in bytes. JSON parsers need the most. Only touched pages use memory.
const STACK: usize = 512 * 1024;
/// How long an idle thread is kept.
const KEEP: Duration = Duration::from_secs(10);

/// Timeout of a job, equal to the shim's timeout of ADD. Each program that a plugin starts has [its own
/// limit](cni::exec::RESIDENT_LIMIT), so a job that takes longer hangs.
pub const JOB_TIMEOUT: Duration = Duration::from_mins(4);

/// A job did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No thread could be created.
    #[error("no thread for the work")]
    NoThread,
    /// The job panicked. Other jobs are not affected.
    #[error("the work ended unexpectedly")]
    Panicked,
    /// The job took too long and was given up. Its thread may still finish it.
    #[error("the work was given up after {} s", .0.as_secs())]
    Overdue(Duration),
}

/// A slot for a job, charged to the namespace of its pod.
pub(crate) type Slot = Taken<String>;

/// Runs a bounded number of concurrent jobs, each on its own thread.
#[derive(Debug, Clone)]
pub struct Workers {
    slots: Places<String>,
    threads: Arc<Threads>,
    given_up: Arc<GivenUp>,
    timeout: Duration,
}

/// Counts jobs that were given up and still run.
#[derive(Debug)]
struct GivenUp {
    now: Mutex<usize>,
    /// Beyond this number, a job that is given up keeps its slot, which bounds the number of threads.
    limit: usize,
    counted: Overdue,
}

/// The state of a job's slot.
#[derive(Debug)]
enum SlotState {
    /// The job holds it.
    Working(Slot),
    /// Released, because the job was given up.
    GivenUp,
    /// Released, because the job ended.
    Over,
}

/// Marks the job as ended when it is dropped, also by a panic.
struct EndGuard(Arc<Mutex<SlotState>>, Arc<GivenUp>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let state = mem::replace(&mut *kube_kit::lock(&self.0), SlotState::Over);
        if matches!(state, SlotState::GivenUp) {
            *kube_kit::lock(&self.1.now) -= 1;
            self.1.counted.ended();
        }
    }
}

impl GivenUp {
    /// Releases the slot of a job that is given up.
    fn add(&self, state: &Mutex<SlotState>) {
        self.counted.given_up();
        let mut now = kube_kit::lock(&self.now);
        let mut state = kube_kit::lock(state);
        if *now >= self.limit || matches!(*state, SlotState::Over) {
            return;
        }
        if let SlotState::Working(slot) = mem::replace(&mut *state, SlotState::GivenUp) {
            *now += 1;
            self.counted.began();
            drop((state, now));
            drop(slot);
        }
    }
}

impl Workers {
    /// Runs up to `limit` jobs at once; further jobs [wait](Places). A job that takes longer than `timeout` is given up
    /// and counted.
    pub fn new(limit: usize, timeout: Duration, counted: Overdue) -> Self {
        Self::keeping(limit, KEEP, timeout, counted)
    }

    fn keeping(limit: usize, keep: Duration, timeout: Duration, counted: Overdue) -> Self {
        let threads = Threads {
            keep,
            waiting: Mutex::default(),
            submitted: Condvar::new(),
        };
        Self {
            slots: Places::new(limit),
            threads: Arc::new(threads),
            given_up: Arc::new(GivenUp {
                now: Mutex::new(0),
                limit,
                counted,
            }),
            timeout,
        }
    }

    /// Runs a job of this owner on its own thread and waits for it. The job completes even if the caller stops
    /// waiting. A job that takes too long loses its slot.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.run_in(self.slot(owner).await, work).await
    }

    /// Waits for a slot for a job of this owner.
    pub async fn slot(&self, owner: &str) -> Slot {
        self.slots.take(&owner.to_owned()).await
    }

    /// [`Workers::run`] in a slot that is already held.
    pub async fn run_in<T: Send + 'static>(
        &self,
        slot: Slot,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let state = Arc::new(Mutex::new(SlotState::Working(slot)));
        let end = EndGuard(Arc::clone(&state), Arc::clone(&self.given_up));
        let work = move || {
            let _end = end;
            work()
        };
        let Ok(ended) = timeout(self.timeout, self.start(work).end()).await else {
            tracing::error!(
                "a plugin hangs: giving its call up after {} s",
                self.timeout.as_secs()
            );
            self.given_up.add(&state);
            return Err(Error::Overdue(self.timeout));
        };
        ended
    }

    /// Starts a part of a running job on another thread, within the job's slot. It completes even if nothing waits
    /// for it.
    pub fn start<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Part<T> {
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            // The receiver may be gone.
            let _ = sender.send(work());
        };
        let submitted = self.threads.submit(Box::new(work));
        Part(submitted.is_ok().then_some(receiver))
    }
}

/// A started part; `None` if no thread could be created.
#[derive(Debug)]
pub struct Part<T>(Option<oneshot::Receiver<T>>);

impl<T> Part<T> {
    /// Waits for its result.
    pub async fn end(self) -> Result<T, Error> {
        let end = self.0.ok_or(Error::NoThread)?;
        end.await.map_err(|_| Error::Panicked)
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A pool that keeps idle threads for a while: under load, the scheduler runs a woken thread sooner than a new one. A
/// job must restore its thread's state or panic; after a panic, only that thread ends.
#[derive(Debug)]
struct Threads {
    keep: Duration,
    waiting: Mutex<Waiting>,
    submitted: Condvar,
}

/// Queued jobs, and the number of idle threads.
#[derive(Default)]
struct Waiting {
    work: VecDeque<Job>,
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
    /// Gives the job to an idle thread, or to a new one.
    fn submit(self: &Arc<Self>, work: Job) -> io::Result<()> {
        let mut waiting = kube_kit::lock(&self.waiting);
        if waiting.threads > waiting.work.len() {
            waiting.work.push_back(work);
            self.submitted.notify_one();
            return Ok(());
        }
        drop(waiting);
        let threads = Arc::clone(self);
        let thread = thread::Builder::new().name("attach".into()).stack_size(STACK);
        thread.spawn(move || threads.work(work)).map(drop)
    }

    fn work(&self, first: Job) {
        linux::thread::spare_this_thread();
        let mut next = Some(first);
        while let Some(work) = next {
            let Some(Ok(())) = contained(async { work() }).now_or_never() else {
                return;
            };
            next = self.next();
        }
    }

    /// The next job; `None` after a long idle time.
    fn next(&self) -> Option<Job> {
        let mut waiting = kube_kit::lock(&self.waiting);
        waiting.threads += 1;
        let none = |waiting: &mut Waiting| waiting.work.is_empty();
        let (mut waiting, _) = self
            .submitted
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
    fn panic_of_job_does_not_end_process() {
        // multus#121
        const ROLE: &str = "WEFT_TEST_TO_END";
        if std::env::var_os(ROLE).is_some() {
            kube_kit::process::end_on_panic();
            let main = async {
                let workers = Workers::new(1, JOB_TIMEOUT, Overdue::default());
                let panicked = workers.run("ns", || -> u8 { panic!("of a plugin") }).await;
                println!("survived: {panicked:?}");
                let _ = tokio::spawn(async { panic!("of a watch") }).await;
                println!("survived both");
            };
            kube_kit::process::run(main).unwrap();
            return;
        }
        let name = "execution::workers::tests::panic_of_job_does_not_end_process";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(output.contains("survived: Err(Panicked)"), "{ended:?}");
        assert!(!output.contains("survived both"), "{output}");
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
    }

    #[tokio::test]
    async fn panic_ends_only_its_job() {
        let workers = Workers::new(1, JOB_TIMEOUT, Overdue::default());
        let panicked = workers.run("ns", || -> u8 { panic!("on purpose") }).await;
        assert_eq!(panicked, Err(Error::Panicked));
        assert_eq!(workers.run("ns", || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn thread_is_reused_unless_job_panicked() {
        let workers = Workers::new(1, JOB_TIMEOUT, Overdue::default());
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
    async fn idle_thread_ends() {
        let workers = Workers::keeping(4, Duration::from_millis(1), JOB_TIMEOUT, Overdue::default());
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
    async fn concurrent_jobs_are_limited() {
        // multus#69 (the bound)
        let workers = Workers::new(1, JOB_TIMEOUT, Overdue::default());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(workers.run("ns", move || wait.recv().is_ok()));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(workers.run("ns", || true));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(workers.slots.free(), 0);
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(second.await, Ok(true));
    }

    #[tokio::test]
    async fn hanging_job_releases_its_slot() {
        // multus#109
        let counted = Overdue::default();
        let timeout = Duration::from_millis(20);
        let workers = Workers::keeping(1, KEEP, timeout, counted.clone());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let hung = workers.run("a", move || wait.recv().is_ok()).await;
        assert_eq!(hung, Err(Error::Overdue(timeout)));
        assert_eq!((workers.slots.free(), counted.now()), (1, 1));
        // There is a bound to that: the next one keeps its slot.
        let (again, wait) = std::sync::mpsc::channel::<()>();
        let hung = workers.run("a", move || wait.recv().is_ok()).await;
        assert_eq!(hung, Err(Error::Overdue(timeout)));
        assert_eq!((workers.slots.free(), counted.now()), (0, 1));
        release.send(()).unwrap();
        again.send(()).unwrap();
        until(|| workers.slots.free() == 1 && counted.now() == 0);
        assert_eq!(workers.run("a", || 7).await, Ok(7));
    }
}
