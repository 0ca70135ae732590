//! Deletes macvtaps that were made for pods that never got them.
//!
//! ```text
//! links mvt… of kind macvtap ──> less those of the devices in kubelet's checkpoint ──> deleted
//! ```
//!
//! This happens once, before kubelet can allocate a device. Without a checkpoint that can be read, nothing is deleted.

use crate::names::{CHECKPOINT, MACVTAP};
use linux::link::Link;
use linux::route::Socket;
use plugins::macvtap::{allocated_links, is_link_name};
use std::collections::BTreeSet;
use std::path::Path;

/// Deletes the links in the network namespace of the calling thread. A failure is only logged: the links do no harm.
pub(crate) fn sweep(kubelet_dir: &Path) {
    let path = kubelet_dir.join(CHECKPOINT);
    let deleted = match allocated_links(&path) {
        Ok(Some(allocated)) => delete(&allocated),
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

fn delete(allocated: &BTreeSet<String>) -> linux::Result<()> {
    let mut socket = Socket::open()?;
    let links = socket.links()?;
    let mut outcome = Ok(());
    for link in links.iter().filter(|link| is_abandoned(link, allocated)) {
        let deleted = socket.delete_link(link);
        if deleted.is_ok() {
            tracing::info!(link = link.name, "deleted a macvtap that no pod has");
        }
        outcome = outcome.and(deleted);
    }
    outcome
}

fn is_abandoned(link: &Link, allocated: &BTreeSet<String>) -> bool {
    link.is_kind(MACVTAP) && is_link_name(&link.name) && !allocated.contains(&link.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, kind: &str) -> Link {
        let mut link = Link::default();
        name.clone_into(&mut link.name);
        link.kind = Some(kind.to_owned());
        link
    }

    #[test]
    fn is_abandoned_only_macvtaps_of_ours_without_a_pod() {
        let allocated = BTreeSet::from(["mvtcc7b47d9091b".to_owned()]);
        assert!(is_abandoned(&link("mvt20074e9ae08d", "macvtap"), &allocated));
        assert!(!is_abandoned(&link("mvtcc7b47d9091b", "macvtap"), &allocated));
        assert!(!is_abandoned(&link("mvt20074e9ae08d", "veth"), &allocated));
        assert!(!is_abandoned(&link("macvtap0", "macvtap"), &allocated));
    }
}
