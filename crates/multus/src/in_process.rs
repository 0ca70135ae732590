//! Our own plugins as a part of the daemon, all others as programs (multus.md §7.4).
//!
//! ```text
//! chain ──> run(type, CNI_*, config) ── found in binDir, CNI_PATH ──> the worker's thread, at the host's root
//!                                                                          │
//!                                                                          └─ carries our mark? ── yes ──> called
//!                                                                                               └─ no ───> exec
//! ```
//!
//! Starting a process is most of what a plugin of ours costs. What is run here is what would have been started: the file
//! that lies on the host has to carry the mark of this daemon's own build ([`plugins::mark`]). A platform's plugin under
//! the same name, or ours of another version, is started as any other.
//!
//! The thread of the pod's [worker](crate::workers) does what a process would do, with what it would have: root, working
//! directory and network namespace of its own, from which it returns, and the environment as a value. A panic ends that
//! call alone; a thread that could not return ends with all its work. A program that is started from there is at the
//! host's root already: nothing has to be done between fork and exec, so that the daemon's memory is not copied for it.

use crate::messages;
use crate::names;
use cni::Error;
use cni::chain::Runner;
use cni::config::NetworkConfig;
use cni::env::{Variables, Verb};
use cni::exec::{self, Invoker, Resident};
use cni::names::CNI_COMMAND;
use cni::plugin::{Plugin, run_resident};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

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
    /// Set when the daemon gave the call up while its thread goes on. The call attaches nothing more then.
    pub given_up: Arc<AtomicBool>,
}

impl Runner for Plugins {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        if self.is_given_up()
            && variables
                .get(CNI_COMMAND)
                .is_some_and(|verb| verb == Verb::Add.as_str())
        {
            return Err(messages::given_up(plugin));
        }
        let path = self.invoker.find(plugin)?;
        let call = || match candidate(plugin).filter(|_| self.known.is_ours(&path).unwrap_or(false)) {
            Some(ours) => {
                let mut all = self.invoker.base.clone();
                all.extend(variables.clone());
                run_resident(ours, &all, config, self.resident())
            }
            None => self.invoker.run_at(&path, variables, config),
        };
        self.on_host(plugin, config, call)
    }

    fn path(&self) -> String {
        self.invoker.path()
    }
}

/// The plugin of ours that may lie under a name. Never the one that would call this daemon.
fn candidate(name: &str) -> Option<&'static dyn Plugin> {
    let plugin = plugins::plugin_by_name(name)?;
    (plugin.name() != names::SHIM).then_some(plugin)
}

impl Plugins {
    /// Whether the daemon gave the call up.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The limits of a plugin that runs in this process: the same as those of a program.
    fn resident(&self) -> Resident {
        Resident {
            prepare: self.invoker.prepare.clone(),
            deadline: Instant::now() + self.invoker.limit.unwrap_or(exec::RESIDENT_LIMIT),
        }
    }

    /// Makes a plugin's call where the plugin belongs.
    fn on_host(
        &self,
        plugin: &str,
        config: &[u8],
        call: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Vec<u8>, Error> {
        let call = || {
            panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
                if linux::thread::is_lost() {
                    panic::resume_unwind(panic);
                }
                let network = NetworkConfig::parse(config)
                    .map(|config| config.name().to_owned())
                    .unwrap_or_default();
                Err(messages::panicked(plugin, &network, said(&*panic)))
            })
        };
        match &self.root {
            Some(root) => linux::process::with_root(root, call)
                .unwrap_or_else(|error| Err(messages::not_run(plugin, &error))),
            None => call(),
        }
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
        if let Some(known) = kube_kit::lock(&self.0).get(&Identity::of(&metadata)) {
            return Ok(*known);
        }
        let file = File::open(path)?;
        // What is read, which another may have taken the place of since.
        let identity = Identity::of(&file.metadata()?);
        let ours = plugins::mark::is_this_build(BufReader::new(file))?;
        let mut files = kube_kit::lock(&self.0);
        if files.len() >= REMEMBERED {
            files.clear();
        }
        files.insert(identity, ours);
        Ok(ours)
    }
}

#[cfg(test)]
mod tests;
