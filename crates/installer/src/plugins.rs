//! `weft install-plugins`: the CNI plugins on a node.
//!
//! With `--host-dir`, the result is that of the established image's script (operands.md §3), and the program stays to
//! keep it so:
//!
//! | before | after |
//! |---|---|
//! | `bridge` is missing or a link | `cnv-bridge` is ours, `bridge -> <host-dir>/cnv-bridge` |
//! | `bridge` is a file of the platform's | untouched; `cnv-bridge -> <host-dir>/bridge` |
//!
//! Without it, each name becomes a copy, and the program ends (the init containers of operands.md §13).

mod bridge_defaults;
mod layout;
mod watch;

use crate::names::BINARY;
use crate::{About, Error, copy};
use bridge_defaults::BridgeDefaults;
use clap::Args as ClapArgs;
use layout::Installation;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use watch::Watcher;

/// How long until a failed installation is tried again: at first, and doubling up to this.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Install the CNI plugins on this node, and keep them installed
///
/// Each NAME becomes usable as the CNI types NAME and cnv-NAME. A plugin that the platform ships is left alone.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Directory of CNI binaries, as this container sees it
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,

    /// The same directory as the node sees it: links point there, and this program stays to repair what changes.
    /// Without it, the plugins are copied under their plain names and the program ends
    #[arg(long, value_name = "DIR")]
    pub host_dir: Option<PathBuf>,

    /// The binary that is every plugin
    #[arg(long, value_name = "FILE", default_value = BINARY)]
    pub from: PathBuf,

    /// Write nothing; succeed if everything is installed with the right content (for a start-up probe)
    #[arg(long)]
    pub check: bool,

    /// Keep ports with VLANs in the bridge's default VLAN as well, unless their config says otherwise
    #[arg(long)]
    pub preserve_default_vlan: bool,

    /// A plugin to install only where there is none of this name; one that is there is not updated. May be repeated
    #[arg(long, value_name = "NAME")]
    pub unless_present: Vec<String>,

    /// Plugins to install, such as bridge and tuning
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Installs, checks, or installs and keeps, as the arguments say. Blocks.
///
/// # Errors
/// When the binary can't be read; with `--check`, when something is missing or different; without `--host-dir`, when
/// something can't be written. With it, that is logged and tried again.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        to,
        host_dir,
        from,
        check,
        preserve_default_vlan,
        unless_present,
        names,
    } = args;
    let mut wanted = Wanted {
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
    tirelessly(FIRST_PAUSE, || keep_installed(&to, &mut wanted))
}

/// Everything that has to be in the directory.
struct Wanted {
    defaults: Option<BridgeDefaults>,
    installation: Installation,
}

impl Wanted {
    /// What is missing or different.
    fn missing(&mut self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = self.installation.missing()?;
        if let Some(defaults) = &self.defaults {
            paths.extend(defaults.missing()?);
        }
        Ok(paths)
    }

    /// Puts it in place. Whether anything had to be done.
    fn ensure(&mut self) -> Result<bool, Error> {
        // The plugin comes after its defaults, or the first pods would be in another network.
        let written = self.defaults.as_ref().map_or(Ok(false), BridgeDefaults::ensure)?;
        Ok(self.installation.ensure()? || written)
    }
}

/// Does again what fails, after pauses that double from `first`, for ever.
fn tirelessly(first: Duration, mut attempt: impl FnMut() -> Result<Infallible, Error>) -> ! {
    let mut pause = first;
    loop {
        let begin = Instant::now();
        let Err(error) = attempt();
        if begin.elapsed() > LONGEST_PAUSE {
            pause = first;
        }
        let error = anyhow::Error::from(error);
        tracing::error!("{error:#}; trying again in {pause:?}");
        // Not an event but time: our own attempts are events, and space on a disk is none.
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Puts everything in place, in a directory that may be missing. Whether anything had to be.
fn install(to: &Path, wanted: &mut Wanted) -> Result<bool, Error> {
    fs::create_dir_all(to).about("create", to)?;
    copy::sweep(to);
    wanted.ensure()
}

/// Pauses between repairs: two installers that disagree, such as those of two `DaemonSet`s, would otherwise undo each
/// other's work many times a second for ever.
struct Repairs {
    pause: Duration,
    resumed: Instant,
}

impl Repairs {
    const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

    fn new(now: Instant) -> Self {
        Self {
            pause: Duration::ZERO,
            resumed: now,
        }
    }

    /// How long to let changes gather after a repair at this time: longer with each one that comes soon after the last.
    fn pause_after(&mut self, now: Instant) -> Duration {
        let soon = now.duration_since(self.resumed) < LONGEST_PAUSE;
        self.pause = if soon && !self.pause.is_zero() {
            (self.pause * 2).min(LONGEST_PAUSE)
        } else {
            Self::SHORTEST_PAUSE
        };
        self.resumed = now + self.pause;
        self.pause
    }
}

/// Installs, and repairs what changes, until something fails: a full disk, a directory that is read-only.
fn keep_installed(to: &Path, wanted: &mut Wanted) -> Result<Infallible, Error> {
    fs::create_dir_all(to).about("create", to)?;
    // Watching begins before looking, so that no change is missed in between.
    let mut watcher = Watcher::open(to)?;
    install(to, wanted)?;
    println!("Entering sleep... (success)");
    let mut repairs = Repairs::new(Instant::now());
    loop {
        watcher.changed()?;
        if wanted.ensure()? {
            let pause = repairs.pause_after(Instant::now());
            tracing::info!(directory = %to.display(), "repaired the plugins; looking again in {pause:?}");
            thread::sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests;
