//! Changes that are not committed yet, and their roll-back after a kill at any point (nmstate §5.6).
//!
//! ```text
//!   apply ──> undo record on disk ──> the library changes the host ──> commit: record removed
//!                  │                                              └──> roll-back by NetworkManager's checkpoint,
//!                  └── next start: roll-back before anything else       or by the record if the checkpoint is lost
//! ```
//!
//! NetworkManager keeps checkpoints in memory: when it ends, they are lost and the change stays. The kernel has no
//! checkpoints. So an undo record is written before the change.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cni::files::write_atomically;
use linux::backoff::Backoff;
use nmstate::NetworkState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::secrets;

use super::limit::{ANSWER, CONFIRMATION, within};
use super::{Backend, Error, NOTHING_PENDING, PLUGIN_FAILURE, cause, kernel, library, version};

/// Time without a commit after which NetworkManager rolls a change back, in seconds.
const CHECKPOINT: u32 = 480;
/// Sections of a document that the library applies outside of the checkpoint, beside [`NAME_SERVERS`].
const BEYOND_CHECKPOINT: [&str; 3] = ["hostname", "ovs-db", "ovn"];
/// Section of the name servers. Checkpoints of older NetworkManager versions lack those without an interface.
const NAME_SERVERS: &str = "dns-resolver";
/// File with the undo record of an uncommitted change.
const FILE: &str = "uncommitted";
/// How long NetworkManager may take to come back before a roll-back fails.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Back-off of a failed roll-back.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

/// How to undo a change.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum UndoRecord {
    /// By NetworkManager's checkpoint; by a document if another NetworkManager runs now, which does not have it.
    NetworkManager {
        /// The NetworkManager that has the checkpoint, see [`version::owner`].
        owner: String,
        /// The document that reverts the change; null if the library does not know it.
        revert: Value,
    },
    /// By the recorded state of the kernel.
    Kernel(Box<kernel::Snapshot>),
}

/// The uncommitted change, if there is one.
#[derive(Debug)]
pub(super) struct Pending {
    backend: Backend,
    directory: Option<PathBuf>,
    record: Option<UndoRecord>,
    /// The retry of a failed roll-back.
    retry: Option<Retry>,
}

/// A scheduled retry of a roll-back.
#[derive(Clone, Copy, Debug)]
struct Retry {
    due: Instant,
    backoff: Backoff,
}

impl Pending {
    /// No change yet. With a directory, undo records are stored there too.
    pub(super) fn new(backend: Backend, directory: Option<PathBuf>) -> Self {
        Self {
            backend,
            directory,
            record: None,
            retry: None,
        }
    }

