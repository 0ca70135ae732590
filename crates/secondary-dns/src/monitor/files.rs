//! Keeps the zone files written, with retries, in a task beside the monitor: no event waits for the text of a zone
//! (secondary-dns §5, §9).
//!
//! ```text
//! State ── what has changed ──> Model of its own ──> Publisher ──> zone files
//! ```

use std::fs;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube_kit::client::chain;
use kube_kit::lock;
use linux::backoff::Backoff;
use tokio::sync::Notify;

use super::directory::Directory;
use super::state::State;
use crate::model::Model;
use crate::publish::{self, Publisher};
use crate::zone::serial;

/// Minimum time between two editions of the zone files, and the maximum delay of an edition.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The writer pauses for this multiple of an edition's duration, within the limits above.
const SHARE: u32 = 5;
/// Back-off after failed writes.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));

/// The writer of the zone files of one monitor. The writer has its own model.
#[derive(Debug)]
pub(super) struct Files {
    publisher: Publisher,
    directory: Directory,
    model: Model,
    /// Whether serials begin at 0, as in upstream.
    counter: bool,
    is_first: bool,
}

impl Files {
    /// A writer without any edition.
    pub(super) fn new(publisher: Publisher, directory: Directory, model: Model, counter: bool) -> Self {
        Self {
            publisher,
            directory,
            model,
            counter,
            is_first: true,
        }
    }

    /// Finds the files of former domains, which changed while no monitor ran. The first write removes them.
    pub(super) fn find_former(&self) {
        let former = self.publisher.others(&self.model.header().zone);
        lock(&self.directory.obsolete).extend(former);
    }

    /// Updates the zone files. It holds the lock of the state only while it takes the changes.
    fn write(&mut self, state: &Mutex<State>) -> Result<(), publish::Error> {
        let directory = self.directory.clone();
        let _gate = lock(&directory.gate);
        let Some((changes, counted)) = lock(state).take_unwritten() else {
            // Another monitor has taken over.
            return Ok(());
        };
        self.model.merge(changes, counted);
        if self.is_first {
            let Some(serial) = self.first_serial() else {
                self.is_first = false;
                return Ok(());
            };
            lock(state).renumber(counted, serial);
        }
        let edition = self.publisher.edition(&self.model);
        self.publisher.write(edition)?;
        self.is_first = false;
        for zone in std::mem::take(&mut *lock(&directory.obsolete)) {
            let path = self.publisher.path(&zone);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let path = path.display();
                    tracing::error!(%path, %error, "cannot remove the zone file of the former domain");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The serial of the first edition: the serial of the file if the file is up to date. `None` before the first
    /// edition: the upstream monitor writes none before the first instance.
    fn first_serial(&mut self) -> Option<u32> {
        let zone = self.model.header().zone.clone();
        let counted = self.model.serial();
        let Some(before) = self.publisher.serial(&zone) else {
            return (!self.counter || counted != 0).then_some(counted);
        };
        self.model.set_serial(before);
        let text = self.model.render();
        if self.publisher.is_current(&zone, &text) {
            self.publisher.assume(&zone, &text);
            return Some(before);
        }
        // A changed text needs another serial, also if instances were deleted before this process began.
        let serial = if counted == before {
            serial::next(before)
        } else {
            counted
        };
        self.model.set_serial(serial);
        Some(serial)
    }
}

/// Writes the zone files after each change.
pub(super) async fn keep_written(mut files: Files, state: &Arc<Mutex<State>>, changed: &Notify) {
    let mut backoff = BACKOFF;
    loop {
        changed.notified().await;
        let began = Instant::now();
        let shared = Arc::clone(state);
        let writing = tokio::task::spawn_blocking(move || {
            let written = files.write(&shared);
            (files, written)
        });
        let Ok((returned, written)) = writing.await else {
            return;
        };
        files = returned;
        match written {
            Ok(()) => {
                backoff.reset();
                let took = began.elapsed() * SHARE;
                tokio::time::sleep(took.clamp(PAUSE, LONGEST_PAUSE)).await;
            }
            Err(error) => {
                let error = chain(&error);
                let retry = backoff.next_delay();
                tracing::error!(error, ?retry, "cannot write the zone, trying again");
                tokio::time::sleep(retry).await;
                changed.notify_one();
            }
        }
    }
}
