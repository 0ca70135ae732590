//! Changes that are neither kept nor undone yet, and how to undo them whatever is killed meanwhile (nmstate §5.6).
//!
//! ```text
//!   apply ──> how to undo it: on disk ──> the library changes the host ──> commit: gone from the disk
//!                  │                                                  └──> rollback: NetworkManager's checkpoint,
//!                  └── next start: undone before anything else                the way back of our own where it lost it
//! ```
//!
//! NetworkManager keeps checkpoints in memory: they end with it, and what was applied would stay. The kernel has none
//! at all. So the way back is written down before anything changes.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cni::files::write_atomically;
use nmstate::NetworkState;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::secrets;

use super::{Backend, Error, NOTHING_PENDING, PLUGIN_FAILURE, cause, kernel, library, version};

/// How long a change may go without being committed, in seconds; then NetworkManager undoes it.
const CHECKPOINT: u32 = 480;
/// The file that tells a successor how to undo what was not committed.
const FILE: &str = "uncommitted";
/// How long NetworkManager may take to come back, before a change can't be undone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wait before a change that could not be undone is undone again: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The way back from a change.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum WayBack {
    /// By NetworkManager's checkpoint; where that was lost, because another NetworkManager runs now, by a document.
    NetworkManager {
        /// Which NetworkManager has the checkpoint, see [`version::owner`].
        owner: String,
        /// What undoes the change; null when that is not known.
        revert: Value,
    },
    /// By what was there before.
    Kernel(Box<kernel::Snapshot>),
}

/// What is applied and not committed.
#[derive(Debug)]
pub(super) struct Pending {
    backend: Backend,
    directory: Option<PathBuf>,
    way_back: Option<WayBack>,
    /// What could not be undone, and is to be tried again.
    again: Option<Again>,
}

/// Another attempt to undo a change.
#[derive(Clone, Copy, Debug)]
struct Again {
    due: Instant,
    /// How long it was waited for.
    pause: Duration,
}

impl Pending {
    /// Nothing yet. With a directory, ways back are kept there too.
    pub(super) fn new(backend: Backend, directory: Option<PathBuf>) -> Self {
        Self {
            backend,
            directory,
            way_back: None,
            again: None,
        }
    }

    /// When a change is to be undone that could not be undone before: nobody else asks for it after the last attempt
    /// at a policy.
    pub(super) fn due(&self) -> Option<Instant> {
        self.again.map(|again| again.due)
    }

    /// Undoes what could not be undone before.
    pub(super) async fn try_again(&mut self) {
        match self.rollback().await {
            Ok(()) => tracing::info!("rolled back a change that could not be rolled back before"),
            Err(error) => {
                tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
            }
        }
    }

    /// Undoes what was applied here and not committed, for whoever ends; nothing of others.
    pub(super) async fn leave(&mut self) -> Result<(), Error> {
        if self.way_back.is_none() {
            return Ok(());
        }
        self.rollback().await
    }

