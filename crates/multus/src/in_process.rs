//! Our own plugins as a part of the daemon, all others as programs (multus.md §7.4).
//!
//! ```text
//! chain ──> run(type, CNI_*, config) ── found in binDir, CNI_PATH ──> carries our mark? ── yes ──> a thread of its own,
//!                                                                          │                       chrooted to the host
//!                                                                          └──── no ───> exec, chrooted to the host
//! ```
//!
//! Starting a process is most of what a plugin of ours costs. What is run here is what would have been started: the file
//! that lies on the host has to carry the mark of this daemon's own build ([`plugins::mark`]). A platform's plugin under
//! the same name, or ours of another version, is started as any other.
//!
//! A thread does what a process would do, with what it would have: root, working directory and network namespace of its
//! own, and the environment as a value. It lives for one call, so that nothing of it is left for the next one, and a
//! panic ends that call alone.

use crate::messages;
use cni::Error;
use cni::chain::Runner;
use cni::config::NetworkConfig;
use cni::env::Variables;
use cni::exec::Invoker;
use cni::plugin::{Plugin, run_resident};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Stack of a plugin, bytes: the deepest thing on it is a JSON parser. Only touched pages count.
const STACK: usize = 512 * 1024;
/// Mode bits of which one lets a file be run.
const EXECUTABLE: u32 = 0o111;
/// Files that are remembered. There is one a version of the plugins on the node.
const REMEMBERED: usize = 64;

/// Runs plugins.
#[derive(Debug)]
pub struct Plugins {
    /// Finds them, and starts those that are not ours.
    pub invoker: Invoker,
    /// Root directory of all of them, if it is not the daemon's.
    pub root: Option<PathBuf>,
    /// Which files are ours.
    pub known: Arc<Known>,
}

impl Runner for Plugins {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        if let Some(ours) = candidate(plugin)
            && let Ok(path) = self.invoker.find(plugin)
            && let Some(outcome) = self.run_here(ours, &path, variables, config)
        {
            return outcome;
        }
        self.invoker.run(plugin, variables, config)
    }

    fn path(&self) -> String {
        self.invoker.path()
    }
}

/// The plugin of ours that may lie under a name. Never the one that would call this daemon.
fn candidate(name: &str) -> Option<&'static dyn Plugin> {
    let plugin = plugins::plugin_by_name(name)?;
    (plugin.name() != plugins::MultusShim::new().name()).then_some(plugin)
}

impl Plugins {
    /// Runs a plugin on a thread, if the file at `path` is nothing but it. What cannot be read, entered or started is for
    /// the other way to tell, in the words that are expected.
    fn run_here(
        &self,
        plugin: &dyn Plugin,
        path: &Path,
        variables: &Variables,
        config: &[u8],
    ) -> Option<Result<Vec<u8>, Error>> {
        let work = || {
            linux::netns::spare_this_thread();
            if let Some(root) = &self.root {
                linux::process::enter_root(root).ok()?;
            }
            if !self.known.is_ours(path).unwrap_or(false) {
                return None;
            }
            let mut all = self.invoker.base.clone();
            all.extend(variables.clone());
            Some(run_resident(plugin, &all, config))
        };
        thread::scope(|scope| {
            let builder = thread::Builder::new().name(plugin.name().into());
            let thread = builder.stack_size(STACK).spawn_scoped(scope, work).ok()?;
            thread.join().unwrap_or_else(|panic| {
                let network = NetworkConfig::parse(config)
                    .map(|config| config.name().to_owned())
                    .unwrap_or_default();
                Some(Err(messages::panicked(plugin.name(), &network, said(&*panic))))
            })
        })
    }
}

/// What a panic was about.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Which files are our own plugins, of this build. A file is read once.
#[derive(Debug, Default)]
pub struct Known(Mutex<BTreeMap<Identity, bool>>);

/// What cannot stay the same when a file gets another content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Known {
    fn is_ours(&self, path: &Path) -> io::Result<bool> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() || metadata.mode() & EXECUTABLE == 0 {
            return Ok(false);
        }
        if let Some(known) = self.files().get(&Identity::of(&metadata)) {
            return Ok(*known);
        }
        let file = File::open(path)?;
        // What is read, which another may have taken the place of since.
        let identity = Identity::of(&file.metadata()?);
        let ours = plugins::mark::is_this_build(BufReader::new(file))?;
        let mut files = self.files();
        if files.len() >= REMEMBERED {
            files.clear();
        }
        files.insert(identity, ours);
        Ok(ours)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Identity, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
