//! Deletes macvtaps that were made for pods that never got them.
//!
//! ```text
//! links mvt… of kind macvtap ──> less those of the devices in kubelet's checkpoint ──> deleted
//! ```
//!
//! This happens once, before kubelet can allocate a device. Without a checkpoint that can be read, nothing is deleted.

use crate::link_name::{is_link_name, link_name};
use crate::names::{CHECKPOINT, DOMAIN, MACVTAP};
use linux::files::{Links, open_regular};
use linux::link::Link;
use linux::route::Socket;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::Path;

/// Largest checkpoint that is read, bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Deletes the links in the network namespace of the calling thread. A failure is logged: the links are in nobody's way.
pub(crate) fn sweep(kubelet_dir: &Path) {
    let path = kubelet_dir.join(CHECKPOINT);
    let held = match read(&path) {
        Ok(text) => held_links(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => Err(error),
    };
    let deleted = match held {
        Ok(held) => delete(&held),
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

fn delete(held: &BTreeSet<String>) -> linux::Result<()> {
    let mut socket = Socket::open()?;
    let links = socket.links()?;
    let mut outcome = Ok(());
    for link in links.iter().filter(|link| is_abandoned(link, held)) {
        let deleted = socket.delete_link(link);
        if deleted.is_ok() {
            tracing::info!(link = link.name, "deleted a macvtap that no pod has");
        }
        outcome = outcome.and(deleted);
    }
    outcome
}

fn is_abandoned(link: &Link, held: &BTreeSet<String>) -> bool {
    link.is_kind(MACVTAP) && is_link_name(&link.name) && !held.contains(&link.name)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_regular(path, Links::Refuse)?
        .take(LIMIT + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > LIMIT {
        let error = format!("more than {LIMIT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    Ok(text)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
}

/// Devices of a container.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// Names of the links of all devices that kubelet has given to pods.
fn held_links(text: &[u8]) -> io::Result<BTreeSet<String>> {
    let Checkpoint { data } = serde_json::from_slice(text)?;
    let entries = data.pod_device_entries.unwrap_or_default().into_iter();
    let ours = entries.filter(|entry| {
        let domain = entry.resource_name.split_once('/').map(|(domain, _)| domain);
        domain == Some(DOMAIN)
    });
    let devices = ours.flat_map(|entry| entry.device_ids.unwrap_or_default().into_values());
    Ok(devices.flatten().flatten().map(|id| link_name(&id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u","ContainerName":"c","ResourceName":"macvtap.network.kubevirt.io/dataplane",
         "DeviceIDs":{"-1":["dataplaneMvp0"],"0":null},"AllocResp":"Eg=="},
        {"PodUID":"u","ContainerName":"c","ResourceName":"other.io/dataplane","DeviceIDs":{"-1":["eth0Mvp99"]}}],
        "RegisteredDevices":{}},"Checksum":1}"#;

    fn link(name: &str, kind: &str) -> Link {
        let mut link = Link::default();
        name.clone_into(&mut link.name);
        link.kind = Some(kind.to_owned());
        link
    }

    #[test]
    fn held_links_are_those_of_our_devices() {
        let held = held_links(TEXT.as_bytes()).unwrap();
        assert_eq!(held, BTreeSet::from(["mvtcc7b47d9091b".to_owned()]));
        let empty = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert_eq!(held_links(empty).unwrap(), BTreeSet::new());
        for broken in ["", "{}", "{\"Data\":{\"PodDeviceEntries\":[{}]}}"] {
            assert!(held_links(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn is_abandoned_only_macvtaps_of_ours_without_a_pod() {
        let held = held_links(TEXT.as_bytes()).unwrap();
        assert!(is_abandoned(&link("mvt20074e9ae08d", "macvtap"), &held));
        assert!(!is_abandoned(&link("mvtcc7b47d9091b", "macvtap"), &held));
        assert!(!is_abandoned(&link("mvt20074e9ae08d", "veth"), &held));
        assert!(!is_abandoned(&link("macvtap0", "macvtap"), &held));
    }
}
