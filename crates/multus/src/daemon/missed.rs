//! DELs that came while no daemon was there, made up for (multus.md §5.3). The shim kept them
//! ([`plugins::multus_shim::missed`]); here each is done like any other DEL, and its file goes once it succeeded.

use super::del::Manner;
use super::gc::AT_ONCE;
use super::{Daemon, in_file};
use crate::cluster::ClusterView;
use crate::names;
use crate::net_conf::MultusConfig;
use crate::request::{PodVerb, Request, Sandbox};
use crate::socket::identity;
use cni::Error;
use cni::files;
use futures::StreamExt as _;
use kube_kit::watch_dir::{Change, DirWatcher};
use plugins::multus_shim::missed;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// When those are tried again that failed; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// How often the directory is read while it is not watched, and while it is.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(5);
const WATCHED_PAUSE: Duration = Duration::from_mins(10);

/// How a call that was kept went.
enum Outcome {
    /// It is done, and its file is gone.
    Done,
    /// It is to be tried again.
    Failed(Error),
    /// It is none.
    Broken(String),
}

/// A call that was kept.
struct Missed {
    sandbox: Sandbox,
    config: Vec<u8>,
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Makes up for the DELs that were missed, those of now and those to come, for ever.
    pub async fn make_up(&self) {
        let mut watched = Watched::new(self.missed_dir(&self.state_dir()));
        let mut failing = BTreeSet::new();
        let mut pause = FIRST_PAUSE;
        loop {
            // First the watch, so that no file comes between it and the look.
            watched.renew();
            self.make_up_for_new(&watched.dir, &mut failing).await;
            let retry = async {
                if failing.is_empty() {
                    futures::future::pending::<()>().await;
                } else {
                    sleep(pause).await;
                }
            };
            tokio::select! {
                () = watched.changed() => {}
                () = retry => {
                    failing.clear();
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            if failing.is_empty() {
                pause = FIRST_PAUSE;
            }
        }
    }

    /// Tries all that are kept but those that failed before.
    async fn make_up_for_new(&self, dir: &Path, failing: &mut BTreeSet<String>) {
        let names = match kept(dir) {
            Ok(names) => names,
            Err(error) => return tracing::error!(error = %in_file(dir, &error), "missed DELs stay"),
        };
        let new = names.into_iter().filter(|name| !failing.contains(name));
        let tries = new.map(|name| async move {
            let outcome = self.make_up_for(&dir.join(&name)).await;
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
        // One line, however many there are.
        if let Some(error) = first {
            tracing::warn!(%error, failing = failing.len(), tried, "missed DELs fail, and are tried again");
        } else if tried > 0 {
            tracing::info!(tried, "made up for missed DELs");
        }
    }

    async fn make_up_for(&self, path: &Path) -> Outcome {
        let missed = match Missed::read(path) {
            Ok(Some(missed)) => missed,
            Ok(None) => return Outcome::Done,
            Err(why) => return Outcome::Broken(why),
        };
        if let Err(error) = self.net_conf(&missed.config) {
            return Outcome::Broken(error.to_string());
        }
        let _lock = self.locks.lock(&missed.sandbox.container_id).await;
        self.do_missed(path, &missed).await
    }

    /// Does it, when nobody else works on the sandbox. Who did so before us may have done it as well.
    async fn do_missed(&self, path: &Path, Missed { sandbox, config }: &Missed) -> Outcome {
        if !path.exists() {
            return Outcome::Done;
        }
        tracing::info!("making up for a missed DEL: {sandbox}");
        let mut sandbox = sandbox.clone();
        // Meanwhile it may be gone, and the node may have booted.
        if !self.is_there(&sandbox.netns) {
            sandbox.netns = String::new();
        }
        if let Err(error) = self.del(&sandbox, config, Manner::UntilDone).await {
            return Outcome::Failed(error);
        }
        match files::remove_if_present(path) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(Error::internal(in_file(path, &error))),
        }
    }

    /// What was missed of a sandbox that is now attached: nothing that is old may undo what is new.
    pub(super) async fn make_up_for_missed(&self, sandbox: &Sandbox, config: &MultusConfig) {
        let path = self.missed_file(sandbox, config);
        if !path.exists() {
            return;
        }
        let why = match Missed::read(&path) {
            Ok(Some(missed)) => match self.do_missed(&path, &missed).await {
                Outcome::Done => return,
                Outcome::Failed(error) => error.to_string(),
                Outcome::Broken(why) => why,
            },
            Ok(None) => return,
            Err(why) => why,
        };
        set_aside(&path, &why);
    }

    /// A DEL that was done was not missed.
    pub(super) fn forget_missed(&self, sandbox: &Sandbox, config: &MultusConfig) {
        let path = self.missed_file(sandbox, config);
        if let Err(error) = files::remove_if_present(&path) {
            tracing::warn!(error = in_file(&path, &error), "a DEL stays that was done");
        }
    }

    fn missed_file(&self, sandbox: &Sandbox, config: &MultusConfig) -> PathBuf {
        self.missed_dir(&config.cni_dir)
            .join(missed::name(&sandbox.container_id, &sandbox.ifname))
    }

    /// Where the shim keeps them: it runs on the host.
    fn missed_dir(&self, cni_dir: &Path) -> PathBuf {
        self.config.on_host(&missed::dir(cni_dir))
    }

    /// `cniDir` of the runtime's configuration, which may not be there yet.
    fn state_dir(&self) -> PathBuf {
        self.own_conf()
            .map_or_else(|_| self.config.cni_dir(), |conf| conf.cni_dir)
    }
}

impl Missed {
    /// The call in a file; `None` when there is none any more, else in one line what is wrong.
    fn read(path: &Path) -> Result<Option<Self>, String> {
        let size = match fs::symlink_metadata(path) {
            Ok(about) if about.is_file() => about.len(),
            Ok(_) => return Err("not a file".into()),
            Err(error) if files::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if size > missed::MAX_CALL as u64 {
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
        let name = missed::name(&sandbox.container_id, &sandbox.ifname);
        if path.file_name().is_none_or(|found| *found != *name) {
            return Err(format!("the call of {name} under another name"));
        }
        Ok(Some(Self { sandbox, config }))
    }
}

/// The directory of kept DELs: watched where the kernel allows it, else read from time to time.
struct Watched {
    dir: PathBuf,
    /// The watch, and the directory that it is about. As long as it is open, no other one has its inode.
    watch: Option<(DirWatcher, File)>,
    is_failure_told: bool,
}

impl Watched {
    fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            watch: None,
            is_failure_told: false,
        }
    }

    /// Watches the directory that is at the path now, unless that is watched already.
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
                self.is_failure_told = false;
                Some(watch)
            }
            Err(error) => {
                self.fails(&error);
                None
            }
        };
    }

    /// Waits until there may be another file than before.
    async fn changed(&mut self) {
        let Some((watcher, _)) = &mut self.watch else {
            return sleep(UNWATCHED_PAUSE).await;
        };
        // The watch of a directory that was removed or renamed says nothing any more.
        if let Ok(Err(error)) = timeout(WATCHED_PAUSE, changed(watcher)).await {
            self.fails(&error);
            self.watch = None;
            sleep(UNWATCHED_PAUSE).await;
        }
    }

    fn fails(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failure_told, true) {
            let error = in_file(&self.dir, error);
            tracing::error!(%error, "cannot watch the directory of missed DELs, reading it every {UNWATCHED_PAUSE:?}");
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

/// Waits until a file is there that was not, or events are lost.
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

/// Keeps a file for people to look at that is no call.
fn set_aside(path: &Path, why: &str) {
    tracing::error!(file = %path.display(), why, "a missed DEL can't be made up for, set aside");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}{}", names::BROKEN));
    if let Err(error) = fs::rename(path, aside) {
        tracing::error!(error = in_file(path, &error), "cannot set it aside");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn directory_that_was_replaced_is_watched_again() {
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
