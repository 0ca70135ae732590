//! Reads a node's state and calls CHECK. Blocks; must run in the host's root.

use super::facts::{CacheOwner, CachedAttachment, Checked, Netns, Prepared};
use crate::execution::in_process::Plugins;
use crate::names;
use crate::store::records::{self, Records};
use cni::cache::{Cache, CacheError, Entry};
use cni::chain::{self, Chain, Runner};
use cni::config::NetworkList;
use cni::env::Variables;
use plugins::names::LOOPBACK;
use plugins::traces::{self, Trace};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The container runtime's cache folder (the CNI library's `cacheDir`).
pub(super) const RUNTIME_CACHE: &str = "/var/lib/cni";
/// Limit of attachments: bounds the memory that years of leftovers take.
const MAX_ATTACHMENTS: usize = 8192;
/// Time limit of all CHECKs together.
const CHECKS: Duration = Duration::from_mins(3);
/// Delay before failed CHECKs are repeated: a DEL may have been running at the first one.
const PAUSE: Duration = Duration::from_millis(500);
const NO_TIME: &str = "the time limit of all checks was reached";

/// The node's state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A result cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The scratch files of multus.
    #[error(transparent)]
    Records(#[from] records::Error),
    /// The state of the plugins.
    #[error(transparent)]
    Traces(#[from] traces::Error),
}

/// The state in the node's files.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) attachments: Vec<CachedAttachment>,
    pub(super) prepared: Vec<Prepared>,
    pub(super) traces: Vec<Trace>,
    pub(super) broken: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// Reads all state, and with `checks` calls CHECK for each attachment.
pub(super) fn inspect(plugins: &Plugins, cni_dir: &Path, checks: bool) -> Result<Observed, Error> {
    let mut observed = Observed::default();
    let mut failed = Vec::new();
    let deadline = Instant::now() + CHECKS;
    'caches: for (owner, dir) in caches(cni_dir) {
        let cache = Cache::new(&dir);
        for entry in cache.each()? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ CacheError::Broken { .. }) => {
                    observed.broken.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if observed.attachments.len() >= MAX_ATTACHMENTS {
                observed.notes.push(format!(
                    "only the first {MAX_ATTACHMENTS} attachments were checked"
                ));
                break 'caches;
            }
            let Some(mut attachment) = attachment(owner, &entry) else {
                continue;
            };
            if checks && attachment.netns == Netns::There {
                attachment.checked = checked(plugins, &cache, &entry, deadline);
                if matches!(attachment.checked, Checked::Failed(_)) {
                    failed.push((observed.attachments.len(), dir.clone(), entry));
                }
            }
            observed.attachments.push(attachment);
        }
    }
    check_again(plugins, failed, &mut observed.attachments, deadline);
    observed.prepared = prepared(cni_dir)?;
    observed.traces = traces::read()?;
    Ok(observed)
}

fn caches(cni_dir: &Path) -> [(CacheOwner, PathBuf); 2] {
    [
        (CacheOwner::Runtime, RUNTIME_CACHE.into()),
        (CacheOwner::Multus, cni_dir.to_owned()),
    ]
}

/// The attachment of a cache entry. `None` for multus itself, whose networks are in the other cache, and for the
/// loopback interface.
fn attachment(owner: CacheOwner, entry: &Entry) -> Option<CachedAttachment> {
    let network = NetworkList::parse_any(&entry.config).ok();
    let plugins: Vec<String> = network
        .iter()
        .flat_map(|network| &network.plugins)
        .map(|plugin| plugin.plugin().to_owned())
        .collect();
    let netns = netns(&entry.netns);
    let is_skipped = |plugin: &String| [names::SHIM, names::THIN, LOOPBACK].contains(&plugin.as_str());
    // A leftover has to be detached, so it counts.
    if !plugins.is_empty() && plugins.iter().all(is_skipped) && netns != Netns::Gone {
        return None;
    }
    Some(CachedAttachment::of(owner, entry, plugins, netns))
}

