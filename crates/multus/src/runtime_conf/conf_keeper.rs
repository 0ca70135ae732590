//! Keeps `00-multus.conf` in line with the primary configuration once the daemon serves (multus.md §7.6, §7.7).
//!
//! Events in the watched directories, and the keeper's action:
//!
//! | event | action |
//! |---|---|
//! | primary written | regenerate the file; keep the old one if the primary is unusable |
//! | primary removed | use the readiness file as the primary until the former one is back, if it is the next choice |
//! | `00-multus.conf` removed or renamed | write it again |
//! | readiness file removed | remove `00-multus.conf` and exit: the restarted process waits for readiness |

use crate::config::{ConfSource, DaemonConfig};
use crate::runtime_conf::conf_file;

use cni::files::write_atomically;
use kube_kit::client::chain;
use kube_kit::watch_dir::{Change, DirWatcher, Event};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Timeout of the default network's readiness file.
pub(crate) const READINESS_WAIT: Duration = Duration::from_secs(45);
/// Timeout of a usable primary configuration.
pub(crate) const PRIMARY_WAIT: Duration = Duration::from_secs(120);
/// Pause before the directories are read after a failed watch.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(5);

/// No configuration can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A directory cannot be watched.
    #[error("cannot watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The default network did not become ready.
    #[error("have you checked that your default network is ready? still waiting for readinessindicatorfile @ {}", .0.display())]
    NotReady(PathBuf),
    /// No primary configuration appeared in time.
    #[error("no primary CNI configuration in {} within {}s", dir.display(), PRIMARY_WAIT.as_secs())]
    NoPrimary { dir: PathBuf },
    /// The primary configuration is unusable.
    #[error("unusable primary CNI configuration")]
    Unusable(#[source] conf_file::Error),
    /// A file cannot be read or written.
    #[error("cannot access {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Exit code of a process that cannot start (multus.md §7.6).
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::NotReady(_) => 1,
            Self::Watch { .. } | Self::NoPrimary { .. } | Self::Unusable(_) | Self::File { .. } => 2,
        }
    }
}

/// The reason why [`ConfKeeper::keep`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The default network is no longer ready.
    ReadinessLost,
}

/// The generated configuration and its sources.
pub(crate) struct ConfKeeper {
    config: Arc<DaemonConfig>,
    watcher: DirWatcher,
    primary: PathBuf,
    /// The former primary, which was removed.
    removed: Option<PathBuf>,
    text: String,
}

impl ConfKeeper {
    /// Waits until the default network is ready and its configuration is usable. Writes nothing.
    pub(crate) async fn find(config: Arc<DaemonConfig>) -> Result<Self, Error> {
        let mut watcher = watch(&config)?;
        if let Some(file) = config.readiness_indicator.clone() {
            let ready = wait_for(&mut watcher, || file.exists().then_some(()));
            timeout(READINESS_WAIT, ready)
                .await
                .map_err(|_| Error::NotReady(file.clone()))?;
        }
        let mut last = None;
        let usable = wait_for(&mut watcher, || match generate(&config, None) {
            Ok(found) => found,
            Err(error) => {
                if last.as_ref().map(ToString::to_string) != Some(error.to_string()) {
                    tracing::warn!(error = %chain(&error), "unusable primary CNI configuration, waiting for another");
                }
                last = Some(error);
                None
            }
        });
        let found = timeout(PRIMARY_WAIT, usable).await;
        match (found, last) {
            (Ok((primary, text)), _) => Ok(Self {
                config,
                watcher,
                primary,
                removed: None,
                text,
            }),
            (Err(_), Some(error)) => Err(error),
            (Err(_), None) => Err(Error::NoPrimary {
                dir: config.autoconfig_dir.clone(),
            }),
        }
    }

