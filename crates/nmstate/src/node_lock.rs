//! One handler of a node at a time: whoever holds the lock on a file of the host works, everybody else waits
//! (nmstate §5.1-3).

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Pause between two attempts.
pub const PAUSE: Duration = Duration::from_secs(5);

/// The lock, held until it is dropped; the end of the process drops it too.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

/// Waits for the lock, for ever: tries it every `pause`. What goes wrong is logged and tried again.
pub async fn take(path: &Path, pause: Duration) -> NodeLock {
    loop {
        tracing::info!("Try to take exclusive lock on file: {}", path.display());
        match attempt(path) {
            Ok(lock) => {
                tracing::info!("Successfully took nmstate exclusive lock");
                return lock;
            }
            Err(error) => {
                tracing::info!(%error, retry = ?pause, "cannot take the lock on {}", path.display());
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn attempt(path: &Path) -> io::Result<NodeLock> {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(NodeLock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    // nmstate#71
    #[tokio::test(start_paused = true)]
    async fn who_comes_second_waits_until_the_first_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("handler_lock");
        let first = take(&path, PAUSE).await;
        let mut second = Box::pin(take(&path, PAUSE));
        for _ in 0..5 {
            assert!((&mut second).now_or_never().is_none(), "the first is there");
            tokio::time::advance(PAUSE).await;
        }
        drop(first);
        let began = tokio::time::Instant::now();
        second.await;
        assert!(began.elapsed() <= PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_comes_later_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("later/handler_lock");
        let mut lock = Box::pin(take(&path, PAUSE));
        assert!((&mut lock).now_or_never().is_none());
        fs::create_dir(dir.path().join("later")).expect("a directory");
        lock.await;
        assert!(path.exists());
    }
}
