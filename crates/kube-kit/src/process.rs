//! The runtime of every daemon.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The checks whether the process has memory to return.
const USUAL: Pace = Pace {
    interval: Duration::from_secs(10),
    idle: Duration::from_millis(20),
    work: Duration::from_millis(10),
    growth: Some(4 << 10),
    call: None,
    drops_pages: true,
};
/// The checks of a process [that callers wait for](run_for_callers). A CNI call takes some 10 ms of CPU time.
const FOR_CALLERS: Pace = Pace {
    work: Duration::from_millis(250),
    call: Some(Duration::from_millis(3)),
    ..USUAL
};
/// The checks after the start, whose work leaves the most memory behind. The work of the following seconds needs many of
/// the pages again: to read them several times takes more processor time than the memory is worth.
const FIRST: Pace = Pace {
    interval: Duration::from_millis(250),
    idle: Duration::from_millis(2),
    work: Duration::from_millis(100),
    growth: None,
    call: None,
    drops_pages: false,
};
/// Duration of the first checks.
const START: Duration = Duration::from_secs(30);
/// Number of checks between two returns for growth, and between a call and such a return: a process that needs its pages
/// for each event or call keeps them for five minutes.
const PATIENCE: u32 = 30;

/// Niceness of the thread for blocking work.
const BLOCKING_NICENESS: i32 = 10;

/// Repeated checks whether the process is idle.
struct Pace {
    interval: Duration,
    /// A process with less CPU time than this between two checks is idle.
    idle: Duration,
    /// A process with more CPU time than this since its last return of memory may have memory to return.
    work: Duration,
    /// So does a process whose resident memory has grown by more than this many kibibytes since then, if it is given: rare
    /// events take little time, and read pages of the program.
    growth: Option<u64>,
    /// More CPU time than this between two checks is a call, if it is given: the process may need its memory again soon.
    call: Option<Duration>,
    /// Whether a busy process drops pages of its program.
    drops_pages: bool,
}

/// Runs a daemon's main future to its end on a current-thread runtime: worker threads with their stacks would need more
/// memory than they are worth for a controller of this size. Unused heap memory is returned to the system when the
/// process becomes idle.
///
/// # Errors
/// Only if the runtime cannot be created (no epoll, no free file descriptors).
pub fn run<F: Future>(main: F) -> io::Result<F::Output> {
    run_at(&USUAL, main)
}

/// [`run`] for a daemon whose callers wait for its answer: it keeps the pages of its program for five minutes after a
/// few calls, so that the next one need not read them again.
///
/// # Errors
/// As [`run`].
pub fn run_for_callers<F: Future>(main: F) -> io::Result<F::Output> {
    run_at(&FOR_CALLERS, main)
}

fn run_at<F: Future>(usual: &'static Pace, main: F) -> io::Result<F::Output> {
    // Name resolution, key generation and large admission reviews are the only blocking work of a controller; one
    // thread does it. The thread ends after 10 s without work, and its heap is returned when the process is idle.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .on_thread_start(yield_to_requests)
        .build()?;
    linux::memory::share_one_heap();
    runtime.spawn(give_back_at_rest(usual));
    let output = runtime.block_on(main);
    // A hanging name resolution must not delay the end of the process.
    runtime.shutdown_background();
    Ok(output)
}

