//! Locks on files (`flock`) that other processes take as well, with a deadline.

use std::{
    io,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use cni::error::code;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// How long a call waits for a lock. Plugins hold one for milliseconds. A pod can hold the lock of its own namespace, or of
/// a directory of its own, for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The pauses between two attempts.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Locks a file, alone, until the file is closed. An error of kind `TimedOut` if another process keeps the lock longer than
/// `patience`. The kernel has no lock with a time limit, hence the attempts.
pub(crate) fn wait_for(file: impl AsFd, patience: Duration) -> io::Result<()> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
        if begun.elapsed() >= patience {
            let text = format!(
                "another process holds the lock for more than {} s",
                patience.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The CNI code of an error: the runtime may try again after a deadline that passed.
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
    fn wait_for_lock_that_another_process_keeps_times_out() {
        // cni-plugins#72
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        let wanted = File::open(&path).unwrap();
        let error = wait_for(&wanted, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(code(&error), code::TRY_AGAIN_LATER);
        let waiting = thread::spawn(move || wait_for(&wanted, PATIENCE));
        drop(held);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn code_of_another_error_is_internal() {
        assert_eq!(code(&Errno::IO.into()), code::INTERNAL);
    }
}
