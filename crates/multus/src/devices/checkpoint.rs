//! Kubelet's checkpoint of allocated devices, the fallback without a pod-resources socket.

use super::Devices;
use crate::sandbox::PodRef;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Path below kubelet's directory.
const FILE: &str = "device-plugins/kubelet_internal_checkpoint";
/// Size limit in bytes, equal to the limit of an answer through the socket.
const LIMIT: u64 = 16 * 1024 * 1024;

/// The file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("getPodEntries: error reading file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is malformed.
    #[error("getPodEntries: error unmarshalling {}: {source}", path.display())]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries", default)]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// The devices of a pod in the checkpoint below kubelet's directory.
pub(super) fn devices_of(dir: &Path, pod: &PodRef) -> Result<Devices, Error> {
    let path = dir.join(FILE);
    let text = read(&path).map_err(|source| Error::Read {
        path: path.clone(),
        source,
    })?;
    Devices::of_checkpoint(&text, pod.uid.as_deref()).map_err(|source| Error::Parse { path, source })
}

impl Devices {
    /// The devices of the pod with this UID in the text of a checkpoint. A pod without a UID has none.
    pub fn of_checkpoint(text: &[u8], uid: Option<&str>) -> Result<Self, serde_json::Error> {
        let Checkpoint { data } = serde_json::from_slice(text)?;
        let mut devices = Self::default();
        let entries = data.entries.unwrap_or_default().into_iter();
        for entry in entries.filter(|entry| uid == Some(entry.pod_uid.as_str())) {
            let by_node = entry.device_ids.unwrap_or_default().into_values();
            for device in by_node.flatten().flatten() {
                devices.add(&entry.resource_name, device);
            }
        }
        Ok(devices)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("more than {LIMIT} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pod(uid: &str) -> PodRef {
        PodRef {
            namespace: "ns".into(),
            name: "pod".into(),
            uid: Some(uid.into()),
        }
    }

    fn found(text: &str, uid: &str) -> Result<Devices, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("device-plugins")).unwrap();
        fs::write(dir.path().join(FILE), text).unwrap();
        devices_of(dir.path(), &pod(uid)).map_err(|error| error.to_string())
    }

    fn devices(list: &[(&str, &str)]) -> Devices {
        let mut devices = Devices::default();
        for (resource, device) in list {
            devices.add(resource, (*device).into());
        }
        devices
    }

    const TEXT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u1","ContainerName":"c","ResourceName":"x.io/r","DeviceIDs":{"-1":["b"],"1":["a"]},"AllocResp":"CgA="},
        {"PodUID":"u1","ContainerName":"d","ResourceName":"x.io/r","DeviceIDs":{"0":["c"],"1":null},"AllocResp":""},
        {"PodUID":"u1","ContainerName":"d","ResourceName":"x.io/s","DeviceIDs":null},
        {"PodUID":"u2","ContainerName":"c","ResourceName":"x.io/r","DeviceIDs":{"0":["z"]}}],
        "RegisteredDevices":{"x.io/r":["a","b","c","z"]}},"Checksum":4209343482}"#;

    #[test]
    fn devices_of_other_pods_are_ignored() {
        // multus#24 (the file)
        assert_eq!(
            found(TEXT, "u1"),
            Ok(devices(&[("x.io/r", "a"), ("x.io/r", "b"), ("x.io/r", "c")]))
        );
        assert_eq!(found(TEXT, "u3"), Ok(Devices::default()));
        assert_eq!(
            found(r#"{"Data":{"PodDeviceEntries":null},"Checksum":1}"#, "u1"),
            Ok(Devices::default())
        );
    }

    #[test]
    fn broken_or_missing_file_is_error() {
        // multus#24 (what is no JSON)
        let half = found(&TEXT[..TEXT.len() / 2], "u1").unwrap_err();
        assert!(half.starts_with("getPodEntries: error unmarshalling "), "{half}");
        for text in [
            "",
            "[]",
            "{}",
            "null",
            r#"{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":1}}]}}"#,
        ] {
            assert!(found(text, "u1").is_err(), "{text}");
        }
        let none = devices_of(Path::new("/nowhere"), &pod("u1"))
            .unwrap_err()
            .to_string();
        assert!(
            none.starts_with("getPodEntries: error reading file /nowhere/device-plugins/"),
            "{none}"
        );
    }
}
