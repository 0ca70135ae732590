//! Checks and repairs the node that this process runs on.

use super::decide;
use super::facts::Facts;
use super::inspect::{self, inspect};
use super::repair;
use super::report::{Repair, Report};
use crate::config::DaemonConfig;
use crate::config::host_root;
use crate::daemon::runtime;
use crate::execution::in_process::Plugins;
use crate::names;
use crate::networks::net_conf::{self, MultusConfig};
use cni::exec::Invoker;
use cni::json::Object;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Timeout of one plugin call.
const PLUGIN: Duration = Duration::from_secs(20);
/// Timeout of one inspection or repair.
const TIMEOUT: Duration = Duration::from_mins(5);

/// No report. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is not root.
    #[error(
        "checking the attachments of a node requires root: run it as root, or through `kubectl weft doctor NODE`"
    )]
    NotRoot,
    /// Multus' configuration is malformed.
    #[error("cannot parse the configuration of multus: {0}")]
    Config(#[from] net_conf::Error),
    /// The node's state cannot be read.
    #[error("cannot read the state of the node: {0}")]
    Look(#[from] inspect::Error),
    /// The host's root cannot be entered.
    #[error("cannot enter the host's root: {0}\nPass the directory where it is mounted by --host-root.")]
    Root(linux::Error),
    /// The thread could not start, or panicked.
    #[error("the check ended unexpectedly")]
    Ended,
    /// A plugin or a file hangs.
    #[error("the check took more than {} s", .0.as_secs())]
    Overdue(Duration),
}

/// The node of this process.
#[derive(Debug, Clone)]
pub struct Node {
    name: String,
    root: PathBuf,
    daemon: DaemonConfig,
    multus: MultusConfig,
}

impl Node {
    /// A node with the multus daemon's configuration. `root` is the host's root directory; `None` finds it as the
    /// daemon does.
    ///
    /// # Errors
    /// The configuration is malformed.
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

    /// Checks all attachments and finds leftovers.
    ///
    /// # Errors
    /// The node's state cannot be read.
    pub async fn examine(&self) -> Result<Report, Error> {
        Ok(decide::report(&self.facts(true).await?))
    }

    /// Removes leftovers, then checks again.
    ///
    /// # Errors
    /// The node's state cannot be read.
    pub async fn repair(&self) -> Result<Report, Error> {
        let first = self.facts(false).await?;
        // Only state that both inspections call a leftover is removed.
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
        let observed = self
            .on_host(move |plugins| inspect(plugins, &cni_dir, checks))
            .await??;
        Ok(Facts {
            node: self.name.clone(),
            runtime: runtime.map_err(|error| kube_kit::client::chain(&error)),
            attachments: observed.attachments,
            prepared: observed.prepared,
            traces: observed.traces,
            broken: observed.broken,
            notes: observed.notes,
            now: SystemTime::now(),
        })
    }

    /// Runs work in the host's root, on its own thread, because plugins switch namespaces.
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
            // After a timeout the receiver is gone.
            let _ = done.send(worked);
        };
        thread::Builder::new().spawn(run).map_err(|_| Error::Ended)?;
        let outcome = timeout(TIMEOUT, outcome).await;
        outcome
            .map_err(|_| Error::Overdue(TIMEOUT))?
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
            // The whole thread runs in the host's root.
            root: None,
            own_binaries: Arc::default(),
            given_up: Arc::default(),
            repeats_dels: false,
        }
    }
}
