//! The node lock: one handler of a node works at a time, and others wait (nmstate §5.1-3). The holder writes its name
//! and the time into the file, for those that wait.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube_kit::conditions::whole_seconds;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;
use tokio::time::timeout;

use crate::names::env;

/// Pause between two attempts.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read of the file.
const MAX_READ: u64 = 512;

/// The lock cannot be taken now.
#[derive(Debug, Error)]
pub(crate) enum Refused {
    /// Another handler holds it.
    #[error("the lock on {} is held by {holder}", path.display())]
    Held {
        /// Path of the file.
        path: PathBuf,
        /// The holder as named in the file, and since when it holds the lock.
        holder: String,
    },
    /// The file cannot be locked.
    #[error("cannot lock {}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        why: io::Error,
    },
}

/// The lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct NodeLock {
    file: File,
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // An upstream handler writes no name, and would be taken for this one.
        let _ = self.file.set_len(0);
    }
}

/// The name of this process for the file.
pub(crate) fn own_name(variable: impl Fn(&str) -> Option<String>) -> String {
    match (variable(env::POD_NAMESPACE), variable(env::POD_NAME)) {
        (Some(namespace), Some(pod)) => format!("pod {namespace}/{pod}"),
        _ => format!("process {}", std::process::id()),
    }
}

/// Takes the lock. Retries every `pause` without end, and logs the failures. `name` is written into the file.
pub(crate) async fn take(path: &Path, name: &str, pause: Duration) -> NodeLock {
    loop {
        tracing::info!("Try to take exclusive lock on file: {}", path.display());
        match attempt(path, name) {
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

/// Like [`take`], for at most `limit`.
pub(crate) async fn take_within(
    path: &Path,
    name: &str,
    pause: Duration,
    limit: Duration,
) -> Result<NodeLock, Refused> {
    match timeout(limit, take(path, name, pause)).await {
        Ok(lock) => Ok(lock),
        Err(_) => attempt(path, name),
    }
}

fn attempt(path: &Path, name: &str) -> Result<NodeLock, Refused> {
    let failed = |why| Refused::File {
        path: path.to_owned(),
        why,
    };
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(Refused::Held {
                path: path.to_owned(),
                holder: holder(&file),
            });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    // The lock works without the name, for example on a full disk.
    if let Err(error) = sign(&file, name) {
        tracing::warn!(%error, "cannot write the holder's name into {}", path.display());
    }
    Ok(NodeLock { file })
}

fn sign(mut file: &File, name: &str) -> io::Result<()> {
    file.set_len(0)?;
    let since = whole_seconds(Timestamp::now()).0;
    file.write_all(format!("{name} since {since}\n").as_bytes())
}

/// The holder of the lock as named in the file. Upstream handlers write no name.
fn holder(file: &File) -> String {
    let mut text = String::new();
    let read = file.take(MAX_READ).read_to_string(&mut text);
    let line = text.lines().next().unwrap_or_default().trim();
    if read.is_err() || line.is_empty() {
        return "another handler, which left no name".to_owned();
    }
    line.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    const FIRST: &str = "pod nmstate/first";
    const SECOND: &str = "pod nmstate/second";

    // nmstate#71
    #[tokio::test(start_paused = true)]
    async fn second_handler_waits_for_the_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("handler_lock");
        let first = take(&path, FIRST, PAUSE).await;
        let mut second = Box::pin(take(&path, SECOND, PAUSE));
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
    async fn lock_waits_for_its_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("later/handler_lock");
        let mut lock = Box::pin(take(&path, FIRST, PAUSE));
        assert!((&mut lock).now_or_never().is_none());
        fs::create_dir(dir.path().join("later")).expect("a directory");
        lock.await;
        assert!(path.exists());
    }

    // nmstate#111
    #[tokio::test(start_paused = true)]
    async fn timeout_names_the_holder_and_the_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("handler_lock");
        let minute = Duration::from_mins(1);
        let first = take(&path, FIRST, PAUSE).await;
        let began = tokio::time::Instant::now();
        let refused = take_within(&path, SECOND, PAUSE, minute).await;
        let error = refused.expect_err("a held lock").to_string();
        assert_eq!(began.elapsed().as_secs(), 60);
        let start = format!("the lock on {} is held by {FIRST} since 2", path.display());
        assert!(error.starts_with(&start) && error.ends_with('Z'), "{error}");

        // A holder that ended is no longer named, also if the next one writes nothing.
        drop(first);
        let next = File::open(&path).expect("the file");
        flock(&next, FlockOperation::NonBlockingLockExclusive).expect("a free lock");
        let refused = take_within(&path, SECOND, PAUSE, minute).await;
        let error = refused.expect_err("a held lock").to_string();
        assert!(error.ends_with("another handler, which left no name"), "{error}");

        let nowhere = take_within(&dir.path().join("none/lock"), SECOND, PAUSE, minute).await;
        let error = nowhere.expect_err("no directory").to_string();
        assert!(
            error.starts_with("cannot lock ") && error.contains("none/lock: "),
            "{error}"
        );

        drop(next);
        take_within(&path, SECOND, PAUSE, minute).await.expect("the lock");
    }

    // nmstate#111
    #[test]
    fn own_name_is_the_pod_or_the_process() {
        let pod = |name: &str| match name {
            env::POD_NAMESPACE => Some("nmstate".to_owned()),
            env::POD_NAME => Some("nmstate-handler-x7".to_owned()),
            _ => None,
        };
        assert_eq!(own_name(pod), "pod nmstate/nmstate-handler-x7");
        assert_eq!(own_name(|_| None), format!("process {}", std::process::id()));
    }
}
