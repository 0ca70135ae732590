//! The runtime that every daemon runs on.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often to look whether there is something to give back.
const LOOK: Duration = Duration::from_secs(10);
/// A process that worked less than this between two looks is at rest.
const REST: Duration = Duration::from_millis(20);
/// A process that worked more than this since it last gave back has something to give, as one has that just started.
const WORK: Duration = Duration::from_millis(10);

/// Runs a daemon's main future to its end on a current-thread runtime: worker threads and their stacks would cost more
/// memory than a controller of this size has work. What starting and bursts of work leave in memory is given back when
/// it comes to rest.
///
/// # Errors
/// Only when the runtime itself can't be built (no epoll, no file descriptors left).
pub fn run<F: Future>(main: F) -> io::Result<F::Output> {
    // Look-ups of host names, new keys and large admission reviews are the only blocking work of a controller; one thread
    // serves them. It ends after 10 s without work, and the heap that it shares is given back at rest.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()?;
    linux::memory::share_one_heap();
    runtime.spawn(give_back_at_rest());
    let output = runtime.block_on(main);
    // A look-up that hangs must not keep the process from ending.
    runtime.shutdown_background();
    Ok(output)
}

async fn give_back_at_rest() {
    let mut time = Rest::default();
    loop {
        tokio::time::sleep(LOOK).await;
        if time.is_reached(worked())
            && let Err(error) = linux::memory::give_back()
        {
            tracing::debug!(%error, "cannot give memory back");
            return;
        }
    }
}

/// Time that this process spent on processors.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Time that a process had worked at the last look, and when it gave back last.
#[derive(Debug, Default)]
struct Rest {
    looked: Duration,
    gave: Option<Duration>,
}

impl Rest {
    /// Whether it is at rest for the first time, or for the first time after work.
    fn is_reached(&mut self, worked: Duration) -> bool {
        let at_rest = worked.saturating_sub(self.looked) < REST;
        self.looked = worked;
        let since = |gave: Duration| worked.saturating_sub(gave);
        let reached = at_rest && self.gave.is_none_or(|gave| since(gave) > WORK);
        if reached {
            self.gave = Some(worked);
        }
        reached
    }
}

thread_local! {
    /// Whether what runs on this thread now is [`contained`].
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Lets a panic, on whatever thread or in whatever task, end the process once it is told: a controller that lost one of
/// its watches looks healthy and is blind, one that is restarted sees everything again. What is [`contained`] is
/// excepted.
pub fn end_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        if !CONTAINED.get() {
            std::process::abort();
        }
    }));
}

/// A future panicked; shown as what it said.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

/// Runs the answer to one request, whose panic ends nothing but itself: a request that nobody foresaw must not end the
/// process, or whoever sends it again and again keeps everybody else from being answered.
///
/// # Errors
/// When it panics.
pub async fn contained<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(move |context| {
        let outer = CONTAINED.replace(true);
        // The future is not polled again.
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        CONTAINED.set(outer);
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(Panicked(said(payload.as_ref())))),
        }
    })
    .await
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("something that is no text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_told_once_after_work() {
        let mut rest = Rest::default();
        let mut told = |milliseconds| rest.is_reached(Duration::from_millis(milliseconds));
        assert!(!told(30), "it starts");
        assert!(told(31));
        assert!(!told(32) && !told(36) && !told(41), "nothing worth it since");
        assert!(told(42));
        assert!(!told(900) && !told(1500), "busy");
        assert!(told(1510));
    }

    #[tokio::test]
    async fn a_panic_ends_what_is_contained_alone() {
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

    /// Both sides of this are the same test: the process that ends is one of its own.
    #[test]
    fn where_panics_end_the_process_contained_ones_do_not() {
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
        let name = "process::tests::where_panics_end_the_process_contained_ones_do_not";
        let ended = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, "1")
            .output()
            .expect("it runs");
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(told.contains("survived: panicked: the first one"), "{ended:?}");
        assert!(!told.contains("survived both"), "{told}");
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(6), "SIGABRT: {ended:?}");
    }
}
