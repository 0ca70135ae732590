//! Deletes macvtaps that were made for pods that never got them.
//!
//! ```text
//! links mvt… of kind macvtap ──> less those of the devices in kubelet's checkpoint
//!                            ──> older than a minute, by the device node ──> deleted
//! ```
//!
//! This happens once, before kubelet can allocate a device. The minute is for a plugin that restarts while kubelet has an
//! allocation of its predecessor but has not recorded it yet. Without a checkpoint that can be read, nothing is deleted.
//! GC of the CNI plugin later deletes links that are younger.

use crate::names::{CHECKPOINT, NODE_PREFIX};
use crate::plugin::Directories;
use linux::link::Link;
use linux::route::Socket;
use plugins::macvtap::{allocated_links, is_abandoned, node_age};
use std::collections::BTreeSet;
use std::path::Path;

/// Deletes the links in the network namespace of the calling thread. A failure is only logged: the links do no harm.
pub(crate) fn sweep(directories: &Directories) {
    let path = directories.kubelet_dir.join(CHECKPOINT);
    let deleted = match allocated_links(&path) {
        Ok(Some(allocated)) => delete(&allocated, &directories.device_dir),
        Ok(None) => return,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read kubelet's checkpoint, macvtaps without a pod stay");
            return;
        }
    };
    if let Err(error) = deleted {
        tracing::warn!(%error, "cannot delete macvtaps without a pod");
    }
}

fn delete(allocated: &BTreeSet<String>, device_dir: &Path) -> linux::Result<()> {
    let age = |link: &Link| node_age(&device_dir.join(format!("{NODE_PREFIX}{}", link.index)));
    let mut socket = Socket::open()?;
    let links = socket.links()?;
    let mut outcome = Ok(());
    for link in links.iter().filter(|link| is_abandoned(link, allocated, age)) {
        let deleted = socket.delete_link(link);
        if deleted.is_ok() {
            tracing::info!(link = link.name, "deleted a macvtap that no pod has");
        }
        outcome = outcome.and(deleted);
    }
    outcome
}
