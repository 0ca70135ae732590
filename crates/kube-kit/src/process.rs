//! The runtime that every daemon runs on.

use std::future::Future;
use std::io;
use std::panic;

/// Runs a daemon's main future to its end on a current-thread runtime: worker threads and their stacks would cost more
/// memory than a controller of this size has work.
///
/// # Errors
/// Only when the runtime itself can't be built (no epoll, no file descriptors left).
pub fn run<F: Future>(main: F) -> io::Result<F::Output> {
    // Look-ups of host names and new keys are the only blocking work of a controller; one thread serves them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()?;
    let output = runtime.block_on(main);
    // A look-up that hangs must not keep the process from ending.
    runtime.shutdown_background();
    Ok(output)
}

/// Lets a panic, on whatever thread or in whatever task, end the process once it is told: a controller that lost one of
/// its watches looks healthy and is blind, one that is restarted sees everything again.
pub fn end_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        std::process::abort();
    }));
}
