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

mod layout;
mod watch;

use crate::names::BINARY;
use crate::{About, Error, copy};
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
        names,
    } = args;
    let mut installation = Installation::new(&to, host_dir.as_deref(), &from, &names)?;
    if check {
        let paths = installation.missing()?;
        return if paths.is_empty() {
            Ok(())
        } else {
            Err(Error::NotInstalled { paths }.into())
        };
    }
    if host_dir.is_none() {
        return Ok(install(&to, &mut installation).map(drop)?);
    }
    tirelessly(FIRST_PAUSE, || keep_installed(&to, &mut installation))
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
fn install(to: &Path, installation: &mut Installation) -> Result<bool, Error> {
    fs::create_dir_all(to).about("create", to)?;
    copy::sweep(to);
    installation.ensure()
}

/// Installs, and repairs what changes, until something fails: a full disk, a directory that is read-only.
fn keep_installed(to: &Path, installation: &mut Installation) -> Result<Infallible, Error> {
    fs::create_dir_all(to).about("create", to)?;
    // Watching begins before looking, so that no change is missed in between.
    let mut watcher = Watcher::open(to)?;
    install(to, installation)?;
    println!("Entering sleep... (success)");
    loop {
        watcher.changed()?;
        if installation.ensure()? {
            tracing::info!(directory = %to.display(), "repaired the plugins");
        }
    }
}

#[cfg(test)]
mod tests;
