//! GC (multus.md §5.4): detaches all networks of sandboxes that the runtime no longer lists, and passes GC on to the
//! cluster network's plugins.
//!
//! A clean-up may hang in a plugin of any network, so ADDs go on meanwhile: it holds the lock of its sandbox alone, and
//! skips a sandbox whose records changed since GC arrived. Only the rest excludes ADDs.

use super::stale::is_settled;
use super::{Daemon, NODE_WORK, failed, in_file, on_chain};
use crate::attach::CleanUp;
use crate::cluster::ClusterView;
use crate::names;
use crate::networks::net_conf::MultusConfig;
use crate::networks::resolve::Resolver;
use crate::sandbox::Sandbox;
use crate::store::records::{self, Record, Records, interface_in};
use cni::Error;
use cni::cache::{Cache, CacheError};
use cni::config::{NetworkConfig, ValidAttachment};
use cni::error::code;
use cni::files;
use futures::StreamExt as _;
use plugins::multus_shim::NOTHING_COLLECTED;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tokio::sync::RwLockWriteGuard;
use tokio::time::{Instant, sleep};

/// How long GC waits for ADDs to end. The CNI specification forbids runtimes to run ADDs during GC.
const GATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Its poll interval.
const GATE_POLL: Duration = Duration::from_millis(20);
/// The times that the kernel gives to files may be older than the clock by this: one tick, at a hundred a second.
const TICK: Duration = Duration::from_millis(10);
/// Limit of concurrent clean-ups, beside the runtime's own calls.
pub(super) const AT_ONCE: usize = 4;

