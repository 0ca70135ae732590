//! `weft install-plugins`: the CNI plugins on a node.
//!
//! With `--host-dir`, the result is that of the script in upstream's image (operands.md §3), and the program runs on to
//! repair it:
//!
//! | before | after |
//! |---|---|
//! | `bridge` is missing or a link | `cnv-bridge` is the installed binary, `bridge -> <host-dir>/cnv-bridge` |
//! | `bridge` is a file of the platform | unchanged; `cnv-bridge -> <host-dir>/bridge` |
//!
//! Without it, each name becomes a copy, and the program ends (the init containers of operands.md §13).

mod allow_list;
mod bridge_defaults;
mod layout;
mod watch;

use crate::names::BINARY;
use crate::{About, Error, copy};
use allow_list::AllowList;
use bridge_defaults::BridgeDefaults;
use clap::Args as ClapArgs;
use layout::Installation;
use linux::backoff::Backoff;
use linux::files::is_deleted_directory;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use watch::Watcher;

/// Back-off of failed installations: the first and the longest delay.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Install the CNI plugins on this node, and keep them installed
///
/// Each NAME becomes usable as the CNI types NAME and cnv-NAME. A plugin that the platform ships is left alone.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Directory of CNI binaries in this container
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,

    /// The path of the same directory on the node: links point there, and this program runs on to repair changes.
    /// Without it, the plugins are copied under their plain names and the program ends
    #[arg(long, value_name = "DIR")]
    pub host_dir: Option<PathBuf>,

    /// The binary of all plugins
    #[arg(long, value_name = "FILE", default_value = BINARY)]
    pub from: PathBuf,

    /// Write nothing; succeed if everything is installed with the right content (for a startup probe)
    #[arg(long)]
    pub check: bool,

    /// Keep ports with VLANs in the bridge's default VLAN as well, unless their config sets preserveDefaultVlan
    #[arg(long)]
    pub preserve_default_vlan: bool,

    /// A plugin to install only if none with this name exists; an existing one is not updated. May be repeated
    #[arg(long, value_name = "NAME")]
    pub unless_present: Vec<String>,

    /// List of the sysctls that tuning may set, for the file allowlist.conf of --tuning-dir. While it is missing, that file
    /// stays
    #[arg(long, value_name = "FILE", requires = "tuning_dir")]
    pub sysctl_allow_list: Option<PathBuf>,

    /// Directory of tuning's configuration in this container, which is /etc/cni/tuning on the node
    #[arg(long, value_name = "DIR")]
    pub tuning_dir: Option<PathBuf>,

    /// Plugins to install, such as bridge and tuning
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Installs, checks, or installs and repairs, depending on the arguments. Blocks.
///
/// # Errors
/// If the binary cannot be read; with `--check`, if something is missing or different; without `--host-dir`, if
/// something cannot be written. With it, a failure is logged and retried, unless a directory was deleted on the node: then
/// only a new container sees the directory in its place.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        to,
        host_dir,
        from,
        check,
        preserve_default_vlan,
        unless_present,
        sysctl_allow_list,
        tuning_dir,
        names,
    } = args;
    let mut wanted = Wanted {
        allow_list: sysctl_allow_list
            .zip(tuning_dir)
            .map(|(from, dir)| AllowList::new(&from, &dir)),
        defaults: BridgeDefaults::new(&to, &names, preserve_default_vlan),
        installation: Installation::new(&to, host_dir.as_deref(), &from, &names)?
            .and_unless_present(unless_present)?,
    };
    if check {
        let paths = wanted.missing()?;
        return if paths.is_empty() {
            Ok(())
        } else {
            Err(Error::NotInstalled { paths }.into())
        };
    }
    if host_dir.is_none() {
        return Ok(install(&to, &mut wanted).map(drop)?);
    }
    sweep_after(copy::STALE + FIRST_PAUSE, &to)?;
    let mut dirs = wanted.directories();
    dirs.push(to.clone());
    let deleted = || dirs.iter().find(|dir| is_deleted_directory(dir)).cloned();
    let (dir, error) = retry(FIRST_PAUSE, deleted, || keep_installed(&to, &mut wanted));
    Err(anyhow::Error::from(error).context(format!(
        "{} was deleted on the node, and this container never sees the directory that replaces it: the installer ends, so \
         that kubelet starts it again with the present directory",
        dir.display()
    )))
}

