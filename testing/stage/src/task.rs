//! Tasks beside a test.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use kube_kit::{process, shutdown::Shutdown};
use tokio::sync::Notify;

/// A task beside the test, in a separate thread and runtime. A drop requests its end and waits for it.
pub struct Task {
    shutdown: Shutdown,
    killed: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    /// Starts a task. [`Admin::task_as`](crate::Admin::task_as) also passes a client.
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

    /// Requests the end of the task, without waiting.
    pub fn interrupt(&self) {
        self.shutdown.trigger();
    }

    /// Ends the task at once like SIGKILL: it finishes nothing.
    pub fn kill(self) {
        self.killed.notify_one();
    }

    /// Returns true if the task ended by itself.
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