    /// When to retry a failed roll-back. After the last attempt at a policy, no request triggers it.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry.map(|retry| retry.due)
    }

    /// Retries a failed roll-back.
    pub(super) async fn retry(&mut self) {
        match self.rollback().await {
            Ok(()) => tracing::info!("rolled back a change after earlier failures"),
            Err(error) => {
                tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
            }
        }
    }

    /// Rolls back an uncommitted change of this process, if there is one.
    pub(super) async fn close(&mut self) -> Result<(), Error> {
        if self.record.is_none() {
            return Ok(());
        }
        self.rollback().await
    }

    /// Rolls back the uncommitted change of a previous process.
    pub(super) async fn recover(&mut self) {
        let Some(file) = self.file() else { return };
        let read = match fs::read(&file) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::error!(%error, "cannot read {}", file.display());
                return;
            }
        };
        match serde_json::from_slice(&read) {
            Ok(record) => self.record = Some(record),
            Err(error) => {
                tracing::error!(%error, "malformed: {}", file.display());
                return;
            }
        }
        match self.rollback().await {
            Ok(()) => tracing::info!("rolled back an uncommitted change of a previous handler"),
            Err(error) => {
                tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
            }
        }
    }

    /// Applies a document; rolls back if that fails.
    pub(super) async fn apply(&mut self, desired: Value) -> Result<(), Error> {
        let desired = match self.backend {
            Backend::NetworkManager => desired,
            Backend::Kernel => kernel::supported(desired)?,
        };
        let mut state = library::document(&desired)?;
        let record = match self.backend {
            Backend::NetworkManager => UndoRecord::NetworkManager {
                owner: wait_for_network_manager().await?,
                revert: revert(&state).await,
            },
            Backend::Kernel => UndoRecord::Kernel(Box::new(kernel::Snapshot::take(
                &desired,
                &library::report(self.backend).await?,
            )?)),
        };
        self.store(record)?;
        state.set_kernel_only(self.backend == Backend::Kernel);
        state.set_commit(false);
        state.set_verify_change(true);
        state.set_timeout(CHECKPOINT);
        let Err(mut error) = change(self.backend, &desired, &state).await else {
            return Ok(());
        };
        if let Some(cause) = cause::of(&error, &desired) {
            error.text = format!("{cause}: {}", error.text);
        }
        if let Err(left) = self.undo_failed().await {
            error
                .text
                .push_str("; what was changed until then could not be undone: ");
            error.text.push_str(&left.text);
        }
        Err(error)
    }

    /// After a failed change: the library has rolled back to NetworkManager's checkpoint, if it could.
    async fn undo_failed(&mut self) -> Result<(), Error> {
        if let Some(UndoRecord::NetworkManager { owner, revert }) = &self.record
            && version::owner().await.is_ok_and(|now| now == *owner)
            && version::has_checkpoints().await.is_ok_and(|there| !there)
            && restore_beyond_checkpoint(revert).await.is_ok()
        {
            self.clear();
            return Ok(());
        }
        self.rollback().await
    }

    /// Commits the change. A failed commit is rolled back later.
    pub(super) async fn commit(&mut self) -> Result<(), Error> {
        match self.confirm().await {
            Ok(()) => self.clear(),
            Err(error) => {
                self.undo_later();
                return Err(error);
            }
        }
        Ok(())
    }

    async fn confirm(&self) -> Result<(), Error> {
        match &self.record {
            None if self.backend == Backend::Kernel => Err(nothing()),
            Some(UndoRecord::Kernel(_)) => Ok(()),
            // The checkpoint ended with an earlier NetworkManager: the change is permanent without a commit.
            Some(UndoRecord::NetworkManager { owner, .. }) if wait_for_network_manager().await? != *owner => {
                Ok(())
            }
            _ => {
                let commit = async { Ok(NetworkState::checkpoint_commit_async("").await?) };
                within(CONFIRMATION, commit).await
            }
        }
    }

    /// Rolls back the uncommitted change. A failed roll-back is retried later.
    pub(super) async fn rollback(&mut self) -> Result<(), Error> {
        let undone = self.undo().await;
        if undone.is_err() {
            self.undo_later();
        }
        undone
    }

    fn undo_later(&mut self) {
        if self.record.is_some() {
            let mut backoff = self.retry.map_or(BACKOFF, |retry| retry.backoff);
            let due = Instant::now() + backoff.next_delay();
            self.retry = Some(Retry { due, backoff });
        }
    }

    async fn undo(&mut self) -> Result<(), Error> {
        match &self.record {
            None if self.backend == Backend::Kernel => return Err(nothing()),
            None => roll_back_to_checkpoint().await?,
            Some(UndoRecord::Kernel(snapshot)) => snapshot.restore().await?,
            Some(UndoRecord::NetworkManager { owner, revert }) => {
                let now = wait_for_network_manager().await?;
                if now == *owner {
                    // Without a checkpoint, its timeout has already rolled the change back.
                    if version::has_checkpoints().await? {
                        roll_back_to_checkpoint().await?;
                    }
                    restore_beyond_checkpoint(revert).await?;
                } else if revert.is_null() {
                    // No retry can succeed.
                    self.clear();
                    return Err(failure("NetworkManager was restarted and lost its checkpoint"));
                } else {
                    apply_revert(revert).await?;
                }
            }
        }
        self.clear();
        Ok(())
    }

    fn file(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(FILE))
    }

    /// Stores the undo record, on disk without secrets: a later process leaves secrets as the change set them.
    fn store(&mut self, record: UndoRecord) -> Result<(), Error> {
        if let Some(file) = self.file() {
            let record = serde_json::to_value(&record).unwrap_or_default();
            let content = secrets::hidden(&record).to_string();
            let content = content.as_bytes();
            let written = write_atomically(&file, content, 0o600);
            if let Err(error) = written {
                let text = format!("cannot write the undo record {}: {error}", file.display());
                // NetworkManager rolls back by itself without a commit; the kernel does not.
                if self.backend == Backend::Kernel {
                    return Err(failure(text));
                }
                tracing::warn!("{text}");
            }
        }
        self.record = Some(record);
        self.retry = None;
        Ok(())
    }

    fn clear(&mut self) {
        self.record = None;
        self.retry = None;
        let Some(file) = self.file() else { return };
        let removed = fs::remove_file(&file).and_then(|()| {
            let directory = self.directory.as_ref().map(fs::File::open).transpose()?;
            directory.map_or(Ok(()), |directory| directory.sync_all())
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%error, "cannot remove {}", file.display());
            }
            _ => {}
        }
    }
}

