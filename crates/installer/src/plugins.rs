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

    /// Keep ports with VLANs in the bridge's default VLAN as well, unless their config says otherwise
    #[arg(long)]
    pub preserve_default_vlan: bool,

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
        preserve_default_vlan,
        names,
    } = args;
    let defaults = BridgeDefaults::new(&to, &names, preserve_default_vlan);
    let mut installation = Installation::new(&to, host_dir.as_deref(), &from, &names)?;
    if check {
        let mut paths = installation.missing()?;
        if let Some(defaults) = &defaults {
            paths.extend(defaults.missing()?);
        }
        return if paths.is_empty() {
            Ok(())
        } else {
            Err(Error::NotInstalled { paths }.into())
        };
    }
    fs::create_dir_all(&to).about("create", &to)?;
    copy::sweep(&to);
    // The plugin comes after its defaults, or the first pods would be in another network.
    let mut ensure = || -> Result<bool, Error> {
        let written = defaults.as_ref().map_or(Ok(false), BridgeDefaults::ensure)?;
        Ok(installation.ensure()? || written)
    };
    if host_dir.is_none() {
        ensure()?;
        return Ok(());
    }
    // Watching begins before looking, so that no change is missed in between.
    let mut watcher = Watcher::open(&to)?;
    ensure()?;
    println!("Entering sleep... (success)");
    loop {
        watcher.changed()?;
        if ensure()? {
            tracing::info!(directory = %to.display(), "repaired the plugins");
        }
    }
}

#[cfg(test)]
mod tests;