    /// Undoes what a predecessor left.
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
            Ok(way_back) => self.way_back = Some(way_back),
            Err(error) => {
                tracing::error!(%error, "malformed: {}", file.display());
                return;
            }
        }
        match self.rollback().await {
            Ok(()) => tracing::info!("rolled back a change that a predecessor did not commit"),
            Err(error) => {
                tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
            }
        }
    }

    /// Makes the host what the document says; undone by then when it fails.
    pub(super) async fn apply(&mut self, desired: Value) -> Result<(), Error> {
        let desired = match self.backend {
            Backend::NetworkManager => desired,
            Backend::Kernel => kernel::supported(desired)?,
        };
        let mut state = library::document(&desired)?;
        let way_back = match self.backend {
            Backend::NetworkManager => WayBack::NetworkManager {
                owner: came_back().await?,
                revert: revert(&state).await,
            },
            Backend::Kernel => WayBack::Kernel(Box::new(kernel::Snapshot::take(
                &desired,
                &library::report(self.backend).await?,
            )?)),
        };
        self.keep(way_back)?;
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

    /// After a change that failed: the library has rolled back by NetworkManager's checkpoint, if it could.
    async fn undo_failed(&mut self) -> Result<(), Error> {
        if let Some(WayBack::NetworkManager { owner, revert }) = &self.way_back
            && version::owner().await.is_ok_and(|now| now == *owner)
            && version::has_checkpoints().await.is_ok_and(|there| !there)
            && restore_names(revert).await.is_ok()
        {
            self.forget();
            return Ok(());
        }
        self.rollback().await
    }

    /// Keeps what was applied. What can't be kept is undone later.
    pub(super) async fn commit(&mut self) -> Result<(), Error> {
        match self.confirm().await {
            Ok(()) => self.forget(),
            Err(error) => {
                self.undo_later();
                return Err(error);
            }
        }
        Ok(())
    }

    async fn confirm(&self) -> Result<(), Error> {
        match &self.way_back {
            None if self.backend == Backend::Kernel => Err(nothing()),
            Some(WayBack::Kernel(_)) => Ok(()),
            // Its checkpoint ended with the former NetworkManager: what was applied stays without a commit.
            Some(WayBack::NetworkManager { owner, .. }) if came_back().await? != *owner => Ok(()),
            _ => Ok(NetworkState::checkpoint_commit_async("").await?),
        }
    }

    /// Undoes what was applied and not committed. What of it fails is tried again later, unless it is asked for.
    pub(super) async fn rollback(&mut self) -> Result<(), Error> {
        let undone = self.undo().await;
        if undone.is_err() {
            self.undo_later();
        }
        undone
    }

    fn undo_later(&mut self) {
        if self.way_back.is_some() {
            let pause = self.again.map_or(FIRST_PAUSE, |again| again.pause * 2);
            let pause = pause.min(LONGEST_PAUSE);
            let due = Instant::now() + pause;
            self.again = Some(Again { due, pause });
        }
    }

    async fn undo(&mut self) -> Result<(), Error> {
        match &self.way_back {
            None if self.backend == Backend::Kernel => return Err(nothing()),
            None => NetworkState::checkpoint_rollback_async("").await?,
            Some(WayBack::Kernel(snapshot)) => snapshot.restore().await?,
            Some(WayBack::NetworkManager { owner, revert }) => {
                let now = came_back().await?;
                if now == *owner {
                    // Without a checkpoint its time has run out, which undid the change as well.
                    if version::has_checkpoints().await? {
                        NetworkState::checkpoint_rollback_async("").await?;
                    }
                    restore_names(revert).await?;
                } else if revert.is_null() {
                    // Nobody will ever know more.
                    self.forget();
                    return Err(failure("NetworkManager was restarted and lost its checkpoint"));
                } else {
                    undo_by(revert).await?;
                }
            }
        }
        self.forget();
        Ok(())
    }

    fn file(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(FILE))
    }

    /// Remembers the way back, on disk too: there without secrets. A successor leaves those as the change made them.
    fn keep(&mut self, way_back: WayBack) -> Result<(), Error> {
        if let Some(file) = self.file() {
            let way_back = serde_json::to_value(&way_back).unwrap_or_default();
            let content = secrets::hidden(&way_back).to_string();
            let content = content.as_bytes();
            let written = write_atomically(&file, content, 0o600);
            if let Err(error) = written {
                let text = format!("cannot write down how to undo it: {}: {error}", file.display());
                // NetworkManager undoes by itself what nobody commits; the kernel does not.
                if self.backend == Backend::Kernel {
                    return Err(failure(text));
                }
                tracing::warn!("{text}");
            }
        }
        self.way_back = Some(way_back);
        self.again = None;
        Ok(())
    }

    fn forget(&mut self) {
        self.way_back = None;
        self.again = None;
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
    // Large enough to be kept off the stack.
    Ok(Box::pin(state.apply_async()).await?)
}