/// Lowers the priority of the calling thread, which does blocking work: small requests, which the main thread answers,
/// come first.
fn yield_to_requests() {
    if let Err(error) = rustix::process::setpriority_process(None, BLOCKING_NICENESS) {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}

async fn give_back_at_rest(usual: &Pace) {
    let mut memory = Memory::default();
    let _ = tokio::time::timeout(START, check_at(&FIRST, &mut memory)).await;
    // The next idle check returns what the start has left behind.
    memory.gave = None;
    check_at(usual, &mut memory).await;
}

/// Checks without end.
async fn check_at(pace: &Pace, memory: &mut Memory) {
    loop {
        tokio::time::sleep(pace.interval).await;
        let returned = match memory.next(pace, worked(), linux::memory::resident) {
            Ok(Step::Keep) => Ok(()),
            Ok(Step::DropPages) => linux::memory::drop_pages(),
            Ok(Step::GiveBack) => give_back(memory),
            Err(error) => Err(error),
        };
        if let Err(error) = returned {
            tracing::debug!(%error, "cannot give memory back");
        }
    }
}

fn give_back(memory: &mut Memory) -> io::Result<()> {
    linux::memory::give_back()?;
    memory.gave(worked(), linux::memory::resident()?);
    Ok(())
}

/// CPU time of this process.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// The result of a check.
#[derive(Debug, Eq, PartialEq)]
enum Step {
    Keep,
    /// The process is busy. Pages of the program that it does not use at the moment are dropped.
    DropPages,
    /// The process is idle.
    GiveBack,
}

/// The process at the last check, and after its last return of memory.
#[derive(Debug, Default)]
struct Memory {
    /// CPU time at the last check.
    looked: Duration,
    /// CPU time and resident memory, in kibibytes, after the last return.
    gave: Option<(Duration, u64)>,
    /// Number of checks that must not return memory for growth yet.
    patience: u32,
}

impl Memory {
    /// Decides by the CPU time of the process so far, and by its resident memory in kibibytes.
    fn next(
        &mut self,
        pace: &Pace,
        worked: Duration,
        resident: impl FnOnce() -> io::Result<u64>,
    ) -> io::Result<Step> {
        let spent = worked.saturating_sub(self.looked);
        self.looked = worked;
        let is_idle = spent < pace.idle;
        if pace.call.is_some_and(|call| spent > call) {
            self.patience = PATIENCE;
        }
        if let Some((then, left)) = self.gave
            && worked.saturating_sub(then) <= pace.work
        {
            let is_early = self.patience > 0;
            self.patience = self.patience.saturating_sub(1);
            if let Some(growth) = pace.growth
                && !is_early
                && is_idle
                && resident()? > left + growth
            {
                self.patience = PATIENCE;
                return Ok(Step::GiveBack);
            }
            return Ok(Step::Keep);
        }
        Ok(if is_idle {
            Step::GiveBack
        } else if pace.drops_pages {
            Step::DropPages
        } else {
            Step::Keep
        })
    }

    /// Records a return of memory.
    fn gave(&mut self, worked: Duration, resident: u64) {
        self.gave = Some((worked, resident));
    }
}

thread_local! {
    /// Whether this thread currently runs [`contained`] code.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a panic on any thread and in any task end the process after its message: a controller that lost one of its
/// watches seems healthy but is stale, and a restart recovers it. Code in [`contained`] is excepted.
pub fn end_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        if !CONTAINED.get() {
            std::process::abort();
        }
    }));
}

/// A panic in a future, with its message.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

