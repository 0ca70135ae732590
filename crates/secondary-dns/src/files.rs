//! Writes zone files beside the monitor: no event waits for the text of a zone (secondary-dns §5, §9).
//!
//! ```text
//! State ── what has changed ──> Model of its own ──> Publisher ──> zone files
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube_kit::client::chain;
use kube_kit::lock;
use tokio::sync::Notify;

use crate::model::Model;
use crate::monitor::State;
use crate::publish::{self, Publisher};
use crate::zone::serial;

/// The shortest time between two editions of the zone files, and the longest that an edition is put off.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// An edition that takes long is made less often: so much of the time at most goes into editions.
const SHARE: u32 = 5;
/// The back-off after a write that failed, at first and at most.
const RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The writers of one directory, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// Held while one of them writes.
    gate: Arc<Mutex<()>>,
    /// Zones of former settings, whose files are removed once there is a file of the present ones.
    obsolete: Arc<Mutex<BTreeSet<String>>>,
}

impl Directory {
    /// The zone of the settings changes.
    pub(crate) fn replace(&self, before: &str, now: &str) {
        let mut obsolete = lock(&self.obsolete);
        obsolete.insert(before.to_owned());
        obsolete.remove(now);
    }
}

/// The writer of the zone files of one monitor. It has a model of its own.
#[derive(Debug)]
pub(crate) struct Files {
    publisher: Publisher,
    directory: Directory,
    model: Model,
    /// Whether serials begin at 0, as those of the upstream monitor do.
    counter: bool,
    is_first: bool,
}

impl Files {
    /// Has written nothing yet.
    pub(crate) fn new(publisher: Publisher, directory: Directory, model: Model, counter: bool) -> Self {
        Self {
            publisher,
            directory,
            model,
            counter,
            is_first: true,
        }
    }

    /// Brings the zone files up to date. The lock of the state is held for what has changed alone.
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

    /// The serial of the first edition: that of the file where the file is up to date. `None` where there is no edition yet:
    /// the upstream monitor writes none before the first instance.
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
        // Another text needs another serial, also where instances went before this process began.
        let serial = if counted == before {
            serial::next(before)
        } else {
            counted
        };
        self.model.set_serial(serial);
        Some(serial)
    }
}

/// Writes the zone files whenever something has changed.
pub(crate) async fn publish(mut files: Files, state: &Arc<Mutex<State>>, changed: &Notify) {
    let mut retry = RETRY;
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
                retry = RETRY;
                let took = began.elapsed() * SHARE;
                tokio::time::sleep(took.clamp(PAUSE, LONGEST_PAUSE)).await;
            }
            Err(error) => {
                let error = chain(&error);
                tracing::error!(error, ?retry, "cannot write the zone, trying again");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LONGEST_RETRY);
                changed.notify_one();
            }
        }
    }
}