/// The document that undoes another one on the host as it is now; null when the library can't say.
async fn revert(desired: &NetworkState) -> Value {
    let before = async {
        let mut before = library::state_of(Backend::NetworkManager);
        before.set_include_secrets(true);
        let before = library::retrieved(before).await?;
        Ok::<_, Error>(desired.generate_revert(&before)?)
    };
    match before.await {
        Ok(revert) => serde_json::to_value(revert).unwrap_or_default(),
        Err(error) => {
            tracing::info!("no way back but NetworkManager's checkpoint: {error}");
            Value::Null
        }
    }
}

/// The name of the NetworkManager that runs, once one does.
async fn came_back() -> Result<String, Error> {
    let back = async {
        loop {
            match version::next_owner().await {
                Ok(owner) => return owner,
                Err(error) => tracing::warn!("waiting for NetworkManager: {error}"),
            }
            // Nobody tells of a bus that comes back.
            sleep(Duration::from_secs(1)).await;
        }
    };
    let back = timeout(PATIENCE, back).await;
    back.map_err(|_| failure("NetworkManager does not run"))
}

/// Restores name servers that belong to no interface: checkpoints of older versions of NetworkManager lack them.
async fn restore_names(revert: &Value) -> Result<(), Error> {
    let Some(names) = revert.pointer("/dns-resolver/config") else {
        return Ok(());
    };
    let mut names = library::document(&json!({ "dns-resolver": { "config": names } }))?;
    let now = library::current(Backend::NetworkManager).await?;
    let left = serde_json::to_value(names.gen_diff(&now)?).unwrap_or_default();
    if left.get("dns-resolver").is_some() {
        tracing::info!("the checkpoint left the name servers, restoring them");
        names.set_verify_change(false);
        Box::pin(names.apply_async()).await?;
    }
    Ok(())
}

/// Undoes a change whose checkpoint ended with NetworkManager.
async fn undo_by(revert: &Value) -> Result<(), Error> {
    tracing::warn!(
        "NetworkManager was restarted and lost its checkpoint: going back by what was there before"
    );
    let mut state = library::document(revert)?;
    // What differs in the end is still nearer to what was there than the change, which the library would go back to.
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
    fn a_way_back_is_written_down_without_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let mut pending = Pending::new(Backend::NetworkManager, Some(directory.path().to_owned()));
        let revert =
            |password: &str| json!({"interfaces": [{"name": "eth1", "802.1x": {"password": password}}]});
        let way_back = |revert| WayBack::NetworkManager {
            owner: ":1.7".to_owned(),
            revert,
        };
        pending.keep(way_back(revert("hunter2"))).unwrap();
        let written = fs::read(directory.path().join(FILE)).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        let expected = serde_json::to_value(way_back(revert(secrets::HIDDEN))).unwrap();
        assert_eq!(written, expected);
        let Some(WayBack::NetworkManager { revert: kept, .. }) = pending.way_back else {
            panic!("no way back");
        };
        assert_eq!(kept, revert("hunter2"));
    }

    // nmstate#50
    #[tokio::test(start_paused = true)]
    async fn a_commit_that_fails_is_followed_by_a_rollback() {
        let mut pending = Pending::new(Backend::NetworkManager, None);
        let way_back = WayBack::NetworkManager {
            owner: ":1.7".to_owned(),
            revert: Value::Null,
        };
        pending.keep(way_back).unwrap();
        assert_eq!(pending.due(), None);
        let Err(error) = pending.commit().await else {
            println!("skipped: a NetworkManager runs here");
            return;
        };
        assert!(error.text.contains("NetworkManager"), "{error}");
        assert!(pending.way_back.is_some());
        let due = pending.due().expect("another attempt");
        assert!(due <= Instant::now() + FIRST_PAUSE);
    }
}
