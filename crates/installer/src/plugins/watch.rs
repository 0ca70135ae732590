//! A watch on the changes of a directory.

use crate::{About, Error};
use inotify::{EventMask, Inotify, WatchMask};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How long to collect changes: other installers write their plugins in bursts.
const GATHER: Duration = Duration::from_millis(100);

/// A watch on the entries of directories.
#[derive(Debug)]
pub(crate) struct Watcher {
    dirs: Vec<PathBuf>,
    inotify: Inotify,
}

impl Watcher {
    /// Starts watching. Directories that do not exist are created.
    pub(crate) fn open(dir: &Path, others: Vec<PathBuf>) -> Result<Self, Error> {
        let mut dirs = others;
        dirs.push(dir.to_path_buf());
        let mut watcher = Self {
            dirs,
            inotify: Inotify::init().about("watch", dir)?,
        };
        watcher.watch()?;
        Ok(watcher)
    }

    fn watch(&mut self) -> Result<(), Error> {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        for dir in &self.dirs {
            fs::create_dir_all(dir).about("create", dir)?;
            self.inotify.watches().add(dir, mask).about("watch", dir)?;
        }
        Ok(())
    }

    /// Waits for the next change. A deleted directory is created again.
    pub(crate) fn changed(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        let mut lost = self.read(&mut buffer, true)?;
        thread::sleep(GATHER);
        lost |= self.read(&mut buffer, false)?;
        if lost {
            self.watch()?;
        }
        Ok(())
    }

    /// Reads the pending events, and waits for one if `wait` is set. Returns whether the directory itself is gone.
    fn read(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, Error> {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        let mut lost = false;
        loop {
            let events = if wait {
                self.inotify.read_events_blocking(buffer)
            } else {
                self.inotify.read_events(buffer)
            };
            match events {
                Ok(events) => {
                    lost |= events.into_iter().any(|event| event.mask.intersects(gone));
                    if wait {
                        return Ok(lost);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lost),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let dir = self.dirs.last().map_or(Path::new("/"), PathBuf::as_path);
                    return Err(error).about("watch", dir);
                }
            }
        }
    }
}
