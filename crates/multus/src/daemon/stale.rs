//! Cleans up stale sandboxes at the daemon's start: compares its records with the container runtime's sandboxes
//! (multus.md §5.4).
//!
//! A sandbox is stale when the runtime does not list it and its network namespace does not exist. Neither is
//! sufficient alone: the runtime may be another one than kubelet's, and some runtimes list a sandbox only after its
//! network was attached. When the namespace is not recorded, because the daemon was killed before the first plugin
//! answered, the runtime's list is sufficient if it is not empty and the record is not recent: a terminating daemon
//! may still work on it.

use super::Daemon;
use super::gc::AT_ONCE;
use crate::cluster::ClusterView;
use crate::daemon::runtime;
use crate::networks::net_conf::MultusConfig;
use crate::store::records::{Record, Records};
use futures::StreamExt as _;
use linux::backoff::Backoff;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;

/// Attempts to list the runtime's sandboxes, and their back-off: the runtime may be starting too.
const TRIES: u32 = 40;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The records cannot be compared.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error(transparent)]
    Cni(#[from] cni::Error),
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Detaches the sandboxes that became stale before this daemon started.
    pub(crate) async fn clean_up_stale(&self) {
        let mut backoff = BACKOFF;
        for left in (0..TRIES).rev() {
            match self.compare().await {
                Ok(()) => break,
                Err(error) if left == 0 => {
                    tracing::warn!(%error, "cannot list the runtime's sandboxes; stale sandboxes are cleaned up at the next start");
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot list the runtime's sandboxes yet, retrying");
                    sleep(backoff.next_delay()).await;
                }
            }
        }
        *kube_kit::lock(&self.since_start) = None;
    }

    async fn compare(&self) -> Result<(), Error> {
        let config = self.own_conf()?;
        self.sweep(&config).await?;
        let Records { sandboxes, .. } = self.records(&config, BTreeSet::new()).await?;
        if sandboxes.is_empty() {
            return Ok(());
        }
        let known = runtime::sandboxes(&self.config).await?;
        let is_gone =
            |id: &String, record: &Record| !known.contains(id) && self.is_gone(record, known.is_empty());
        let gone = sandboxes.into_iter().filter(|(id, record)| is_gone(id, record));
        let work = gone.map(|(id, record)| {
            let config = &config;
            async move {
                if let Err(error) = self.clean_up_if_stale(config, &id, record).await {
                    tracing::warn!(%error, sandbox = id, "cannot detach a stale sandbox, retrying at the next start");
                }
            }
        });
        futures::stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
        Ok(())
    }

    async fn clean_up_if_stale(
        &self,
        config: &MultusConfig,
        id: &str,
        record: Record,
    ) -> Result<(), cni::Error> {
        let looked = record.clone();
        let is_dead = async || {
            let is_new = kube_kit::lock(&self.since_start)
                .as_ref()
                .is_none_or(|since_start| since_start.contains(id));
            if is_new {
                return false;
            }
            let known = runtime::sandboxes(&self.config).await;
            known.is_ok_and(|known| !known.contains(id) && self.is_gone(&looked, known.is_empty()))
        };
        self.clean_up(config, id, record, is_dead).await
    }

    /// Whether a sandbox that the runtime does not list is certainly gone. `is_blind`: the runtime's list is empty.
    fn is_gone(&self, record: &Record, is_blind: bool) -> bool {
        match &record.netns {
            Some(netns) => !self.netns_exists(netns),
            // A cached result without a namespace is no evidence.
            None => record.results.is_empty() && !is_blind && is_settled(record),
        }
    }

    /// Whether the path of a network namespace exists, in this process' root or in the host's.
    pub(super) fn netns_exists(&self, netns: &str) -> bool {
        let netns = Path::new(netns);
        [netns.to_owned(), self.config.on_host(netns)]
            .iter()
            .any(|path| fs::symlink_metadata(path).is_ok())
    }
}

/// Whether the ADD of a recorded sandbox has ended for certain.
pub(super) fn is_settled(record: &Record) -> bool {
    let age = record.written.and_then(|written| written.elapsed().ok());
    age.is_some_and(|age| age > runtime::SETTLED)
}
