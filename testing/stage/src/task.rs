//! What runs beside a test.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use kube_kit::{process, shutdown::Shutdown};
use tokio::sync::Notify;

/// Something that runs beside the test, in a thread and a runtime of its own. Dropping it tells it to end, and waits for
/// that.
pub struct Task {
    shutdown: Shutdown,
    killed: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    /// Starts it. [`Admin::task_as`](crate::Admin::task_as) gives it a client as well.
    pub fn start<F: Future<Output = ()>>(work: impl FnOnce(Shutdown) -> F + Send + 'static) -> Self {
        let (shutdown, killed) = (Shutdown::new(), Arc::new(Notify::new()));
        let (end, kill) = (shutdown.clone(), Arc::clone(&killed));
        let thread = thread::spawn(move || {
            process::run(async {
                tokio::select! {
                    () = work(end) => {}
                    () = kill.notified() => {}
                }
            })
            .expect("a runtime");
        });
        Self {
            shutdown,
            killed,
            thread: Some(thread),
        }
    }

    /// Tells it to end, without waiting for that.
    pub fn interrupt(&self) {
        self.shutdown.trigger();
    }

    /// Ends it wherever it is, as SIGKILL would: nothing is finished, nothing is put in order.
    pub fn kill(self) {
        self.killed.notify_one();
    }

    /// Whether it ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.interrupt();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.expect("it ends without a panic");
            }
        }
    }
}