    /// Writes the file, unless it already has this content.
    pub(crate) fn write(&self) -> Result<(), Error> {
        let path = self.config.conf_file();
        if fs::read(&path).is_ok_and(|current| current == self.text.as_bytes()) {
            return Ok(());
        }
        write_atomically(&path, self.text.as_bytes(), 0o600)
            .map_err(|source| Error::File { path, source })?;
        tracing::info!("Generated MultusCNI config: {}", self.text);
        Ok(())
    }

    /// Follows changes until the default network is no longer ready. Returns only then.
    pub(crate) async fn keep(&mut self) -> Ended {
        loop {
            let events = or_anything(self.watcher.next()).await;
            for event in events {
                if let Some(ended) = self.follow(&event) {
                    return ended;
                }
            }
        }
    }

    fn follow(&mut self, event: &Event) -> Option<Ended> {
        let concerns = |path: &Path| event.change == Change::Unknown || event.path == path;
        if let Some(file) = &self.config.readiness_indicator
            && concerns(file)
            && event.change != Change::Written
            && !file.exists()
        {
            tracing::warn!(file = %file.display(), "the default network is no longer ready");
            return Some(Ended::ReadinessLost);
        }
        if self.change_primary() {
            return None;
        }
        if concerns(&self.primary) && event.change != Change::Gone {
            self.regenerate();
        } else if concerns(&self.config.conf_file()) && event.change == Change::Gone {
            tracing::warn!("00-multus.conf was removed or renamed, writing it again");
            self.write_or_log();
        }
        None
    }

    /// Replaces a removed primary by its successor, and that by a primary that is back. Returns true after a change.
    fn change_primary(&mut self) -> bool {
        if let Some(former) = self.removed.take_if(|file| file.exists()) {
            tracing::info!(primary = %former.display(), "the former default network is back");
            self.primary = former;
            self.regenerate();
            return true;
        }
        if self.primary.exists() {
            return false;
        }
        let Some((successor, text)) = self.successor() else {
            return false;
        };
        tracing::info!(
            removed = %self.primary.display(),
            primary = %successor.display(),
            "another network is the default network"
        );
        self.removed = Some(std::mem::replace(&mut self.primary, successor));
        self.text = text;
        self.write_or_log();
        true
    }

    /// The awaited network, if its file is the next choice and usable. Other files do not count: a network that restarts
    /// may remove its file for a while.
    fn successor(&self) -> Option<(PathBuf, String)> {
        let awaited = self.config.readiness_indicator.as_ref()?;
        if self.config.master_cni.is_some() {
            return None;
        }
        let (chosen, text) = generate(&self.config, None).ok()??;
        (chosen == *awaited).then_some((chosen, text))
    }

    fn regenerate(&mut self) {
        match generate(&self.config, Some(&self.primary)) {
            Ok(Some((_, text))) => self.text = text,
            // Removed in the meantime.
            Ok(None) => {}
            Err(error) => {
                tracing::error!(error = %chain(&error), "unusable primary CNI configuration, keeping the generated file");
                return;
            }
        }
        self.write_or_log();
    }

    fn write_or_log(&self) {
        if let Err(error) = self.write() {
            tracing::error!(error = %chain(&error), "cannot write 00-multus.conf");
        }
    }
}

/// Removes `00-multus.conf`. A missing file is no error.
pub(crate) fn remove(config: &DaemonConfig) -> Result<(), Error> {
    let path = config.conf_file();
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::File { path, source }),
        _ => Ok(()),
    }
}

/// Copies the configuration file that the user provides, under its name. Does nothing in automatic mode.
pub(crate) fn copy_provided(config: &DaemonConfig) -> Result<(), Error> {
    let ConfSource::File(source_path) = &config.conf_source else {
        return Ok(());
    };
    let failed = |path: &Path, source| Error::File {
        path: path.to_owned(),
        source,
    };
    let text = fs::read(source_path).map_err(|source| failed(source_path, source))?;
    let name = source_path.file_name().unwrap_or_default();
    let target = config.cni_config_dir.join(name);
    write_atomically(&target, &text, 0o600).map_err(|source| failed(&target, source))
}

