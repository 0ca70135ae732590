//! GC (multus.md §5.4): what the runtime does not know any more is detached, of whatever network, and the cluster
//! network's plugins are told what is in use.

use super::{Daemon, OF_THE_NODE, failed, in_file};
use crate::attach::Buried;
use crate::cluster::ClusterView;
use crate::names;
use crate::net_conf::MultusConfig;
use crate::records::{self, Record, Records, interface_in};
use crate::request::Sandbox;
use crate::resolve::Resolver;
use cni::Error;
use cni::cache::{Cache, CacheError};
use cni::config::{NetworkConfig, ValidAttachment};
use cni::error::code;
use cni::files;
use futures::StreamExt as _;
use plugins::multus_shim::NOTHING_COLLECTED;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::RwLockWriteGuard;
use tokio::time::{Instant, sleep};

/// How long GC waits for ADDs to end. By the CNI specification the runtime lets none run meanwhile.
const ALONE: Duration = Duration::from_secs(30);
/// How often it looks.
const ALONE_PAUSE: Duration = Duration::from_millis(20);
/// How many sandboxes are detached at once beside the runtime's own calls.
pub(super) const AT_ONCE: usize = 4;

impl<C: ClusterView + 'static> Daemon<C> {
    pub(super) async fn gc(&self, config: MultusConfig, request: &[u8]) -> Result<(), Error> {
        let Some(said) = attachments_said(request)? else {
            // As `cnitool gc` calls it. What only the runtime knows is in use too.
            tracing::warn!("{NOTHING_COLLECTED}");
            return Ok(());
        };
        self.wait_ready(&config, None).await?;
        // What is being attached at this moment is not on the runtime's list, and attached by the time it is looked for.
        let busy = self.locks.busy();
        let _alone = self.alone_within(ALONE).await.ok_or_else(|| {
            let text = "Multus: pods are being attached, nothing is collected now";
            Error::new(code::TRY_AGAIN_LATER, text)
        })?;
        let listed = said.iter().map(|valid| valid.container_id.clone());
        let living: BTreeSet<_> = listed.chain(busy).collect();
        let mut errors = self.collect(&config, living.clone()).await?;
        let told = self
            .cluster_network(config, move |network, chain| {
                let valid = in_use(chain.cache, said, &living)?;
                chain.gc(network, &valid)
            })
            .await;
        if errors.is_empty() {
            return told;
        }
        errors.extend(told.err().map(|error| error.to_string()));
        Err(Error::internal(errors.join("; ")))
    }

    /// Waits until no ADD is in progress. A place in the gate's own queue would block every ADD that arrives meanwhile.
    async fn alone_within(&self, patience: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let deadline = Instant::now() + patience;
        loop {
            match self.gate.try_write() {
                Ok(alone) => return Some(alone),
                Err(_) if Instant::now() >= deadline => return None,
                Err(_) => sleep(ALONE_PAUSE).await,
            }
        }
    }

    /// Detaches all sandboxes but these and those whose network namespace is there, and removes what no sandbox owns.
    /// Returns the failures; their attachments stay.
    async fn collect(&self, config: &MultusConfig, living: BTreeSet<String>) -> Result<Vec<String>, Error> {
        let Records { sandboxes, broken } = self.records(config, living.clone()).await?;
        let detached = sandboxes.into_iter().map(|(id, record)| async move {
            let outcome = self.bury_unlisted(config, &id, record).await;
            outcome.err().map(|error| format!("sandbox {id}: {error}"))
        });
        let errors = futures::stream::iter(detached)
            .buffer_unordered(AT_ONCE)
            .filter_map(async |error| error)
            .collect()
            .await;
        // Those of a sandbox that could not be detached: with the state that is left of it they say no more.
        for path in records::ownerless(&broken, &living) {
            tracing::warn!(file = %path.display(), "removing a broken file of a sandbox that is gone");
            files::remove_if_present(path).map_err(|error| unreadable(&in_file(path, &error)))?;
        }
        self.sweep(config).await?;
        Ok(errors)
    }

    /// Detaches a sandbox that the runtime's list lacks, unless its network namespace is there: then another runtime of
    /// this node may have it.
    async fn bury_unlisted(&self, config: &MultusConfig, id: &str, record: Record) -> Result<(), Error> {
        let netns = record.netns.clone();
        let is_dead = async || {
            let is_dead = netns.as_deref().is_none_or(|netns| !self.is_there(netns));
            if !is_dead {
                tracing::info!(
                    sandbox = id,
                    "not listed for GC, but its network namespace is there: left alone"
                );
            }
            is_dead
        };
        self.bury(config, id, record, is_dead).await
    }

    /// Removes what writes left behind that were cut off, and what was set aside long ago. What stays is told.
    pub(super) async fn sweep(&self, config: &MultusConfig) -> Result<(), Error> {
        let cni_dir = config.cni_dir.clone();
        let swept = self
            .detachers
            .run(OF_THE_NODE, move || records::sweep(&cni_dir))
            .await;
        if let Err(error) = swept.map_err(failed)? {
            tracing::warn!(%error, "leftovers stay");
        }
        Ok(())
    }

    /// What the node knows of all sandboxes but these.
    pub(super) async fn records(
        &self,
        config: &MultusConfig,
        but: BTreeSet<String>,
    ) -> Result<Records, Error> {
        let cni_dir = config.cni_dir.clone();
        let read = self
            .detachers
            .run(OF_THE_NODE, move || Records::read(&cni_dir, &but))
            .await;
        read.map_err(failed)?.map_err(|error| unreadable(&error))
    }

    /// Detaches a sandbox that is no more, by what the node knows of it. `is_dead` is asked when nobody else works on
    /// the sandbox.
    pub(super) async fn bury(
        &self,
        config: &MultusConfig,
        container_id: &str,
        record: Record,
        is_dead: impl AsyncFnOnce() -> bool,
    ) -> Result<(), Error> {
        let _lock = self.locks.lock(container_id).await;
        if !is_dead().await {
            return Ok(());
        }
        let sandbox = Sandbox {
            container_id: container_id.to_owned(),
            // Not all plugins take a path that leads nowhere for one that is gone.
            netns: record
                .netns
                .filter(|netns| self.is_there(netns))
                .unwrap_or_default(),
            ifname: names::MASTER_INTERFACE.into(),
            args: String::new(),
            pod: record.pod,
        };
        tracing::info!("detaching a sandbox that the runtime does not know: {sandbox}");
        let mut config = config.clone();
        // Whoever fails is called again by the next one who looks.
        config.retry_delete_on_error = true;
        let (about, by, results) = (sandbox.clone(), config.clone(), record.results);
        let buried = self.on_sandbox(&self.detachers, about, by, move |attacher| {
            attacher.bury(&results)
        });
        match buried.await?? {
            Buried::Done => Ok(()),
            Buried::Unknown => self.bury_unknown(config, sandbox).await,
        }
    }

    /// Of a sandbox whose files are of no use at least the network is detached that every pod has.
    async fn bury_unknown(&self, config: MultusConfig, sandbox: Sandbox) -> Result<(), Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config: &config,
        };
        let defaults = super::del::defaults(&resolver).await.map_err(|cause| {
            Error::internal(format!(
                "Multus: not even the default network of {sandbox} is known: {cause}"
            ))
        })?;
        self.on_sandbox(&self.detachers, sandbox, config, move |attacher| {
            attacher.del(&defaults)
        })
        .await?
    }
}

