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
use std::fs;
use std::path::PathBuf;
use watch::Watcher;

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
/// When something can't be written; with `--check`, when something is missing or different.
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
    fs::create_dir_all(&to).about("create", &to)?;
    copy::sweep(&to);
    if host_dir.is_none() {
        installation.ensure()?;
        return Ok(());
    }
    // Watching begins before looking, so that no change is missed in between.
    let mut watcher = Watcher::open(&to)?;
    installation.ensure()?;
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