fn watch(config: &DaemonConfig) -> Result<DirWatcher, Error> {
    let failed = |path: &Path, source| Error::Watch {
        path: path.to_owned(),
        source,
    };
    let mut watcher = DirWatcher::new().map_err(|source| failed(Path::new("inotify"), source))?;
    let readiness = config.readiness_indicator.as_deref().and_then(Path::parent);
    for dir in [
        Some(config.autoconfig_dir.as_path()),
        Some(&config.cni_config_dir),
        readiness,
    ]
    .into_iter()
    .flatten()
    {
        watcher.add(dir).map_err(|source| failed(dir, source))?;
    }
    Ok(watcher)
}

/// Evaluates `check` after every change of the watched directories, until it returns a value.
pub(crate) async fn wait_for<T>(watcher: &mut DirWatcher, mut check: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = check() {
            return found;
        }
        or_anything(watcher.next()).await;
    }
}

/// The next changes. A read from inotify fails only when the kernel is out of memory: then the directories are read after a
/// pause, as after any change, and the next call reads from inotify again.
async fn or_anything(changes: impl Future<Output = io::Result<Vec<Event>>>) -> Vec<Event> {
    match changes.await {
        Ok(events) => events,
        Err(error) => {
            tracing::error!(%error, "cannot watch CNI directories, reading them in {UNWATCHED_PAUSE:?}");
            sleep(UNWATCHED_PAUSE).await;
            vec![Event {
                path: PathBuf::new(),
                change: Change::Unknown,
            }]
        }
    }
}