pub(super) fn netns(path: &str) -> Netns {
    match path {
        "" => Netns::Unknown,
        path if fs::symlink_metadata(path).is_ok() => Netns::There,
        _ => Netns::Gone,
    }
}

/// Sandboxes with a scratch file but no cached result.
fn prepared(cni_dir: &Path) -> Result<Vec<Prepared>, records::Error> {
    let Records { sandboxes, .. } = Records::read(cni_dir, &BTreeSet::new())?;
    let unfinished = sandboxes
        .into_iter()
        .filter(|(_, record)| record.results.is_empty())
        .filter_map(|(sandbox, record)| {
            Some(Prepared {
                sandbox,
                written: record.written?,
            })
        });
    Ok(unfinished.collect())
}

/// Calls CHECK of every plugin, including those after a failed one.
fn checked(plugins: &Plugins, cache: &Cache, entry: &Entry, deadline: Instant) -> Checked {
    let network = match NetworkList::parse_any(&entry.config) {
        Ok(network) => network,
        Err(error) => return Checked::Skipped(format!("its cached configuration is unusable: {error}")),
    };
    if let Some(reason) = skip_reason(&network, deadline) {
        return Checked::Skipped(reason);
    }
    let runner = CollectingRunner {
        plugins,
        failed: RefCell::default(),
    };
    let chain = Chain {
        runner: &runner,
        cache,
    };
    let outcome = chain.check(&network, &of(entry));
    let mut failed = runner.failed.into_inner();
    if let Err(error) = outcome {
        failed.push((String::new(), error.to_string()));
    }
    if failed.is_empty() {
        return Checked::Good;
    }
    Checked::Failed(failed)
}

/// The attachment of a cache entry, for plugin calls.
pub(super) fn of(entry: &Entry) -> chain::Attachment {
    chain::Attachment {
        container_id: entry.container_id.clone(),
        netns: entry.netns.clone(),
        ifname: entry.ifname.clone(),
        args: entry.args.clone(),
        capability_args: entry.capability_args.clone(),
    }
}

fn skip_reason(network: &NetworkList, deadline: Instant) -> Option<String> {
    let has_check = network.version().is_some_and(cni::Version::has_check);
    if !has_check {
        let version = match network.version_text.as_str() {
            "" => "0.1.0",
            version => version,
        };
        return Some(format!(
            "its configuration has cniVersion {version}, CHECK came with 0.4.0"
        ));
    }
    if network.disable_check {
        return Some("its configuration sets disableCheck".to_owned());
    }
    (Instant::now() >= deadline).then(|| NO_TIME.to_owned())
}

/// Repeats the failed CHECKs once: a pod whose DEL was running is gone by then.
fn check_again(
    plugins: &Plugins,
    failed: Vec<(usize, PathBuf, Entry)>,
    attachments: &mut Vec<CachedAttachment>,
    deadline: Instant,
) {
    if failed.is_empty() {
        return;
    }
    sleep(PAUSE);
    // In reverse, so that removals do not shift the remaining indices.
    for (place, dir, entry) in failed.into_iter().rev() {
        let cache = Cache::new(&dir);
        let exists = cache.load(entry.key()).is_ok_and(|entry| entry.is_some());
        if !exists || netns(&entry.netns) != Netns::There {
            attachments.remove(place);
            continue;
        }
        if Instant::now() < deadline
            && let Some(attachment) = attachments.get_mut(place)
        {
            attachment.checked = checked(plugins, &cache, &entry, deadline);
        }
    }
}

/// Collects errors of plugins, and lets the chain continue.
struct CollectingRunner<'a> {
    plugins: &'a Plugins,
    failed: RefCell<Vec<(String, String)>>,
}

impl Runner for CollectingRunner<'_> {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, cni::Error> {
        if let Err(error) = self.plugins.run(plugin, variables, config) {
            self.failed
                .borrow_mut()
                .push((plugin.to_owned(), error.to_string()));
        }
        Ok(Vec::new())
    }

    fn path(&self) -> String {
        self.plugins.path()
    }
}
