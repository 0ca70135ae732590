//! Directories that are watched for changes of their files, by inotify.

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// Room for some ten events; more are read next.
const BUFFER: usize = 4096;
/// How often a directory that was removed or renamed is looked for at its path.
const LOST_PAUSE: Duration = Duration::from_secs(5);
/// Events after which a directory is not watched under its path any more.
const LOSS: EventMask = EventMask::DELETE_SELF
    .union(EventMask::MOVE_SELF)
    .union(EventMask::UNMOUNT)
    .union(EventMask::IGNORED);

/// Kind of a file's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has new content, or is new.
    Written,
    /// It was removed or renamed.
    Gone,
    /// Events were lost, or a directory was removed, renamed or is back: anything may have happened to any file.
    Unknown,
}

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The file; with [`Change::Unknown`] the empty path.
    pub path: PathBuf,
    /// Kind of the change.
    pub change: Change,
}

/// Watched directories.
pub struct DirWatcher {
    events: EventStream<Vec<u8>>,
    /// A directory that is reached by two paths has one descriptor: every path counts.
    dirs: HashMap<WatchDescriptor, Vec<PathBuf>>,
    /// Directories that were removed or renamed, and are watched again once the path has a directory. A mount of the
    /// directory, as in a pod, never shows the new directory: it keeps the mounted one.
    lost: Vec<PathBuf>,
}

impl DirWatcher {
    /// Watches nothing yet. Needs a running tokio runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream(vec![0; BUFFER])?,
            dirs: HashMap::new(),
            lost: Vec::new(),
        })
    }

    /// Adds a directory. Changes from now on are seen.
    pub fn add(&mut self, dir: &Path) -> io::Result<()> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let descriptor = self.events.watches().add(dir, mask)?;
        let paths = self.dirs.entry(descriptor).or_default();
        if !paths.iter().any(|path| path == dir) {
            paths.push(dir.to_owned());
        }
        Ok(())
    }

    /// Waits for the next changes. Cancel-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> io::Result<Vec<Event>> {
        loop {
            if self.renew() {
                return Ok(vec![unknown()]);
            }
            let event = if self.lost.is_empty() {
                self.events.next().await
            } else {
                match timeout(LOST_PAUSE, self.events.next()).await {
                    Ok(event) => event,
                    Err(_) => continue,
                }
            };
            let Some(event) = event else {
                // The stream has no end of its own.
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let event = event?;
            if event.mask.intersects(LOSS)
                && let Some(paths) = self.dirs.remove(&event.wd)
            {
                // A renamed directory is still watched, under a path that is not its own any more.
                let _ = self.events.watches().remove(event.wd);
                self.lost.extend(paths);
                return Ok(vec![unknown()]);
            }
            let changes = changes(&self.dirs, &event.wd, event.mask, event.name);
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Watches lost directories again whose paths have one; whether there was one.
    fn renew(&mut self) -> bool {
        let lost = std::mem::take(&mut self.lost);
        let before = lost.len();
        self.lost = lost.into_iter().filter(|dir| self.add(dir).is_err()).collect();
        self.lost.len() < before
    }
}

fn unknown() -> Event {
    Event {
        path: PathBuf::new(),
        change: Change::Unknown,
    }
}

fn changes(
    dirs: &HashMap<WatchDescriptor, Vec<PathBuf>>,
    descriptor: &WatchDescriptor,
    mask: EventMask,
    name: Option<OsString>,
) -> Vec<Event> {
    if mask.contains(EventMask::Q_OVERFLOW) {
        return vec![unknown()];
    }
    let change = if mask.intersects(EventMask::MOVED_FROM | EventMask::DELETE) {
        Change::Gone
    } else if mask.intersects(EventMask::CLOSE_WRITE | EventMask::CREATE | EventMask::MOVED_TO) {
        Change::Written
    } else {
        return Vec::new();
    };
    let (Some(name), Some(dirs)) = (name, dirs.get(descriptor)) else {
        return Vec::new();
    };
    dirs.iter()
        .map(|dir| Event {
            path: dir.join(&name),
            change,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// The next changes.
    async fn next(watcher: &mut DirWatcher) -> Vec<Event> {
        timeout(DEADLINE, watcher.next()).await.expect("changes").unwrap()
    }

    // multus#124
    #[tokio::test(start_paused = true)]
    async fn directory_that_is_removed_or_renamed_is_watched_again_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("net.d");
        fs::create_dir(&dir).unwrap();
        let mut watcher = DirWatcher::new().unwrap();
        watcher.add(&dir).unwrap();
        let moved = folder.path().join("moved");
        for is_renamed in [false, true] {
            if is_renamed {
                fs::rename(&dir, &moved).unwrap();
            } else {
                fs::remove_dir(&dir).unwrap();
            }
            assert_eq!(next(&mut watcher).await, [unknown()], "it is gone");
            assert!(
                timeout(DEADLINE, watcher.next()).await.is_err(),
                "nothing happened"
            );
            fs::create_dir(&dir).unwrap();
            assert_eq!(next(&mut watcher).await, [unknown()], "it is back");
            if moved.exists() {
                fs::write(moved.join("of another path"), "").unwrap();
            }
            fs::write(dir.join("a"), "").unwrap();
            let written = Event {
                path: dir.join("a"),
                change: Change::Written,
            };
            assert_eq!(next(&mut watcher).await, [written]);
            // Created, then closed.
            next(&mut watcher).await;
            fs::remove_file(dir.join("a")).unwrap();
            next(&mut watcher).await;
        }
    }
}
