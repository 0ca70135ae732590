//! A file with the values from before ADD, kept until DEL.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    io::Read as _,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use cni::{Error, files, note::Level, plugin::Call};
use linux::{
    files::{Links, open_regular},
    link::{Link, LinkChange},
    netns::{NetNs, OpenError},
};
use serde::{Deserialize, Serialize};

use super::config::Settings;
use crate::{pod::Pod, record::gc::valid_attachments};

/// Mode of the files and their directory.
const MODE: u32 = 0o600;
/// Maximum file size in bytes. The configured directory may contain arbitrary files.
const LONGEST: u64 = 1 << 20;
/// Suffix of the files, and of temporary files.
const EXTENSION: &str = ".json";
const TEMPORARY: &str = ".tmp";
/// Age at which a temporary file belongs to a killed call.
const STALE: Duration = Duration::from_mins(10);

/// The content of the file. Other implementations ignore unknown keys, and do not write [`Origin`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Backup {
    #[serde(flatten)]
    pub(super) values: Values,
    #[serde(flatten)]
    pub(super) origin: Origin,
}

/// The previous values of the settings that the config changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Values {
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
    /// Sysctl values by path below `/proc/sys`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) sysctl: BTreeMap<String, String>,
}

/// The attachment and namespace of the values. GC needs them, because all networks share the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Origin {
    #[serde(skip_serializing_if = "String::is_empty")]
    network: String,
    /// Path of the namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    netns: String,
    /// [`NetNs::cookie`].
    #[serde(skip_serializing_if = "Option::is_none")]
    netns_cookie: Option<u64>,
}

impl Origin {
    /// The attachment of an ADD.
    pub(super) fn of(call: &Call, pod: &Pod) -> Self {
        Origin {
            network: call.config.name().to_owned(),
            netns: pod.path.clone(),
            netns_cookie: pod.ns.cookie(),
        }
    }

    /// Whether the values belong to this namespace, as far as known.
    pub(super) fn is_of(&self, ns: &NetNs) -> bool {
        match (self.netns_cookie, ns.cookie()) {
            (Some(then), Some(now)) => then == now,
            _ => true,
        }
    }

    /// Whether the namespace is certainly gone.
    fn is_gone(&self) -> bool {
        if self.netns.is_empty() {
            return false;
        }
        match NetNs::open(Path::new(&self.netns)) {
            Ok(ns) => !self.is_of(&ns),
            Err(error) => OpenError::is_gone(&error),
        }
    }
}

impl Values {
    /// The values of `link` that `settings` change.
    pub(super) fn of(settings: &Settings, link: &Link) -> Self {
        Values {
            mac: settings
                .mac
                .and(link.mac)
                .map(|mac| mac.to_string())
                .unwrap_or_default(),
            // "false" only changes a value of "true".
            promisc: settings
                .promisc
                .filter(|on| *on || link.is_promiscuous())
                .map(|_| link.is_promiscuous()),
            mtu: settings.mtu.map(|_| link.mtu),
            allmulti: settings.allmulti.map(|_| link.is_all_multicast()),
            tx_queue_len: settings.tx_queue_len.map(|_| link.tx_queue_len),
            sysctl: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Values::default()
    }

    /// Adds missing values from `later`. In a repeated ADD, the first backup has the original values.
    pub(super) fn or(self, later: Values) -> Values {
        let mut sysctl = later.sysctl;
        sysctl.extend(self.sysctl);
        Values {
            mac: if self.mac.is_empty() { later.mac } else { self.mac },
            promisc: self.promisc.or(later.promisc),
            mtu: self.mtu.or(later.mtu),
            allmulti: self.allmulti.or(later.allmulti),
            tx_queue_len: self.tx_queue_len.or(later.tx_queue_len),
            sysctl,
        }
    }

    /// The ordered changes that restore a link. Separate, so that a failure does not block the others.
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

/// File name for an attachment.
fn name(container_id: &str, ifname: &str) -> String {
    format!("{container_id}_{ifname}{EXTENSION}")
}

/// Path of an attachment's file.
pub(super) fn path(data_dir: &Path, container_id: &str, ifname: &str) -> PathBuf {
    data_dir.join(name(container_id, ifname))
}

/// Writes the file and creates its directory. Not synced, because the namespace does not survive a crash either.
pub(super) fn write(path: &Path, backup: &Backup) -> Result<(), Error> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(MODE).create(folder)?;
        }
        files::write_lazily(path, &text(backup)?, MODE)
    };
    write().map_err(|error| Error::internal(format!("failed to save {}: {error}", path.display())))
}

/// Serializes with an indentation of one space, like upstream.
fn text(backup: &Backup) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    backup.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
    Ok(text)
}

/// Reads the file, if it exists. A file that is no backup returns [`io::ErrorKind::InvalidData`].
fn read(path: &Path) -> io::Result<Option<Backup>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let file = match open_regular(path, Links::Refuse) {
        Ok(file) => file,
        Err(error) if files::is_absent(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(invalid(error.to_string())),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| invalid(error.to_string()))
}