async fn change(backend: Backend, desired: &Value, state: &NetworkState) -> Result<(), Error> {
    if backend == Backend::Kernel {
        kernel::prepare(desired)?;
    }
    // The future is too large for the stack.
    Ok(Box::pin(state.apply_async()).await?)
}

async fn roll_back_to_checkpoint() -> Result<(), Error> {
    let rollback = async { Ok(NetworkState::checkpoint_rollback_async("").await?) };
    within(CONFIRMATION, rollback).await
}

/// The document that reverts another one on the host as it is now; null if the library does not know it.
async fn revert(desired: &NetworkState) -> Value {
    let before = async {
        let mut before = library::state_of(Backend::NetworkManager);
        before.set_include_secrets(true);
        let before = library::retrieved(before).await?;
        let mut revert = desired.generate_revert(&before)?;
        if let (Some(desired), Some(name)) = (&desired.hostname, &mut revert.hostname) {
            // The library reverts both names, and NetworkManager refuses the empty name of a host without one.
            if desired.running.is_none() {
                name.running = None;
            }
            if desired.config.is_none() {
                name.config = None;
            }
        }
        Ok::<_, Error>(revert)
    };
    match within(ANSWER, before).await {
        Ok(revert) => serde_json::to_value(revert).unwrap_or_default(),
        Err(error) => {
            tracing::info!("only NetworkManager's checkpoint can undo this change: {error}");
            Value::Null
        }
    }
}

/// Waits for NetworkManager, and returns its identity.
async fn wait_for_network_manager() -> Result<String, Error> {
    let back = async {
        loop {
            match version::next_owner().await {
                Ok(owner) => return owner,
                Err(error) => tracing::warn!("waiting for NetworkManager: {error}"),
            }
            // The return of the bus itself causes no event.
            sleep(Duration::from_secs(1)).await;
        }
    };
    let back = timeout(TIMEOUT, back).await;
    back.map_err(|_| failure("NetworkManager does not run"))
}

/// Restores what the checkpoint lacks, and the host does not have yet.
async fn restore_beyond_checkpoint(revert: &Value) -> Result<(), Error> {
    let former = beyond_checkpoint(revert);
    if former.is_empty() {
        return Ok(());
    }
    let restored = async {
        let former = library::document(&Value::Object(former))?;
        let mut left = former.gen_diff(&library::current(Backend::NetworkManager).await?)?;
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!("restoring what the checkpoint lacks");
        left.set_verify_change(false);
        Ok(Box::pin(left.apply_async()).await?)
    };
    within(CONFIRMATION, restored).await
}