/// Generates the text from the given primary, or from the one that is chosen now. `None` without a primary.
fn generate(config: &DaemonConfig, primary: Option<&Path>) -> Result<Option<(PathBuf, String)>, Error> {
    let path = match primary {
        Some(path) => path.to_owned(),
        None => match choose(config)? {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    match fs::read(&path) {
        Ok(bytes) => {
            let text = conf_file::generate(&path, &bytes, config).map_err(Error::Unusable)?;
            Ok(Some((path, text)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path, source }),
    }
}

fn choose(config: &DaemonConfig) -> Result<Option<PathBuf>, Error> {
    let dir = &config.autoconfig_dir;
    let failed = |source| Error::File {
        path: dir.clone(),
        source,
    };
    let names: Vec<_> = fs::read_dir(dir)
        .map_err(failed)?
        .filter_map(Result::ok)
        .filter(|entry| !entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    conf_file::primary(
        dir,
        names.iter().map(String::as_str),
        config.master_cni.as_deref(),
    )
    .map_err(Error::Unusable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt as _;

    struct Node {
        dir: tempfile::TempDir,
        config: Arc<DaemonConfig>,
    }

    const PRIMARY: &str = r#"{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"ptp"}]}"#;
    const OTHER: &str =
        r#"{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"ptp","capabilities":{"ips":true}}]}"#;

    impl Node {
        fn new(keys: &serde_json::Value) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("net.d")).unwrap();
            fs::create_dir(dir.path().join("ready.d")).unwrap();
            let mut text = json!({"cniVersion": "0.3.1", "cniConfigDir": dir.path().join("net.d"),
                "multusAutoconfigDir": dir.path().join("net.d")});
            text.as_object_mut()
                .unwrap()
                .extend(keys.as_object().cloned().unwrap());
            let config = Arc::new(DaemonConfig::parse(text.to_string().as_bytes()).unwrap());
            Self { dir, config }
        }

        /// A node whose readiness file has this path in its folder.
        fn awaiting(file: &str) -> Self {
            let node = Self::new(&json!({}));
            let config = DaemonConfig {
                readiness_indicator: Some(node.dir.path().join(file)),
                ..(*node.config).clone()
            };
            Self {
                config: Arc::new(config),
                ..node
            }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.dir.path().join("net.d").join(name)
        }

        fn put(&self, name: &str, text: &str) {
            fs::write(self.file(name), text).unwrap();
        }

        fn conf(&self) -> Option<String> {
            fs::read_to_string(self.config.conf_file()).ok()
        }

        async fn keeper(&self) -> ConfKeeper {
            let keeper = ConfKeeper::find(Arc::clone(&self.config)).await.unwrap();
            keeper.write().unwrap();
            keeper
        }
    }

    /// Lets the keeper work until the condition holds.
    async fn until(keeper: &mut ConfKeeper, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !holds() {
            let step = tokio::time::timeout(Duration::from_millis(50), keeper.keep()).await;
            assert!(step.is_err(), "the keeper ended while waiting: {what}");
            assert!(tokio::time::Instant::now() < deadline, "never happened: {what}");
        }
    }

    #[tokio::test]
    async fn conf_file_follows_primary() {
        // multus#71
        let node = Node::new(&json!({}));
        node.put("10-a.conflist", PRIMARY);
        let mut keeper = node.keeper().await;
        let first = node.conf().unwrap();
        assert!(!first.contains("capabilities"), "{first}");
        assert_eq!(
            fs::metadata(node.config.conf_file())
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );

        node.put("10-a.conflist", OTHER);
        until(&mut keeper, "regenerated", || {
            node.conf().unwrap().contains(r#""capabilities":{"ips":true}"#)
        })
        .await;

        // Made invalid, and an unrelated file: what was generated stays.
        node.put("10-a.conflist", "{");
        node.put("05-b.conflist", PRIMARY);
        fs::remove_file(node.config.conf_file()).unwrap();
        until(&mut keeper, "put back", || node.conf().is_some()).await;
        assert!(node.conf().unwrap().contains(r#""capabilities":{"ips":true}"#));
        assert!(node.conf().unwrap().contains("10-a.conflist"));
    }

    #[tokio::test]
    async fn renamed_conf_file_is_rewritten_and_removed_primary_changes_nothing() {
        let node = Node::new(&json!({}));
        node.put("10-a.conflist", PRIMARY);
        let mut keeper = node.keeper().await;
        fs::remove_file(node.file("10-a.conflist")).unwrap();
        fs::rename(node.config.conf_file(), node.file("00-multus.conf.cilium_bak")).unwrap();
        until(&mut keeper, "put back", || node.conf().is_some()).await;
    }

    #[tokio::test]
    async fn removed_primary_is_replaced_by_the_awaited_network_alone() {
        // multus#125
        let node = Node::awaiting("net.d/10-b.conflist");
        node.put("10-a.conflist", PRIMARY);
        node.put("10-b.conflist", OTHER);
        node.put("05-c.conflist.disabled", PRIMARY);
        let mut keeper = node.keeper().await;
        assert!(node.conf().unwrap().contains("10-a.conflist"));
        fs::remove_file(node.file("10-a.conflist")).unwrap();
        until(&mut keeper, "the other network", || {
            node.conf().unwrap().contains("10-b.conflist")
        })
        .await;
        assert!(node.conf().unwrap().contains(r#""capabilities":{"ips":true}"#));
        // The new primary is followed.
        node.put("10-b.conflist", PRIMARY);
        until(&mut keeper, "regenerated", || {
            !node.conf().unwrap().contains("capabilities")
        })
        .await;
        // A network that only restarted is the default network again.
        node.put("10-a.conflist", PRIMARY);
        until(&mut keeper, "the former network", || {
            node.conf().unwrap().contains("10-a.conflist")
        })
        .await;
    }

    #[tokio::test]
    async fn removed_primary_stays_if_another_file_is_the_next_choice() {
        // multus#125
        let node = Node::awaiting("net.d/10-b.conflist");
        node.put("05-a.conflist", PRIMARY);
        node.put("07-other.conflist", OTHER);
        node.put("10-b.conflist", OTHER);
        let mut keeper = node.keeper().await;
        fs::remove_file(node.file("05-a.conflist")).unwrap();
        fs::remove_file(node.config.conf_file()).unwrap();
        until(&mut keeper, "put back", || node.conf().is_some()).await;
        assert!(node.conf().unwrap().contains("05-a.conflist"));
    }

    #[tokio::test]
    async fn lost_default_network_ends_keeper() {
        // multus#71 (the caller removes the file and exits with 2)
        let node = Node::awaiting("ready.d/ok");
        let ready = node.dir.path().join("ready.d/ok");
        node.put("10-a.conflist", PRIMARY);
        fs::write(&ready, "").unwrap();
        let mut keeper = node.keeper().await;
        fs::rename(&ready, ready.with_extension("gone")).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), keeper.keep())
            .await
            .unwrap();
        assert_eq!(ended, Ended::ReadinessLost);
    }

    #[tokio::test]
    async fn late_primary_is_waited_for() {
        let node = Node::new(&json!({}));
        let mut finding = Box::pin(ConfKeeper::find(Arc::clone(&node.config)));
        assert!(futures::FutureExt::now_or_never(finding.as_mut()).is_none());
        node.put("10-a.conflist", "{");
        assert!(
            tokio::time::timeout(Duration::from_millis(50), finding.as_mut())
                .await
                .is_err()
        );
        node.put("10-a.conflist", PRIMARY);
        let keeper = tokio::time::timeout(Duration::from_secs(60), finding)
            .await
            .unwrap()
            .unwrap();
        assert!(keeper.text.contains("10-a.conflist"));
        assert!(node.conf().is_none(), "nothing is written before the API serves");
    }

    #[tokio::test(start_paused = true)]
    async fn missing_primary_is_error() {
        // multus#72
        let node = Node::new(&json!({}));
        let begun = tokio::time::Instant::now();
        let error = ConfKeeper::find(Arc::clone(&node.config)).await.err().unwrap();
        assert!(matches!(error, Error::NoPrimary { .. }), "{error}");
        assert_eq!((begun.elapsed().as_secs(), error.exit_code()), (120, 2));
    }

    #[test]
    fn provided_file_keeps_its_name() {
        // multus#73 (the copy)
        let node = Node::new(&json!({}));
        let provided = node.dir.path().join("70-multus.conf");
        fs::write(&provided, "{}").unwrap();
        let config = DaemonConfig {
            conf_source: ConfSource::File(provided),
            ..(*node.config).clone()
        };
        copy_provided(&config).unwrap();
        assert_eq!(fs::read_to_string(node.file("70-multus.conf")).unwrap(), "{}");
    }
    #[tokio::test(start_paused = true)]
    async fn failed_watch_causes_a_check_after_a_pause() {
        // multus#124
        let begun = tokio::time::Instant::now();
        let failed = std::future::ready(Err(io::ErrorKind::OutOfMemory.into()));
        let events = or_anything(failed).await;
        assert_eq!(events[0].change, Change::Unknown);
        assert_eq!(begun.elapsed(), UNWATCHED_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn file_comes_back_in_a_directory_that_was_made_anew() {
        // multus#124
        let node = Node::new(&json!({}));
        node.put("10-a.conflist", PRIMARY);
        let mut keeper = ConfKeeper::find(Arc::clone(&node.config)).await.unwrap();
        keeper.write().unwrap();
        let net_d = node.dir.path().join("net.d");
        fs::remove_dir_all(&net_d).unwrap();
        let mut keeping = Box::pin(keeper.keep());
        assert!(
            timeout(Duration::from_secs(60), keeping.as_mut()).await.is_err(),
            "nothing ends it"
        );
        fs::create_dir(&net_d).unwrap();
        node.put("10-a.conflist", OTHER);
        let back = timeout(Duration::from_secs(60), keeping.as_mut()).await;
        assert!(back.is_err(), "nothing ends it");
        let conf = fs::read_to_string(node.file("00-multus.conf")).unwrap();
        assert!(conf.contains("ips"), "{conf}");
    }
}