/// Runs the answer to one request, whose panic ends only that request: a request that triggers a panic must not end the
/// process, or a client could block all others by repeating it.
///
/// # Errors
/// If it panics.
pub async fn contained<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |context| {
        let outer = CONTAINED.replace(true);
        // The future is not polled again.
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        CONTAINED.set(outer);
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(Panicked(panic_text(payload.as_ref())))),
        }
    })
    .await
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a value that is not a text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step at this CPU time, in milliseconds, and this resident memory, in mebibytes. Memory that is returned leaves
    /// 3 MiB.
    fn next(memory: &mut Memory, pace: &Pace, milliseconds: u64, resident: u64) -> Step {
        let worked = Duration::from_millis(milliseconds);
        let step = memory.next(pace, worked, || Ok(resident << 10));
        let step = step.expect("a known size");
        if step == Step::GiveBack {
            memory.gave(worked, 3 << 10);
        }
        step
    }

    #[test]
    fn memory_is_given_back_once_after_work() {
        let mut memory = Memory::default();
        let mut next = |pace, milliseconds| next(&mut memory, pace, milliseconds, 4);
        assert_eq!(next(&FIRST, 30), Step::Keep, "it starts");
        assert_eq!(next(&FIRST, 31), Step::GiveBack);
        for since in [32, 36, 41] {
            assert_eq!(next(&USUAL, since), Step::Keep, "nothing worth it since");
        }
        assert_eq!(next(&USUAL, 42), Step::GiveBack);
        for busy in [900, 1500] {
            assert_eq!(next(&USUAL, busy), Step::DropPages);
        }
        assert_eq!(next(&USUAL, 1510), Step::GiveBack);
    }

    #[test]
    fn start_keeps_pages_after_its_first_return() {
        let mut memory = Memory::default();
        assert_eq!(next(&mut memory, &FIRST, 1, 9), Step::GiveBack);
        for work in [40, 101, 102] {
            let step = if work == 102 { Step::GiveBack } else { Step::Keep };
            assert_eq!(next(&mut memory, &FIRST, work, 12), step, "after {work} ms");
        }
    }

    #[test]
    fn process_for_callers_keeps_pages_for_minutes_after_a_call() {
        let mut memory = Memory::default();
        let mut next = |milliseconds| next(&mut memory, &FOR_CALLERS, milliseconds, 20);
        assert_eq!(next(1), Step::GiveBack);
        assert_eq!(next(12), Step::Keep, "a call");
        for _ in 0..PATIENCE - 1 {
            assert_eq!(next(12), Step::Keep);
        }
        assert_eq!(next(23), Step::Keep, "one more call");
        for _ in 0..PATIENCE - 1 {
            assert_eq!(next(23), Step::Keep);
        }
        assert_eq!(next(23), Step::GiveBack);
        assert_eq!(next(274), Step::DropPages, "many calls");
        assert_eq!(next(275), Step::GiveBack);
    }

    #[test]
    fn memory_that_grew_by_little_work_is_given_back_at_rest() {
        let mut memory = Memory::default();
        assert_eq!(next(&mut memory, &FIRST, 1, 9), Step::GiveBack);
        assert_eq!(next(&mut memory, &FIRST, 2, 12), Step::Keep, "the start reads on");
        assert_eq!(next(&mut memory, &USUAL, 3, 7), Step::Keep);
        assert_eq!(next(&mut memory, &USUAL, 4, 8), Step::GiveBack);
        // Memory that grows again at once is needed.
        for _ in 0..PATIENCE {
            assert_eq!(next(&mut memory, &USUAL, 5, 8), Step::Keep);
        }
        assert_eq!(next(&mut memory, &USUAL, 5, 8), Step::GiveBack);
    }

    #[tokio::test]
    async fn contained_panic_ends_its_future_alone() {
        assert_eq!(contained(async { 7 }).await.expect("an answer"), 7);
        let error = contained(async {
            tokio::task::yield_now().await;
            assert_eq!(1, 2, "numbers");
        });
        let text = error.await.expect_err("a panic").to_string();
        assert!(
            text.starts_with("panicked: ") && text.contains("numbers"),
            "{text}"
        );
        assert!(!CONTAINED.get(), "what comes next is not contained");
    }

    /// The test runs itself in a second process, which ends.
    #[test]
    fn contained_panic_does_not_end_process_that_ends_on_panic() {
        const ROLE: &str = "WEFT_TEST_TO_END";
        if std::env::var_os(ROLE).is_some() {
            end_on_panic();
            run(async {
                let error = contained(async { panic!("the first one") }).await;
                println!("survived: {}", error.expect_err("a panic"));
                let _ = tokio::spawn(async { panic!("the second one") }).await;
                println!("survived both");
            })
            .expect("a runtime");
            return;
        }
        let name = "process::tests::contained_panic_does_not_end_process_that_ends_on_panic";
        let ended = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, "1")
            .output()
            .expect("it runs");
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(output.contains("survived: panicked: the first one"), "{ended:?}");
        assert!(!output.contains("survived both"), "{output}");
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(6), "SIGABRT: {ended:?}");
    }
}
