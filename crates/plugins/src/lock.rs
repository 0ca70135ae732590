//! File locks (`flock`) with a timeout, shared with other processes.

use std::{
    io,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use cni::error::code;
use linux::backoff::Backoff;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Timeout of a lock. Plugins hold locks for milliseconds. A pod can hold the lock of its own namespace or directory
/// for ever.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Back-off between attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(5));

/// Locks a file exclusively until it is closed. Returns an error of kind `TimedOut` if another process holds the lock
/// longer than `timeout`. Polls, because the kernel has no lock with a timeout.
pub(crate) fn wait_for(file: impl AsFd, timeout: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let mut backoff = BACKOFF;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
        if begun.elapsed() >= timeout {
            let text = format!(
                "another process holds the lock for more than {} s",
                timeout.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(backoff.next_delay());
    }
}

/// The CNI code of an error: the runtime may retry after a timeout.
pub(crate) fn code(error: &io::Error) -> u32 {
    match error.kind() {
        io::ErrorKind::TimedOut => code::TRY_AGAIN_LATER,
        _ => code::INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn lock_held_by_another_process_times_out() {
        // cni-plugins#72
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        let wanted = File::open(&path).unwrap();
        let error = wait_for(&wanted, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(code(&error), code::TRY_AGAIN_LATER);
        let waiting = thread::spawn(move || wait_for(&wanted, TIMEOUT));
        drop(held);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn code_of_another_error_is_internal() {
        assert_eq!(code(&Errno::IO.into()), code::INTERNAL);
    }
}
