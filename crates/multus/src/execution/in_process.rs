//! Runs our own plugins in the daemon's process, and all others as programs (multus.md §7.4).
//!
//! ```text
//! chain ──> run(type, CNI_*, config) ── found in binDir, CNI_PATH ──> the worker's thread, at the host's root
//!                                                                          │
//!                                                                          └─ has our mark? ── yes ──> called
//!                                                                                              └─ no ───> exec
//! ```
//!
//! Starting the process takes most of a plugin's time. A plugin runs in-process only if the file on the host has the
//! mark of this daemon's own build ([`plugins::mark`]), so the same code runs either way. A platform's plugin with
//! the same name, or another version of ours, runs as a program.
//!
//! The [worker](crate::execution::workers) thread has its own root, working directory and network namespace, to which it returns
//! after the call, and passes the environment as a value. A panic ends only that call; a thread that cannot return
//! ends. A program that is started from this thread is in the host's root already: without work between fork and
//! exec, the daemon's memory is not copied.

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

/// Mode bits of executable files.
const EXECUTABLE: u32 = 0o111;
/// Limit of cached files. A node has one for each installed version of the plugins.
const REMEMBERED: usize = 64;

/// Runs plugins, in-process or as programs.
#[derive(Debug)]
pub struct Plugins {
    /// Finds plugin files, and starts programs.
    pub invoker: Invoker,
    /// Root directory of the plugins, if it is not the daemon's.
    pub root: Option<PathBuf>,
    /// Recognises plugin files of this build.
    pub own_binaries: Arc<OwnBinaries>,
    /// Set when the daemon gave the call up while its thread still runs. Then the call attaches nothing more, and calls
    /// no further plugin for GC.
    pub given_up: Arc<AtomicBool>,
    /// A failed DEL is repeated.
    pub repeats_dels: bool,
}

impl Runner for Plugins {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        if self.is_given_up()
            && variables
                .get(CNI_COMMAND)
                .is_some_and(|verb| [Verb::Add, Verb::Gc].iter().any(|gone| verb == gone.as_str()))
        {
            return Err(messages::given_up(plugin));
        }
        let path = self.invoker.find(plugin)?;
        let call = || match own_plugin(plugin).filter(|_| self.own_binaries.is_ours(&path).unwrap_or(false)) {
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

/// Our plugin of this name, except the shim, which would call this daemon.
fn own_plugin(name: &str) -> Option<&'static dyn Plugin> {
    let plugin = plugins::plugin_by_name(name)?;
    (plugin.name() != names::SHIM).then_some(plugin)
}

impl Plugins {
    /// Whether the daemon gave the call up.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The limits of an in-process plugin, equal to those of a program.
    fn resident(&self) -> Resident {
        Resident {
            prepare: self.invoker.prepare.clone(),
            deadline: Instant::now() + self.invoker.limit.unwrap_or(exec::RESIDENT_LIMIT),
            repeats_dels: self.repeats_dels,
        }
    }

    /// Calls a plugin in the plugins' root, and contains its panics.
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
                Err(messages::panicked(plugin, &network, panic_message(&*panic)))
            })
        };
        match &self.root {
            Some(root) => linux::process::with_root(root, call)
                .unwrap_or_else(|error| Err(messages::not_run(plugin, &error))),
            None => call(),
        }
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Recognises plugin files of this build. Reads each file once.
#[derive(Debug, Default)]
pub struct OwnBinaries(Mutex<BTreeMap<Identity, bool>>);

/// Identity of a file's content.
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

impl OwnBinaries {
    fn is_ours(&self, path: &Path) -> io::Result<bool> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() || metadata.mode() & EXECUTABLE == 0 {
            return Ok(false);
        }
        if let Some(is_ours) = kube_kit::lock(&self.0).get(&Identity::of(&metadata)) {
            return Ok(*is_ours);
        }
        let file = File::open(path)?;
        // Of the opened file: the path may lead to another one since.
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
