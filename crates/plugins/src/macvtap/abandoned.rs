//! GC of macvtap links whose device is allocated to no pod (cni-plugins §16).
//!
//! ```text
//! links mvt… of kind macvtap ──> not of an allocated device, by kubelet's checkpoint
//!                            ──> older than a minute, by the device node ──> deleted
//! ```
//!
//! The device plugin creates a link before kubelet records the allocation, hence the minute. Without the checkpoint
//! or the device node, GC deletes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cni::{Error, note::Level, plugin::Call};
use linux::{
    files::{Links, open_regular},
    link::Link,
    route::Socket,
};
use serde::Deserialize;

use super::{
    name::{is_link_name, link_name},
    node,
};
use crate::{
    messages::Explain as _,
    names::{
        MACVTAP,
        macvtap::{CHECKPOINT, RESOURCE_PREFIX},
    },
    veth,
};

/// Maximum size of the checkpoint, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;
/// Minimum age. kubelet may be about to allocate the device of a younger link.
const GRACE: Duration = Duration::from_mins(1);

/// Deletes the links. Logs an unreadable checkpoint.
pub(super) fn collect(call: &Call, host: &mut Socket) -> Result<(), Error> {
    let allocated = match allocated_links(Path::new(CHECKPOINT)) {
        Ok(Some(allocated)) => allocated,
        Ok(None) => return Ok(()),
        Err(error) => {
            let text = format_args!("removed no macvtap without a pod: failed to read {CHECKPOINT}: {error}");
            call.note(Level::Warn, text);
            return Ok(());
        }
    };
    let links = host.links().explain(|| "failed to list links".to_owned())?;
    let age = |link: &Link| node_age(Path::new(&node::path(link.index)));
    let mut outcome = Ok(());
    for link in links.iter().filter(|link| is_abandoned(link, &allocated, age)) {
        outcome = outcome.and(veth::delete(call, host, &link.name));
    }
    outcome
}

/// True for an old macvtap of a device that kubelet has not allocated. `age` is that of its device node: a link without one
/// is not abandoned.
pub fn is_abandoned(
    link: &Link,
    allocated: &BTreeSet<String>,
    age: impl Fn(&Link) -> Option<Duration>,
) -> bool {
    link.is_kind(MACVTAP)
        && is_link_name(&link.name)
        && !allocated.contains(&link.name)
        && age(link).is_some_and(|age| age >= GRACE)
}

/// Age of a device node. `None` without a node.
pub fn node_age(node: &Path) -> Option<Duration> {
    let node = fs::symlink_metadata(node).ok()?;
    let made = UNIX_EPOCH + Duration::from_secs(u64::try_from(node.mtime()).ok()?);
    let is_device = node.file_type().is_char_device();
    SystemTime::now().duration_since(made).ok().filter(|_| is_device)
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

/// A container's devices.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// The link names of all devices that kubelet has allocated, from its checkpoint. `None` without a checkpoint.
pub fn allocated_links(checkpoint: &Path) -> io::Result<Option<BTreeSet<String>>> {
    let file = match open_regular(checkpoint, Links::Follow) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LIMIT {
        let error = format!("more than {LIMIT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    let Checkpoint { data } = serde_json::from_slice(&text)?;
    let entries = data.pod_device_entries.unwrap_or_default().into_iter();
    let ours = entries.filter(|entry| entry.resource_name.starts_with(RESOURCE_PREFIX));
    let devices = ours.flat_map(|entry| entry.device_ids.unwrap_or_default().into_values());
    Ok(Some(
        devices.flatten().flatten().map(|id| link_name(&id)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(text: &str) -> io::Result<Option<BTreeSet<String>>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        fs::write(&path, text).unwrap();
        allocated_links(&path)
    }

    #[test]
    fn allocated_devices_are_those_of_all_pods_and_of_our_resources() {
        let text = r#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"u1","ContainerName":"c","ResourceName":"macvtap.network.kubevirt.io/dataplane","DeviceIDs":{"-1":["dataplaneMvp0"],"0":null},"AllocResp":"CgA="},
            {"PodUID":"u2","ContainerName":"c","ResourceName":"macvtap.network.kubevirt.io/eth0","DeviceIDs":{"0":["eth0Mvp99"]},"AllocResp":""},
            {"PodUID":"u2","ContainerName":"d","ResourceName":"macvtap.network.kubevirt.io/eth0","DeviceIDs":null},
            {"PodUID":"u3","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":{"0":["other"]}}],
            "RegisteredDevices":{"macvtap.network.kubevirt.io/eth0":["eth0Mvp0","eth0Mvp99"]}},"Checksum":4209343482}"#;
        let names = ["mvtcc7b47d9091b", "mvt20074e9ae08d"].map(str::to_owned);
        assert_eq!(allocated(text).unwrap(), Some(names.into()));
        let none = r#"{"Data":{"PodDeviceEntries":null},"Checksum":1}"#;
        assert_eq!(allocated(none).unwrap(), Some(BTreeSet::new()));
        for broken in ["", "null", "{}", "[]", &text[..text.len() / 2]] {
            assert!(allocated(broken).is_err(), "{broken}");
        }
        assert_eq!(allocated_links(Path::new("/nowhere/checkpoint")).unwrap(), None);
    }

    #[test]
    fn link_is_abandoned_when_it_is_old_and_its_device_is_free() {
        let mut link = Link::default();
        link.name = link_name("eth0Mvp0");
        link.kind = Some(MACVTAP.to_owned());
        let (none, own) = (BTreeSet::new(), BTreeSet::from([link.name.clone()]));
        let old = |_: &Link| Some(GRACE);
        assert!(is_abandoned(&link, &none, old));
        assert!(!is_abandoned(&link, &own, old));
        assert!(!is_abandoned(&link, &none, |_| Some(GRACE / 2)));
        assert!(!is_abandoned(&link, &none, |_| None));
        let mut renamed = link.clone();
        renamed.name = "macvtap0".into();
        assert!(!is_abandoned(&renamed, &none, old));
        link.kind = Some("macvlan".into());
        assert!(!is_abandoned(&link, &none, old));
    }
}