impl<C: ClusterView + 'static> Daemon<C> {
    pub(super) async fn gc(&self, config: MultusConfig, request: &[u8]) -> Result<(), Error> {
        let Some(in_list) = listed_attachments(request)? else {
            // `cnitool gc` sends no list. Attachments that only the runtime knows are in use too.
            tracing::warn!("{NOTHING_COLLECTED}");
            return Ok(());
        };
        self.wait_ready(&config, None).await?;
        let arrived = SystemTime::now() - TICK;
        let listed = in_list.iter().map(|valid| valid.container_id.clone());
        // Sandboxes whose ADD runs or is queued now are not on the runtime's list.
        let living: BTreeSet<_> = listed.chain(self.locks.busy()).collect();
        let mut errors = self.detach_unlisted(&config, living.clone(), arrived).await?;
        self.sweep(&config).await?;
        let passed_on = self.pass_on(config, in_list, living).await;
        if errors.is_empty() {
            return passed_on;
        }
        errors.extend(passed_on.err().map(|error| error.to_string()));
        Err(Error::internal(errors.join("; ")))
    }

    /// Waits until no ADD is in progress. Polls, because waiting in the lock's queue would block every new ADD.
    async fn close_gate(&self, limit: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.gate.try_write() {
                Ok(closed) => return Some(closed),
                Err(_) if Instant::now() >= deadline => return None,
                Err(_) => sleep(GATE_POLL).await,
            }
        }
    }

    /// Detaches all sandboxes except `living` and those whose network namespace exists. Returns the errors; the records
    /// of failed sandboxes are kept.
    async fn detach_unlisted(
        &self,
        config: &MultusConfig,
        living: BTreeSet<String>,
        arrived: SystemTime,
    ) -> Result<Vec<String>, Error> {
        let Records { sandboxes, .. } = self.records(config, living).await?;
        let detached = sandboxes.into_iter().map(|(id, record)| async move {
            let outcome = self.clean_up_unlisted(config, &id, record, arrived).await;
            outcome.err().map(|error| format!("sandbox {id}: {error}"))
        });
        let errors = futures::stream::iter(detached)
            .buffer_unordered(AT_ONCE)
            .filter_map(async |error| error)
            .collect()
            .await;
        Ok(errors)
    }

    /// Removes broken files that no sandbox owns, and passes GC on to the cluster network's plugins, both without ADDs.
    async fn pass_on(
        &self,
        config: MultusConfig,
        in_list: Vec<ValidAttachment>,
        mut living: BTreeSet<String>,
    ) -> Result<(), Error> {
        let network = self.cluster_network(&config).await;
        let invoker = self.invoker(&config);
        let given_up = Arc::clone(&invoker.given_up);
        // Before the gate, so that no ADD waits for it too.
        let slot = self.collectors.slot(NODE_WORK).await;
        let _gate = self.close_gate(GATE_TIMEOUT).await.ok_or_else(|| {
            let text = "Multus: pods are being attached, GC is not possible now";
            Error::new(code::TRY_AGAIN_LATER, text)
        })?;
        living.extend(self.locks.busy());
        let work = move || {
            remove_broken(&config.cni_dir, &living)?;
            let Some(network) = network? else {
                return Ok(());
            };
            on_chain(&network, &invoker, &config.cni_dir, |network, chain| {
                let valid = in_use(chain.cache, in_list, &living)?;
                chain.gc(network, &valid)
            })
        };
        let outcome = self.collectors.run_in(slot, work).await;
        // ADDs go on, so the list of valid attachments is outdated: no further plugin gets it.
        given_up.store(outcome.is_err(), Ordering::Relaxed);
        outcome.map_err(failed)?
    }

    /// Detaches a sandbox that the runtime's list lacks, unless its network namespace exists: then it may belong to
    /// another runtime of this node. Without a recorded namespace, another process may still be at its ADD.
    async fn clean_up_unlisted(
        &self,
        config: &MultusConfig,
        id: &str,
        record: Record,
        arrived: SystemTime,
    ) -> Result<(), Error> {
        let looked = record.clone();
        let is_dead = || {
            let written = records::written(&config.cni_dir, id);
            let Some(why) = reason_to_keep(&looked, written, arrived, |netns| self.netns_exists(netns))
            else {
                return true;
            };
            tracing::info!(
                sandbox = id,
                "sandbox is not listed for GC, but {why}: skipping it"
            );
            false
        };
        // Also before its lock, which an ADD that came since may hold for long.
        if !is_dead() {
            return Ok(());
        }
        self.clean_up(config, id, record, async || is_dead()).await
    }

    /// Removes temporary files of interrupted writes, and files that were set aside long ago. Errors are only logged.
    pub(super) async fn sweep(&self, config: &MultusConfig) -> Result<(), Error> {
        let cni_dir = config.cni_dir.clone();
        let swept = self
            .detachers
            .run(NODE_WORK, move || records::sweep(&cni_dir))
            .await;
        if let Err(error) = swept.map_err(failed)? {
            tracing::warn!(%error, "cannot remove leftover temporary files");
        }
        Ok(())
    }

    /// The node's records of all sandboxes except `but`.
    pub(super) async fn records(
        &self,
        config: &MultusConfig,
        but: BTreeSet<String>,
    ) -> Result<Records, Error> {
        let cni_dir = config.cni_dir.clone();
        let read = self
            .detachers
            .run(NODE_WORK, move || Records::read(&cni_dir, &but))
            .await;
        read.map_err(failed)?.map_err(|error| unreadable(&error))
    }

    /// Detaches a stale sandbox by its records. `is_dead` is evaluated under the sandbox's lock.
    pub(super) async fn clean_up(
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
            // Not all plugins accept the path of a namespace that is gone.
            netns: record
                .netns
                .filter(|netns| self.netns_exists(netns))
                .unwrap_or_default(),
            ifname: names::MASTER_INTERFACE.into(),
            args: String::new(),
            pod: record.pod,
        };
        tracing::info!("detaching a stale sandbox: {sandbox}");
        let mut config = config.clone();
        // The next GC or start retries a failed clean-up.
        config.retry_delete_on_error = true;
        let (about, by, results) = (sandbox.clone(), config.clone(), record.results);
        let cleaned = self.on_sandbox(&self.detachers, about, by, move |attacher| {
            attacher.clean_up(&results)
        });
        match cleaned.await?? {
            CleanUp::Done => Ok(()),
            CleanUp::Unknown => self.clean_up_unknown(config, sandbox).await,
        }
    }

    /// Detaches at least the cluster network of a sandbox whose files are unusable.
    async fn clean_up_unknown(&self, config: MultusConfig, sandbox: Sandbox) -> Result<(), Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config: &config,
        };
        let defaults = super::del::defaults(&resolver).await.map_err(|cause| {
            Error::internal(format!(
                "Multus: the default network of {sandbox} is unknown: {cause}"
            ))
        })?;
        self.on_sandbox(&self.detachers, sandbox, config, move |attacher| {
            attacher.del(&defaults)
        })
        .await?
    }
}

