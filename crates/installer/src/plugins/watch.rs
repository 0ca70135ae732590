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

/// A watch on the entries of one directory.
#[derive(Debug)]
pub(crate) struct Watcher {
    dir: PathBuf,
    inotify: Inotify,
}

impl Watcher {
    /// Starts watching.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let mut watcher = Self {
            dir: dir.to_path_buf(),
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
        self.inotify
            .watches()
            .add(&self.dir, mask)
            .about("watch", &self.dir)?;
        Ok(())
    }

    /// Waits for the next change. A deleted directory is created again.
    pub(crate) fn changed(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        let mut lost = self.read(&mut buffer, true)?;
        thread::sleep(GATHER);
        lost |= self.read(&mut buffer, false)?;
        if lost {
            fs::create_dir_all(&self.dir).about("create", &self.dir)?;
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
                Err(error) => return Err(error).about("watch", &self.dir),
            }
        }
    }
}