/// The desired content of the directory, and what belongs to its plugins.
struct Wanted {
    allow_list: Option<AllowList>,
    defaults: Option<BridgeDefaults>,
    installation: Installation,
}

impl Wanted {
    /// Missing or different files.
    fn missing(&mut self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = self.installation.missing()?;
        if let Some(defaults) = &self.defaults {
            paths.extend(defaults.missing()?);
        }
        if let Some(list) = &self.allow_list {
            paths.extend(list.missing()?);
        }
        Ok(paths)
    }

    /// The directories whose changes count, apart from that of the plugins.
    fn directories(&self) -> Vec<PathBuf> {
        let lists = self.allow_list.iter();
        lists.flat_map(AllowList::directories).collect()
    }

    /// Installs everything. Returns whether anything changed.
    fn ensure(&mut self) -> Result<bool, Error> {
        // Configuration comes before the plugin, or the first pods would be attached to another network, and their sysctls
        // not checked.
        let limited = self.allow_list.as_ref().map_or(Ok(false), AllowList::ensure)?;
        let written = self.defaults.as_ref().map_or(Ok(false), BridgeDefaults::ensure)?;
        Ok(self.installation.ensure()? || written || limited)
    }
}

/// Repeats a failing attempt with back-off from `first`, until a directory of the attempts was deleted. Returns this
/// directory, and the last failure.
fn retry(
    first: Duration,
    deleted: impl Fn() -> Option<PathBuf>,
    mut attempt: impl FnMut() -> Result<Infallible, Error>,
) -> (PathBuf, Error) {
    let mut backoff = Backoff::new(first, LONGEST_PAUSE);
    loop {
        let begin = Instant::now();
        let Err(error) = attempt();
        if let Some(dir) = deleted() {
            return (dir, error);
        }
        if begin.elapsed() > LONGEST_PAUSE {
            backoff.reset();
        }
        let pause = backoff.next_delay();
        let error = anyhow::Error::from(error);
        tracing::error!("{error:#}; retrying in {pause:?}");
        // A timer rather than an event: the installer's own attempts cause events, and free space on a disk causes
        // none.
        thread::sleep(pause);
    }
}

/// Deletes the temporary files of an installer that was killed shortly before this one started: at its start they were
/// too young to be told from those of another running installer.
fn sweep_after(pause: Duration, dir: &Path) -> Result<JoinHandle<()>, Error> {
    let swept = dir.to_path_buf();
    let thread = thread::Builder::new().name("sweep".to_owned()).spawn(move || {
        thread::sleep(pause);
        copy::sweep(&swept);
    });
    thread.about("start a thread for", dir)
}

/// Installs everything in a directory that may not exist. Returns whether anything changed.
fn install(to: &Path, wanted: &mut Wanted) -> Result<bool, Error> {
    fs::create_dir_all(to).about("create", to)?;
    copy::sweep(to);
    wanted.ensure()
}

/// Delays between repairs: two installers with different content, such as those of two `DaemonSet`s, would otherwise
/// revert each other many times a second for ever.
struct Repairs {
    backoff: Backoff,
    resumed: Instant,
}

impl Repairs {
    const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

    fn new(now: Instant) -> Self {
        Self {
            backoff: Backoff::new(Self::SHORTEST_PAUSE, LONGEST_PAUSE),
            resumed: now,
        }
    }

    /// How long to collect changes after a repair at this time: the sooner a repair follows the last one, the longer.
    fn pause_after(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.resumed) >= LONGEST_PAUSE {
            self.backoff.reset();
        }
        let pause = self.backoff.next_delay();
        self.resumed = now + pause;
        pause
    }
}

/// Installs, and repairs changes, until an error: a full disk, a read-only directory.
fn keep_installed(to: &Path, wanted: &mut Wanted) -> Result<Infallible, Error> {
    fs::create_dir_all(to).about("create", to)?;
    // The watch starts before the check, so that no change is missed in between.
    let mut watcher = Watcher::open(to, wanted.directories())?;
    install(to, wanted)?;
    println!("Entering sleep... (success)");
    let mut repairs = Repairs::new(Instant::now());
    loop {
        watcher.changed()?;
        if wanted.ensure()? {
            let pause = repairs.pause_after(Instant::now());
            tracing::info!(directory = %to.display(), "repaired the plugins; checking again in {pause:?}");
            thread::sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests;
