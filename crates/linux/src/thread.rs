//! Threads that go elsewhere for a while: into another network namespace, under another root directory.

use std::cell::Cell;

use rustix::thread::UnshareFlags;

use crate::{Errno, Error};

thread_local! {
    static SPARED: Cell<bool> = const { Cell::new(false) };
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Says that the calling thread ends when it panics, and that nothing but its work ends with it. For threads that
/// [look whether they are lost](is_lost) wherever they catch a panic.
pub fn spare_this_thread() {
    SPARED.set(true);
}

/// Whether the calling thread could not return from where it was. It must not go on: whoever catches a panic on a thread
/// that is [spared](spare_this_thread) lets this one through.
pub fn is_lost() -> bool {
    LOST.get()
}

/// The panic of a thread that can't return.
const NO_WAY_BACK: &str = "no way back to where this thread was";

/// For a thread that can't return, which must not go on as if it had: the process ends, or the thread alone if it [is
/// spared](spare_this_thread).
pub(crate) fn give_up(wanted: &str, error: &Error) {
    eprintln!("cannot return to the {wanted} of this thread, giving up: {error}");
    if !SPARED.get() {
        std::process::abort();
    }
    LOST.set(true);
    if !std::thread::panicking() {
        std::panic::resume_unwind(Box::new(NO_WAY_BACK));
    }
}

/// A thing that threads share and a thread can have of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Own {
    /// Root and working directory.
    Directories,
    /// The mount namespace.
    Mounts,
    /// The network namespace.
    Network,
}

/// Gives the calling thread something of its own that it shared with others, for good.
pub(crate) fn unshare(what: Own) -> Result<(), Errno> {
    let flags = match what {
        Own::Directories => UnshareFlags::FS,
        Own::Mounts => UnshareFlags::NEWNS,
        Own::Network => UnshareFlags::NEWNET,
    };
    #[allow(
        unsafe_code,
        reason = "only CLONE_FILES makes unshare unsafe, and there is no variant for it"
    )]
    // SAFETY: the table of file descriptors stays as it is.
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}
