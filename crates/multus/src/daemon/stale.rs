//! State of sandboxes that are older than this daemon, compared with what the container runtime knows (multus.md §5.4).
//!
//! A sandbox is gone for good when the runtime does not know it and its network namespace is not there. One of the two
//! alone does not say so: a runtime that was asked may be another one than kubelet's, and some list a sandbox only after
//! its network was attached. Where the namespace is not known, because the daemon was killed before the first plugin
//! answered, the runtime's word is enough if it knows any sandbox at all, and the record is not of just now: a daemon that
//! is on its way out may still be at it.

use super::Daemon;
use super::gc::AT_ONCE;
use crate::cluster::ClusterView;
use crate::net_conf::MultusConfig;
use crate::records::{Record, Records};
use crate::runtime;
use futures::StreamExt as _;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;

/// How often a runtime that does not answer is asked, and how long apart: it may be starting too.
const TRIES: u32 = 40;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why nothing is compared.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error(transparent)]
    Cni(#[from] cni::Error),
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Detaches the sandboxes that were gone before this daemon started.
    pub async fn bury_stale(&self) {
        let mut pause = FIRST_PAUSE;
        for left in (0..TRIES).rev() {
            match self.compare().await {
                Ok(()) => break,
                Err(error) if left == 0 => {
                    tracing::warn!(%error, "sandboxes of old are not compared with the runtime's");
                }
                Err(error) => {
                    tracing::debug!(%error, "sandboxes of old are compared later");
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
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
                if let Err(error) = self.bury_one(config, &id, record).await {
                    tracing::warn!(%error, sandbox = id, "a sandbox of old can't be detached, it is tried at the next start");
                }
            }
        });
        futures::stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
        Ok(())
    }

    async fn bury_one(&self, config: &MultusConfig, id: &str, record: Record) -> Result<(), cni::Error> {
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
        self.bury(config, id, record, is_dead).await
    }

    /// Whether a sandbox that the runtime does not know is certainly no more. `is_blind`: it knows none at all.
    fn is_gone(&self, record: &Record, is_blind: bool) -> bool {
        match &record.netns {
            Some(netns) => !self.is_there(netns),
            // An attachment that says nothing of a namespace can't be judged.
            None => record.results.is_empty() && !is_blind && is_settled(record),
        }
    }

    /// Whether anything is at the path of a network namespace, as this process sees it or as the host does.
    pub(super) fn is_there(&self, netns: &str) -> bool {
        let netns = Path::new(netns);
        [netns.to_owned(), self.config.on_host(netns)]
            .iter()
            .any(|path| fs::symlink_metadata(path).is_ok())
    }
}

fn is_settled(record: &Record) -> bool {
    let age = record.written.and_then(|written| written.elapsed().ok());
    age.is_some_and(|age| age > runtime::SETTLED)
}
