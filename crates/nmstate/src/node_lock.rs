//! One handler of a node at a time: whoever holds the lock on a file of the host works, everybody else waits
//! (nmstate §5.1-3). The holder writes into the file who it is and since when, for those who wait.

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
pub const PAUSE: Duration = Duration::from_secs(5);
/// How much of the file is read, in bytes.
const LONGEST: u64 = 512;

/// Why the lock can't be taken now.
#[derive(Debug, Error)]
pub enum Refused {
    /// Another handler has it.
    #[error("the lock on {} is held by {holder}", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// The holder as the file names it, and since when it holds the lock.
        holder: String,
    },
    /// There can't be a lock on the file.
    #[error("cannot lock {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
}

/// The lock, held until it is dropped; the end of the process drops it too.
#[derive(Debug)]
pub struct NodeLock {
    file: File,
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // An established handler that comes next writes nothing, and would be taken for this one.
        let _ = self.file.set_len(0);
    }
}

/// The name of this process for the file.
pub fn own_name(variable: impl Fn(&str) -> Option<String>) -> String {
    match (variable(env::POD_NAMESPACE), variable(env::POD_NAME)) {
        (Some(namespace), Some(pod)) => format!("pod {namespace}/{pod}"),
        _ => format!("process {}", std::process::id()),
    }
}

/// Waits for the lock, without end: tries it every `pause`, and logs why it fails. `name` is written into the file.
pub async fn take(path: &Path, name: &str, pause: Duration) -> NodeLock {
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

/// Like [`take`], but gives up after `patience`.
///
/// # Errors
/// When the lock can't be had in time; the error says why.
pub async fn take_within(
    path: &Path,
    name: &str,
    pause: Duration,
    patience: Duration,
) -> Result<NodeLock, Refused> {
    match timeout(patience, take(path, name, pause)).await {
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
        tracing::warn!(%error, "cannot write into {} who holds its lock", path.display());
    }
    Ok(NodeLock { file })
}

fn sign(mut file: &File, name: &str) -> io::Result<()> {
    file.set_len(0)?;
    let since = whole_seconds(Timestamp::now()).0;
    file.write_all(format!("{name} since {since}\n").as_bytes())
}

/// The holder of the lock, as the file names it. Established handlers write nothing there.
fn holder(file: &File) -> String {
    let mut text = String::new();
    let read = file.take(LONGEST).read_to_string(&mut text);
    let line = text.lines().next().unwrap_or_default().trim();
    if read.is_err() || line.is_empty() {
        return "another handler, which does not say who it is".to_owned();
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
    async fn who_comes_second_waits_until_the_first_is_gone() {
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
    async fn a_directory_that_comes_later_is_waited_for() {
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
    async fn a_wait_with_a_deadline_ends_with_who_holds_the_lock_since_when() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("handler_lock");
        let minute = Duration::from_mins(1);
        let first = take(&path, FIRST, PAUSE).await;
        let began = tokio::time::Instant::now();
        let refused = take_within(&path, SECOND, PAUSE, minute).await;
        let told = refused.expect_err("the first is there").to_string();
        assert_eq!(began.elapsed().as_secs(), 60);
        let start = format!("the lock on {} is held by {FIRST} since 2", path.display());
        assert!(told.starts_with(&start) && told.ends_with('Z'), "{told}");

        // A holder that ended is no longer named, also if the next one writes nothing.
        drop(first);
        let established = File::open(&path).expect("the file");
        flock(&established, FlockOperation::NonBlockingLockExclusive).expect("nobody holds it");
        let refused = take_within(&path, SECOND, PAUSE, minute).await;
        let told = refused.expect_err("somebody is there").to_string();
        assert!(
            told.ends_with("another handler, which does not say who it is"),
            "{told}"
        );

        let nowhere = take_within(&dir.path().join("none/lock"), SECOND, PAUSE, minute).await;
        let told = nowhere.expect_err("no directory").to_string();
        assert!(
            told.starts_with("cannot lock ") && told.contains("none/lock: "),
            "{told}"
        );

        drop(established);
        take_within(&path, SECOND, PAUSE, minute).await.expect("the lock");
    }

    // nmstate#111
    #[test]
    fn a_handler_is_called_by_its_pod_else_by_its_process() {
        let pod = |name: &str| match name {
            env::POD_NAMESPACE => Some("nmstate".to_owned()),
            env::POD_NAME => Some("nmstate-handler-x7".to_owned()),
            _ => None,
        };
        assert_eq!(own_name(pod), "pod nmstate/nmstate-handler-x7");
        assert_eq!(own_name(|_| None), format!("process {}", std::process::id()));
    }
}