/// The previous values, if known. Removes an invalid file.
pub(super) fn known(call: &Call, path: &Path) -> Option<Backup> {
    match read(path) {
        Ok(backup) => backup,
        Err(error) => {
            let path_shown = path.display();
            call.note(Level::Error, format_args!("cannot read {path_shown}: {error}"));
            if error.kind() == io::ErrorKind::InvalidData {
                forget(call, path);
            }
            None
        }
    }
}

/// Removes the file, if it exists.
pub(super) fn forget(call: &Call, path: &Path) {
    if let Err(error) = files::remove_if_present(path) {
        call.note(
            Level::Error,
            format_args!("cannot remove {}: {error}", path.display()),
        );
    }
}

/// GC: removes the files of this network's invalid attachments whose namespace is gone. While the namespace exists, a
/// DEL may follow.
pub(super) fn collect(call: &Call, data_dir: &Path) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::internal(format!("failed to clean up {}: {error}", data_dir.display()))
    };
    let Some(valid) = valid_attachments(call)? else {
        return Ok(());
    };
    let valid: BTreeSet<String> = valid
        .iter()
        .map(|attachment| name(&attachment.container_id, &attachment.ifname))
        .collect();
    let entries = match fs::read_dir(data_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| failed(&error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let garbage = if name.ends_with(EXTENSION) {
            let ours =
                |backup: Backup| backup.origin.network == call.config.name() && backup.origin.is_gone();
            !valid.contains(&name) && read(&path).is_ok_and(|backup| backup.is_some_and(ours))
        } else {
            is_abandoned(&name, &entry)
        };
        if garbage {
            forget(call, &path);
        }
    }
    Ok(())
}

/// Whether a file is a leftover of an interrupted write.
fn is_abandoned(name: &str, entry: &fs::DirEntry) -> bool {
    let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    name.starts_with('.')
        && name.contains(&format!("{EXTENSION}."))
        && name.ends_with(TEMPORARY)
        && age().is_some_and(|age| age > STALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32) -> Link {
        let mut link = Link::default();
        link.mtu = mtu;
        link
    }

    fn settings(mtu: u32) -> Settings {
        Settings {
            mtu: Some(mtu),
            promisc: Some(true),
            ..Settings::default()
        }
    }

    // cni-plugins#35
    #[test]
    fn backup_contains_only_changed_settings() {
        let values = Values::of(&settings(1400), &link(1500));
        let changes = values.changes();
        let origin = Origin {
            network: "blue".to_owned(),
            netns: "/run/netns/x".to_owned(),
            netns_cookie: Some(u64::MAX),
        };
        let backup = Backup { values, origin };
        let written = String::from_utf8(text(&backup).unwrap()).unwrap();
        assert_eq!(
            written,
            "{\n \"promisc\": false,\n \"mtu\": 1500,\n \"network\": \"blue\",\n \
             \"netns\": \"/run/netns/x\",\n \"netnsCookie\": 18446744073709551615\n}"
        );
        assert_eq!(serde_json::from_str::<Backup>(&written).unwrap(), backup);
        assert_eq!(
            changes,
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
    fn files_of_other_implementations_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "abc", "net1");
        assert_eq!(file, folder.path().join("abc_net1.json"));
        assert_eq!(read(&file).unwrap(), None);
        fs::write(&file, r#"{"mac":"02:00:00:00:00:01","txQLen":7,"new":{"x":1}}"#).unwrap();
        let backup = read(&file).unwrap().unwrap();
        assert_eq!(backup.values.changes().len(), 2);
        assert_eq!(backup.origin, Origin::default());
        assert!(!backup.origin.is_gone(), "unknown");
    }

    #[test]
    fn invalid_backup_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "abc", "net1");
        let huge = format!("{{\"mac\":\"{}\"}}", "x".repeat(2 << 20));
        for text in ["", "nonsense", "[]", r#"{"mtu":"big"}"#, &huge] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_first_values_win() {
        let sysctls = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let mut first = Values::of(&settings(1400), &link(1500));
        first.sysctl = sysctls(&[("a", "0")]);
        let more = Settings {
            tx_queue_len: Some(5),
            ..settings(1300)
        };
        let mut later = Values::of(&more, &link(1400));
        later.sysctl = sysctls(&[("a", "1"), ("b", "2")]);
        let merged = first.or(later);
        assert_eq!((merged.mtu, merged.tx_queue_len), (Some(1500), Some(0)));
        assert_eq!(merged.sysctl, sysctls(&[("a", "0"), ("b", "2")]));
    }

    #[test]
    fn disabling_disabled_modes_changes_nothing() {
        let settings = Settings {
            promisc: Some(false),
            ..Settings::default()
        };
        assert!(Values::of(&settings, &Link::default()).is_empty());
    }
}
