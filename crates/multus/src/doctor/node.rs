//! Looks after the node that this process runs on.

use super::decide;
use super::facts::Facts;
use super::look::{self, look};
use super::repair;
use super::report::{Repair, Report};
use crate::daemon_config::DaemonConfig;
use crate::host_root;
use crate::in_process::Plugins;
use crate::names;
use crate::net_conf::{self, MultusConfig};
use crate::runtime;
use cni::exec::Invoker;
use cni::json::Object;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long one plugin may take.
const PLUGIN: Duration = Duration::from_secs(20);
/// How long one look, or one repair, may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// Why there is no report. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces, plugins and their state are root's.
    #[error(
        "only root sees the attachments of a node: run it as root, or through `kubectl weft doctor NODE`"
    )]
    NotRoot,
    /// Multus' configuration can't be understood.
    #[error("the configuration of multus can't be understood: {0}")]
    Config(#[from] net_conf::Error),
    /// The node's state can't be read.
    #[error("the state of the node can't be read: {0}")]
    Look(#[from] look::Error),
    /// The host's root can't be entered.
    #[error("cannot look at the host: {0}\nName the directory where its root is mounted by --host-root.")]
    Root(linux::Error),
    /// No thread, or one that panicked.
    #[error("the look ended unexpectedly")]
    Ended,
    /// Something hangs.
    #[error("the look took more than {} s", .0.as_secs())]
    Overdue(Duration),
}

/// A node to look after.
#[derive(Debug, Clone)]
pub struct Node {
    name: String,
    root: PathBuf,
    daemon: DaemonConfig,
    multus: MultusConfig,
}

impl Node {
    /// The node of a name with the multus daemon's configuration. `root` is where the host's root is; without, it is found
    /// as the daemon finds it.
    ///
    /// # Errors
    /// When the configuration has no meaning.
    pub fn new(name: &str, root: Option<&Path>, mut daemon: DaemonConfig) -> Result<Self, Error> {
        let root = match root {
            Some(root) => Some(root.to_owned()),
            None => daemon
                .chroot_dir
                .take()
                .filter(|root| root.is_dir())
                .or_else(|| host_root::find(&daemon.bin_dir())),
        };
        daemon.chroot_dir.clone_from(&root);
        let generated = format!(r#"{{"clusterNetwork":"{}"}}"#, names::CNI_CONFIG_DIR);
        let generated = Object::parse(generated.as_bytes()).map_err(net_conf::Error::Parse)?;
        let mut multus = MultusConfig::parse(&net_conf::overlay(generated, &daemon.object, true))?;
        multus.retry_delete_on_error = true;
        Ok(Self {
            name: name.to_owned(),
            root: root.unwrap_or_else(|| "/".into()),
            daemon,
            multus,
        })
    }

    /// Checks all attachments and looks for leftovers.
    ///
    /// # Errors
    /// When the node's state can't be read.
    pub async fn examine(&self) -> Result<Report, Error> {
        Ok(decide::report(&self.facts(true).await?))
    }

    /// Removes what is left over, then looks again.
    ///
    /// # Errors
    /// When the node's state can't be read.
    pub async fn repair(&self) -> Result<Report, Error> {
        let first = self.facts(false).await?;
        // Whatever changes meanwhile is no leftover.
        let second = self.facts(false).await?;
        let both = decide::leftovers(&first).and_then(|first| Ok((first, decide::leftovers(&second)?)));
        let repair = match both {
            Ok((first, second)) => {
                let certain = first.intersection(&second).cloned().collect();
                let config = self.multus.clone();
                self.on_host(move |plugins| repair::remove(plugins, &config, &certain))
                    .await?
            }
            Err(refused) => Repair {
                refused: Some(refused),
                ..Repair::default()
            },
        };
        let mut report = self.examine().await?;
        report.repair = Some(repair);
        Ok(report)
    }

    async fn facts(&self, checks: bool) -> Result<Facts, Error> {
        let runtime = runtime::sandboxes(&self.daemon).await;
        let cni_dir = self.multus.cni_dir.clone();
        let seen = self
            .on_host(move |plugins| look(plugins, &cni_dir, checks))
            .await??;
        Ok(Facts {
            node: self.name.clone(),
            runtime: runtime.map_err(|error| kube_kit::client::chain(&error)),
            attachments: seen.attachments,
            prepared: seen.prepared,
            traces: seen.traces,
            broken: seen.broken,
            notes: seen.notes,
            now: SystemTime::now(),
        })
    }

    /// Works at the host's root, on a thread of its own: plugins visit namespaces.
    async fn on_host<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Plugins) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (root, plugins) = (self.root.clone(), self.plugins());
        let (done, outcome) = oneshot::channel();
        let run = move || {
            let work = || work(&plugins);
            let worked = if root == Path::new("/") {
                Ok(work())
            } else {
                linux::process::with_root(&root, work).map_err(Error::Root)
            };
            // Nobody waits any more for one that took too long.
            let _ = done.send(worked);
        };
        thread::Builder::new().spawn(run).map_err(|_| Error::Ended)?;
        let outcome = timeout(PATIENCE, outcome).await;
        outcome
            .map_err(|_| Error::Overdue(PATIENCE))?
            .map_err(|_| Error::Ended)?
    }

    fn plugins(&self) -> Plugins {
        Plugins {
            invoker: Invoker {
                dirs: vec![self.multus.bin_dir.clone()],
                base: cni::env::variables(),
                prepare: None,
                limit: Some(PLUGIN),
            },
            // The whole thread is there.
            root: None,
            known: Arc::default(),
            given_up: Arc::default(),
        }
    }
}