/// The part of a document that NetworkManager's checkpoints lack.
fn beyond_checkpoint(document: &Value) -> Map<String, Value> {
    let sections = BEYOND_CHECKPOINT.iter().filter_map(|section| {
        let part = document.get(section)?;
        Some(((*section).to_owned(), part.clone()))
    });
    let names = document.get(NAME_SERVERS).and_then(|names| names.get("config"));
    let names = names.map(|names| (NAME_SERVERS.to_owned(), json!({ "config": names })));
    sections.chain(names).collect()
}

/// Undoes a change whose checkpoint was lost.
async fn apply_revert(revert: &Value) -> Result<(), Error> {
    tracing::warn!("NetworkManager was restarted and lost its checkpoint, reverting by the undo record");
    let mut state = library::document(revert)?;
    // A partial revert is better than a failed verification, which would restore the change.
    state.set_verify_change(false);
    Ok(Box::pin(state.apply_async()).await?)
}

fn nothing() -> Error {
    Error::new(NOTHING_PENDING, "nothing to commit or to roll back")
}

fn failure(text: impl Into<String>) -> Error {
    Error::new(PLUGIN_FAILURE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // nmstate.md 5.6
    #[test]
    fn undo_record_is_stored_without_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let mut pending = Pending::new(Backend::NetworkManager, Some(directory.path().to_owned()));
        let revert =
            |password: &str| json!({"interfaces": [{"name": "eth1", "802.1x": {"password": password}}]});
        let record = |revert| UndoRecord::NetworkManager {
            owner: ":1.7".to_owned(),
            revert,
        };
        pending.store(record(revert("hunter2"))).unwrap();
        let written = fs::read(directory.path().join(FILE)).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        let expected = serde_json::to_value(record(revert(secrets::HIDDEN))).unwrap();
        assert_eq!(written, expected);
        let Some(UndoRecord::NetworkManager { revert: kept, .. }) = pending.record else {
            panic!("no undo record");
        };
        assert_eq!(kept, revert("hunter2"));
    }

    #[test]
    fn part_that_checkpoints_lack_is_restored() {
        let revert = json!({
            "hostname": {"config": "node01"},
            "dns-resolver": {"config": {"server": ["192.0.2.1"]}, "running": {"server": ["192.0.2.2"]}},
            "routes": {"config": []},
            "interfaces": [{"name": "eth1"}],
            "ovs-db": {"external_ids": {"a": null}},
            "ovn": {"bridge-mappings": [{"localnet": "a", "state": "absent"}]},
        });
        let expected = json!({
            "hostname": {"config": "node01"},
            "dns-resolver": {"config": {"server": ["192.0.2.1"]}},
            "ovs-db": {"external_ids": {"a": null}},
            "ovn": {"bridge-mappings": [{"localnet": "a", "state": "absent"}]},
        });
        assert_eq!(Value::Object(beyond_checkpoint(&revert)), expected);
        assert!(beyond_checkpoint(&Value::Null).is_empty());
        assert!(beyond_checkpoint(&json!({"interfaces": []})).is_empty());
    }

    // nmstate#50
    #[tokio::test(start_paused = true)]
    async fn failed_commit_is_rolled_back_later() {
        let mut pending = Pending::new(Backend::NetworkManager, None);
        let record = UndoRecord::NetworkManager {
            owner: ":1.7".to_owned(),
            revert: Value::Null,
        };
        pending.store(record).unwrap();
        assert_eq!(pending.retry_at(), None);
        let Err(error) = pending.commit().await else {
            println!("skipped: a NetworkManager runs here");
            return;
        };
        assert!(error.text.contains("NetworkManager"), "{error}");
        assert!(pending.record.is_some());
        let due = pending.retry_at().expect("another attempt");
        assert!(due <= Instant::now() + BACKOFF.after(1));
    }
}