/// The attachments that the runtime says are in use; `None` if it says nothing.
fn attachments_said(request: &[u8]) -> Result<Option<Vec<ValidAttachment>>, Error> {
    let unusable = |error: cni::json::Error| Error::new(code::INVALID_NETWORK_CONFIG, error.to_string());
    let config = NetworkConfig::parse(request).map_err(unusable)?;
    let said = config.valid_attachments().map_err(unusable)?;
    Ok(config.has_valid_attachments().then_some(said))
}

/// What GC must leave alone: the attachments that were made here, and those that only the runtime knows. Pods that are
/// older than multus on the node are not in its cache.
fn in_use(
    cache: &Cache,
    said: Vec<ValidAttachment>,
    living: &BTreeSet<String>,
) -> Result<Vec<ValidAttachment>, Error> {
    let mut all: BTreeSet<_> = said.into_iter().collect();
    for entry in cache.each().map_err(|error| unreadable(&error))? {
        match entry {
            Ok(entry) => {
                all.insert(ValidAttachment {
                    container_id: entry.container_id,
                    ifname: entry.ifname,
                });
            }
            // Its name says whose it is.
            Err(CacheError::Broken { path, .. }) => {
                let owned = living
                    .iter()
                    .filter_map(|id| Some((id, interface_in(&path, id)?)));
                all.extend(owned.map(|(id, ifname)| ValidAttachment {
                    container_id: id.clone(),
                    ifname: ifname.to_owned(),
                }));
            }
            Err(error) => return Err(unreadable(&error)),
        }
    }
    Ok(all.into_iter().collect())
}

/// Nobody is told what is in use by somebody who can't know.
fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::new(
        code::IO,
        format!("Multus: nothing is collected while the state can't be read: {error}"),
    )
}
