//! What was before ADD, in a file until DEL.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use cni::{Error, files};
use linux::link::{Link, LinkChange};
use serde::{Deserialize, Serialize};

use super::config::Settings;

/// Mode of the files, and of the directory that they are in.
const MODE: u32 = 0o600;

/// Values before the change, only of what the config changes.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue_len: Option<u32>,
    /// Values of files below `/proc/sys`, by path. Other implementations of this plugin skip the key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) sysctl: BTreeMap<String, String>,
}

impl Backup {
    /// Remembers of `link` what `settings` will change.
    pub(super) fn remember(&mut self, settings: &Settings, link: &Link) {
        if settings.mac.is_some() {
            self.mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        }
        // "false" changes something only where it was true.
        self.promisc = settings
            .promisc
            .filter(|on| *on || link.is_promiscuous())
            .map(|_| link.is_promiscuous());
        self.mtu = settings.mtu.map(|_| link.mtu);
        self.allmulti = settings.allmulti.map(|_| link.is_all_multicast());
        self.tx_queue_len = settings.tx_queue_len.map(|_| link.tx_queue_len);
    }

    /// There is nothing to restore.
    pub(super) fn is_empty(&self) -> bool {
        *self == Backup::default()
    }

    /// The changes that restore a link, in their order; each is made on its own, so that one that fails does
    /// not keep the others from being made.
    pub(super) fn changes(&self) -> Vec<LinkChange<'static>> {
        let one = LinkChange::default;
        let changes = [
            LinkChange {
                mtu: self.mtu,
                ..one()
            },
            LinkChange {
                mac: self.mac.parse().ok(),
                ..one()
            },
            LinkChange {
                promiscuous: self.promisc,
                ..one()
            },
            LinkChange {
                all_multicast: self.allmulti,
                ..one()
            },
            LinkChange {
                tx_queue_len: self.tx_queue_len,
                ..one()
            },
        ];
        changes.into_iter().filter(|change| *change != one()).collect()
    }
}

/// The file of an attachment.
pub(super) fn path(data_dir: &Path, container_id: &str, ifname: &str) -> PathBuf {
    data_dir.join(format!("{container_id}_{ifname}.json"))
}

/// Writes the file, and the directory that it is in.
pub(super) fn write(path: &Path, backup: &Backup) -> Result<(), Error> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(MODE).create(folder)?;
        }
        files::write_atomically(path, &text(backup)?, MODE)
    };
    write().map_err(|error| Error::internal(format!("failed to save {}: {error}", path.display())))
}

/// Indented by one space, as the established plugin writes it.
fn text(backup: &Backup) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    backup.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
    Ok(text)
}

/// Reads the file; `None` without one, or with one that says nothing.
pub(super) fn read(path: &Path) -> Option<Backup> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Removes the file, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    files::remove_if_present(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#35
    #[test]
    fn the_file_holds_only_what_is_changed() {
        let settings = Settings {
            mtu: Some(1400),
            promisc: Some(true),
            ..Settings::default()
        };
        let mut link = Link::default();
        link.mtu = 1500;
        let mut backup = Backup::default();
        backup.remember(&settings, &link);
        let written = String::from_utf8(text(&backup).unwrap()).unwrap();
        assert_eq!(written, "{\n \"promisc\": false,\n \"mtu\": 1500\n}");
        assert_eq!(serde_json::from_str::<Backup>(&written).unwrap(), backup);
        assert_eq!(
            backup.changes(),
            [
                LinkChange {
                    mtu: Some(1500),
                    ..LinkChange::default()
                },
                LinkChange {
                    promiscuous: Some(false),
                    ..LinkChange::default()
                }
            ]
        );
    }

    #[test]
    fn files_are_named_after_the_attachment() {
        let path = path(Path::new("/run/cni/tuning"), "abc", "net1");
        assert_eq!(path, PathBuf::from("/run/cni/tuning/abc_net1.json"));
    }

    #[test]
    fn turning_off_what_is_off_is_no_change() {
        let mut backup = Backup::default();
        let settings = Settings {
            promisc: Some(false),
            ..Settings::default()
        };
        backup.remember(&settings, &Link::default());
        assert!(backup.is_empty());
    }
}
