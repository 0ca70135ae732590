//! Replays DELs that no daemon answered (multus.md §5.3). The shim keeps them in files
//! ([`plugins::multus_shim::kept_dels`]); the daemon handles each like any other DEL, and removes its file on success.

use super::del::DelRetry;
use super::gc::AT_ONCE;
use super::{Daemon, in_file};
use crate::cluster::ClusterView;
use crate::names;
use crate::networks::net_conf::MultusConfig;
use crate::request::Request;
use crate::sandbox::{PodVerb, Sandbox};
use cni::Error;
use cni::files;
use futures::StreamExt as _;
use kube_kit::watch_dir::{Change, DirWatcher};
use linux::backoff::Backoff;
use linux::files::identity;
use plugins::multus_shim::kept_dels;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Back-off of failed replays.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(10));
/// Interval of directory reads without a watch, and with one.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(5);
const WATCHED_PAUSE: Duration = Duration::from_mins(10);

/// The outcome of a replay.
enum Outcome {
    /// The DEL succeeded, and its file is removed.
    Done,
    /// The DEL failed and is retried.
    Failed(Error),
    /// The file does not hold a DEL.
    Broken(String),
}

/// A kept DEL.
struct KeptDel {
    sandbox: Sandbox,
    config: Vec<u8>,
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Replays all kept DELs, present and future. Never returns.
    pub(crate) async fn replay_kept_dels(&self) {
        let mut watched = Watched::new(self.kept_dels_dir(&self.state_dir()));
        let mut failing = BTreeSet::new();
        let mut rounds = 1_u32;
        loop {
            // Watch first, so that no file is missed between watch and read.
            watched.renew();
            self.replay_new(&watched.dir, &mut failing).await;
            let retry = async {
                if failing.is_empty() {
                    futures::future::pending::<()>().await;
                } else {
                    sleep(BACKOFF.after(rounds)).await;
                }
            };
            tokio::select! {
                () = watched.changed() => {}
                () = retry => {
                    failing.clear();
                    rounds = rounds.saturating_add(1);
                    continue;
                }
            }
            if failing.is_empty() {
                rounds = 1;
            }
        }
    }

    /// Replays all kept DELs except those that failed before.
    async fn replay_new(&self, dir: &Path, failing: &mut BTreeSet<String>) {
        let names = match kept(dir) {
            Ok(names) => names,
            Err(error) => {
                return tracing::error!(error = %in_file(dir, &error), "cannot read the directory of kept DELs, none is replayed");
            }
        };
        let new = names.into_iter().filter(|name| !failing.contains(name));
        let tries = new.map(|name| async move {
            let outcome = self.replay_file(&dir.join(&name)).await;
            (name, outcome)
        });
        let outcomes: Vec<_> = futures::stream::iter(tries)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let tried = outcomes.len();
        let mut first = None;
        for (name, outcome) in outcomes {
            match outcome {
                Outcome::Done => {}
                Outcome::Failed(error) => {
                    first.get_or_insert(error);
                    failing.insert(name);
                }
                Outcome::Broken(why) => set_aside(&dir.join(name), &why),
            }
        }
        // One line for all of them.
        if let Some(error) = first {
            tracing::warn!(%error, failing = failing.len(), tried, "replay of kept DELs failed, retrying with back-off");
        } else if tried > 0 {
            tracing::info!(tried, "replayed kept DELs");
        }
    }

    async fn replay_file(&self, path: &Path) -> Outcome {
        let kept = match KeptDel::read(path) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Outcome::Done,
            Err(why) => return Outcome::Broken(why),
        };
        if let Err(error) = self.net_conf(&kept.config) {
            return Outcome::Broken(error.to_string());
        }
        let _lock = self.locks.lock(&kept.sandbox.container_id).await;
        self.replay(path, &kept).await
    }

    /// Replays a DEL under the sandbox's lock. An earlier holder of the lock may have done it already.
    async fn replay(&self, path: &Path, KeptDel { sandbox, config }: &KeptDel) -> Outcome {
        if !path.exists() {
            return Outcome::Done;
        }
        tracing::info!("replaying a kept DEL: {sandbox}");
        let mut sandbox = sandbox.clone();
        // The namespace may be gone since, for example after a reboot.
        if !self.netns_exists(&sandbox.netns) {
            sandbox.netns = String::new();
        }
        if let Err(error) = self.del(&sandbox, config, DelRetry::UntilDone).await {
            return Outcome::Failed(error);
        }
        match files::remove_if_present(path) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(Error::internal(in_file(path, &error))),
        }
    }

    /// Replays a kept DEL of a sandbox before its new ADD: a stale DEL must not tear down a newer attachment.
    pub(super) async fn replay_before_add(&self, sandbox: &Sandbox, config: &MultusConfig) {
        let path = self.kept_del_file(sandbox, config);
        if !path.exists() {
            return;
        }
        let why = match KeptDel::read(&path) {
            Ok(Some(kept)) => match self.replay(&path, &kept).await {
                Outcome::Done => return,
                Outcome::Failed(error) => error.to_string(),
                Outcome::Broken(why) => why,
            },
            Ok(None) => return,
            Err(why) => why,
        };
        set_aside(&path, &why);
    }

    /// Removes the kept DEL of a sandbox whose DEL succeeded.
    pub(super) fn forget_kept_del(&self, sandbox: &Sandbox, config: &MultusConfig) {
        let path = self.kept_del_file(sandbox, config);
        if let Err(error) = files::remove_if_present(&path) {
            tracing::warn!(
                error = in_file(&path, &error),
                "DEL succeeded, but its kept DEL cannot be removed"
            );
        }
    }

    fn kept_del_file(&self, sandbox: &Sandbox, config: &MultusConfig) -> PathBuf {
        self.kept_dels_dir(&config.cni_dir)
            .join(kept_dels::name(&sandbox.container_id, &sandbox.ifname))
    }

    /// The directory of kept DELs, as this process sees the host.
    fn kept_dels_dir(&self, cni_dir: &Path) -> PathBuf {
        self.config.on_host(&kept_dels::dir(cni_dir))
    }

    /// `cniDir` of multus' own configuration, or the default while that file is missing.
    fn state_dir(&self) -> PathBuf {
        self.own_conf()
            .map_or_else(|_| self.config.cni_dir(), |conf| conf.cni_dir)
    }
}

