//! Threads that temporarily enter another network namespace or root directory.

use std::cell::Cell;

use rustix::thread::UnshareFlags;

use crate::{Errno, Error};

thread_local! {
    static SPARED: Cell<bool> = const { Cell::new(false) };
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Declares that a panic may end the calling thread alone, because only the thread's own work depends on it. Such
/// threads must [check whether they are lost](is_lost) wherever they catch a panic.
pub fn spare_this_thread() {
    SPARED.set(true);
}

/// Returns true if the calling thread could not return to its namespace or directories. The thread must not continue:
/// code that catches panics of a [spared](spare_this_thread) thread must resume this panic.
pub fn is_lost() -> bool {
    LOST.get()
}

/// The panic of a thread that cannot return.
const CANNOT_RETURN: &str = "this thread cannot return to its namespace or directories";

/// Ends a thread that cannot return and must not continue: ends the process, or only the thread if it [is
/// spared](spare_this_thread).
pub(crate) fn end_lost_thread(context: &str, error: &Error) {
    eprintln!("cannot return to the {context} of this thread, which ends: {error}");
    if !SPARED.get() {
        std::process::abort();
    }
    LOST.set(true);
    if !std::thread::panicking() {
        std::panic::resume_unwind(Box::new(CANNOT_RETURN));
    }
}

/// A context that threads share by default.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Own {
    /// Root and working directory.
    Directories,
    /// The mount namespace.
    Mounts,
    /// The network namespace.
    Network,
}

/// Gives the calling thread its own copy of a shared context, permanently.
pub(crate) fn unshare(context: Own) -> Result<(), Errno> {
    let flags = match context {
        Own::Directories => UnshareFlags::FS,
        Own::Mounts => UnshareFlags::NEWNS,
        Own::Network => UnshareFlags::NEWNET,
    };
    #[allow(
        unsafe_code,
        reason = "only CLONE_FILES makes unshare unsafe, and has no separate function"
    )]
    // SAFETY: the table of file descriptors stays as it is.
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}