/// Why GC, which arrived at this time, leaves an unlisted sandbox alone. `written` is the present time of its scratch
/// file: an ADD writes that file before it calls the first plugin.
fn reason_to_keep(
    record: &Record,
    written: Option<SystemTime>,
    arrived: SystemTime,
    netns_exists: impl Fn(&str) -> bool,
) -> Option<&'static str> {
    match &record.netns {
        _ if written != record.written || written.is_some_and(|written| written >= arrived) => {
            Some("its records just changed")
        }
        Some(netns) if netns_exists(netns) => Some("its network namespace exists"),
        None if written.is_some() && !is_settled(record) => Some("its ADD may be under way"),
        _ => None,
    }
}

/// The attachments that the runtime lists as in use; `None` without a list.
fn listed_attachments(request: &[u8]) -> Result<Option<Vec<ValidAttachment>>, Error> {
    let unusable = |error: cni::json::Error| Error::new(code::INVALID_NETWORK_CONFIG, error.to_string());
    let config = NetworkConfig::parse(request).map_err(unusable)?;
    let in_list = config.valid_attachments().map_err(unusable)?;
    Ok(config.has_valid_attachments().then_some(in_list))
}

/// Removes the result cache's unusable files that no living sandbox owns. Also those of sandboxes that could not be
/// detached: they add nothing to the remaining records.
fn remove_broken(cni_dir: &Path, living: &BTreeSet<String>) -> Result<(), Error> {
    let Records { broken, .. } = Records::read(cni_dir, living).map_err(|error| unreadable(&error))?;
    for path in records::ownerless(&broken, living) {
        tracing::warn!(file = %path.display(), "removing a broken cache file of a sandbox that is gone");
        files::remove_if_present(path).map_err(|error| unreadable(&in_file(path, &error)))?;
    }
    Ok(())
}

/// The attachments that GC must keep: those in multus' cache, and those that only the runtime lists. Pods that are
/// older than multus on the node are not in the cache.
fn in_use(
    cache: &Cache,
    in_list: Vec<ValidAttachment>,
    living: &BTreeSet<String>,
) -> Result<Vec<ValidAttachment>, Error> {
    let mut all: BTreeSet<_> = in_list.into_iter().collect();
    for entry in cache.each().map_err(|error| unreadable(&error))? {
        match entry {
            Ok(entry) => {
                all.insert(ValidAttachment {
                    container_id: entry.container_id,
                    ifname: entry.ifname,
                });
            }
            // The file's name contains its owner.
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

/// The state is unreadable: GC must not pass an incomplete list on.
fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::new(
        code::IO,
        format!("Multus: GC is not possible while the state cannot be read: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_that_is_attached_since_gc_arrived_is_kept() {
        // multus#96: its cached results, of an earlier ADD, name a namespace that is gone
        let arrived = SystemTime::now() - Duration::from_mins(1);
        let keeps = |read: SystemTime, now: SystemTime| {
            let record = Record {
                netns: Some("/run/netns/gone".into()),
                written: Some(read),
                ..Record::default()
            };
            reason_to_keep(&record, Some(now), arrived, |_| false)
        };
        let (before, since) = (arrived - Duration::from_mins(1), arrived + Duration::from_secs(1));
        let changed = Some("its records just changed");
        assert_eq!(keeps(before, before), None);
        assert_eq!(keeps(before, since), changed, "since GC read it");
        assert_eq!(keeps(since, since), changed, "before GC read it");
    }
}