impl KeptDel {
    /// Reads a file; `None` when it is gone. The error is one line.
    fn read(path: &Path) -> Result<Option<Self>, String> {
        let size = match fs::symlink_metadata(path) {
            Ok(about) if about.is_file() => about.len(),
            Ok(_) => return Err("not a file".into()),
            Err(error) if files::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if size > kept_dels::MAX_CALL as u64 {
            return Err("too long".into());
        }
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if files::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let request = Request::decode(&text).map_err(|error| error.to_string())?;
        let Request::Pod {
            verb: PodVerb::Del,
            sandbox,
            config,
        } = request
        else {
            return Err("not a DEL".into());
        };
        let name = kept_dels::name(&sandbox.container_id, &sandbox.ifname);
        if path.file_name().is_none_or(|found| *found != *name) {
            return Err(format!("the file's name does not match its DEL, {name}"));
        }
        Ok(Some(Self { sandbox, config }))
    }
}

/// The directory of kept DELs, with a watch where the kernel allows one.
struct Watched {
    dir: PathBuf,
    /// The watch and its directory. While the directory is open, no other one gets its inode.
    watch: Option<(DirWatcher, File)>,
    is_failure_logged: bool,
}

impl Watched {
    fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            watch: None,
            is_failure_logged: false,
        }
    }

    /// Watches the directory that is at the path now, unless it is already watched.
    fn renew(&mut self) {
        let now = identity(&self.dir);
        let is_same = |(_, watched): &(DirWatcher, File)| {
            let watched = watched.metadata().ok();
            now.is_some() && now == watched.map(|watched| (watched.dev(), watched.ino()))
        };
        if self.watch.as_ref().is_some_and(is_same) {
            return;
        }
        self.watch = match watch(&self.dir) {
            Ok(watch) => {
                self.is_failure_logged = false;
                Some(watch)
            }
            Err(error) => {
                self.fails(&error);
                None
            }
        };
    }

    /// Waits until there may be a new file.
    async fn changed(&mut self) {
        let Some((watcher, _)) = &mut self.watch else {
            return sleep(UNWATCHED_PAUSE).await;
        };
        // The watch of a removed or renamed directory reports nothing.
        if let Ok(Err(error)) = timeout(WATCHED_PAUSE, changed(watcher)).await {
            self.fails(&error);
            self.watch = None;
            sleep(UNWATCHED_PAUSE).await;
        }
    }

    fn fails(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failure_logged, true) {
            let error = in_file(&self.dir, error);
            tracing::error!(%error, "cannot watch the directory of kept DELs, reading it every {UNWATCHED_PAUSE:?}");
        }
    }
}

fn watch(dir: &Path) -> io::Result<(DirWatcher, File)> {
    files::create_private_folder(dir)?;
    let opened = File::open(dir)?;
    let mut watcher = DirWatcher::new()?;
    watcher.add(dir)?;
    Ok((watcher, opened))
}

/// Waits for a new file, or for lost events.
async fn changed(watcher: &mut DirWatcher) -> io::Result<()> {
    loop {
        let changes = watcher.next().await?;
        let is_new = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            !name.as_encoded_bytes().starts_with(b".")
        };
        if changes.iter().any(|event| match event.change {
            Change::Written => is_new(&event.path),
            Change::Gone => false,
            Change::Unknown => true,
        }) {
            return Ok(());
        }
    }
}

fn kept(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.filter_map(|file| match file {
        Ok(file) => file
            .file_name()
            .into_string()
            .ok()
            .filter(|name| !name.starts_with('.'))
            .map(Ok),
        Err(error) => Some(Err(error)),
    });
    names.collect()
}

/// Sets a file aside that does not hold a DEL.
fn set_aside(path: &Path, why: &str) {
    tracing::error!(file = %path.display(), why, "cannot replay a kept DEL, setting it aside");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}{}", names::BROKEN));
    if let Err(error) = fs::rename(path, aside) {
        tracing::error!(error = in_file(path, &error), "cannot set the kept DEL aside");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replaced_directory_is_watched_again() {
        // multus#120
        let node = tempfile::tempdir().unwrap();
        let mut watched = Watched::new(node.path().join("missed"));
        for _ in 0..3 {
            watched.renew();
            assert!(watched.watch.is_some());
            fs::write(watched.dir.join("c1:eth0"), "").unwrap();
            let changed = timeout(Duration::from_secs(60), watched.changed()).await;
            assert!(changed.is_ok(), "the file is not seen");
            fs::remove_dir_all(&watched.dir).unwrap();
        }
    }
}
