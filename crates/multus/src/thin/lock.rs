//! A lock file per sandbox: a runtime that gave up on an ADD sends DEL while the ADD's plugins may still run.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Directory of the locks, below the state directory. No sandbox ID has a leading dot.
const DIR: &str = ".locks";

/// A held lock; dropped, it is released. A process that dies leaves only an empty file.
#[derive(Debug)]
pub(super) struct SandboxLock {
    path: PathBuf,
    _file: File,
}

impl SandboxLock {
    /// Waits for the sandbox's lock.
    pub(super) fn take(cni_dir: &Path, container_id: &str) -> io::Result<Self> {
        let dir = cni_dir.join(DIR);
        // Also creates the state directory, with its mode.
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let path = dir.join(container_id);
        loop {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // The previous holder removed the file: a lock on an unlinked file is void.
            let there = fs::metadata(&path)
                .is_ok_and(|there| there.ino() == file.metadata().map_or(0, |it| it.ino()));
            if there {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for SandboxLock {
    fn drop(&mut self) {
        // Removed while held. A leftover file is locked like a new one.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn lock_is_exclusive_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = SandboxLock::take(dir.path(), "c1").unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path().join(DIR)).unwrap().count(), 0);
        let _one = SandboxLock::take(dir.path(), "c1").unwrap();
        let _other = SandboxLock::take(dir.path(), "c2").unwrap();
    }
}
