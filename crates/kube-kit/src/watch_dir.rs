//! Directories that are watched for changes of their files, by inotify.

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Room for some ten events; more are read next.
const BUFFER: usize = 4096;

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has new content, or is new.
    Written,
    /// It was removed or renamed.
    Gone,
    /// Events were lost: anything may have happened to any file.
    Unknown,
}

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The file; with [`Change::Unknown`] the empty path.
    pub path: PathBuf,
    /// What happened to it.
    pub change: Change,
}

/// Watched directories.
pub struct DirWatcher {
    events: EventStream<Vec<u8>>,
    /// A directory that is reached by two paths has one descriptor: every path counts.
    dirs: HashMap<WatchDescriptor, Vec<PathBuf>>,
}

impl DirWatcher {
    /// Watches nothing yet. Needs a running tokio runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream(vec![0; BUFFER])?,
            dirs: HashMap::new(),
        })
    }

    /// Adds a directory. Changes from now on are seen.
    pub fn add(&mut self, dir: &Path) -> io::Result<()> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
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
            let Some(event) = self.events.next().await else {
                // The stream has no end of its own.
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let event = event?;
            let changes = changes(&self.dirs, &event.wd, event.mask, event.name);
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

fn changes(
    dirs: &HashMap<WatchDescriptor, Vec<PathBuf>>,
    descriptor: &WatchDescriptor,
    mask: EventMask,
    name: Option<OsString>,
) -> Vec<Event> {
    if mask.contains(EventMask::Q_OVERFLOW) {
        return vec![Event {
            path: PathBuf::new(),
            change: Change::Unknown,
        }];
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
