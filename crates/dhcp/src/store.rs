//! Leases on disk, one file each, so that a restarted daemon continues them.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use linux::link::Mac;
use plugins::dhcp::wire::{Allocation, Attachment};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::changes::Change;
use crate::clock::Time;
use crate::lease::Lease;
use crate::machine::Held;
use crate::names::LEASE_EXTENSION;
use crate::place::Identity;

/// Maximum size of a file in bytes.
const LARGEST: u64 = 1 << 20;
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The stored state of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) allocation: Allocation,
    /// The link of the lease.
    pub(crate) identity: Identity,
    /// MAC address of the sender of the server's answers: the server itself, or its relay.
    pub(crate) station: [u8; 6],
    pub(crate) lease: Lease,
    /// Changes to this lease that the link may lack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lacking: Vec<Change>,
    /// Start of the lease: time since the boot of the machine.
    pub(crate) since: Time,
}

impl Record {
    pub(crate) fn held(&self) -> Held {
        Held {
            lease: self.lease.clone(),
            since: self.since,
        }
    }

    pub(crate) fn station(&self) -> Mac {
        Mac(self.station)
    }
}

/// The directory of the leases.
#[derive(Debug, Clone)]
pub(crate) struct Store(PathBuf);

impl Store {
    /// Opens the directory, and creates it if necessary.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE).create(&folder)?;
        Ok(Self(folder))
    }

    /// Writes a record. It replaces the attachment's earlier one.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let content = serde_json::to_vec(record)?;
        cni::files::write_atomically(&self.path(&record.allocation.attachment), &content, MODE)
    }

    /// Removes the attachment's record, if there is one.
    pub(crate) fn remove(&self, attachment: &Attachment) -> io::Result<()> {
        match fs::remove_file(self.path(attachment)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All records. Other files are removed with a warning: they are useless. A killed daemon may leave a whole record
    /// under a temporary name, of a lease that has another record or was not used.
    pub(crate) fn read(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let shown = path.display();
            match read(&path) {
                Ok(record) if path == self.path(&record.allocation.attachment) => {
                    records.push(record);
                    continue;
                }
                Ok(_) => tracing::warn!(path = %shown, "removing a lease under another name"),
                Err(error) => tracing::warn!(%error, path = %shown, "removing a file that is not a lease"),
            }
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, path = %shown, "cannot remove the file");
            }
        }
        Ok(records)
    }

    /// The file's name is a digest: names of attachments may be longer than a file name.
    fn path(&self, attachment: &Attachment) -> PathBuf {
        let Attachment {
            container,
            network,
            ifname,
        } = attachment;
        let digest = Sha256::digest(format!("{container}/{network}/{ifname}"));
        let name: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(name).with_extension(LEASE_EXTENSION)
    }
}

fn read(path: &Path) -> io::Result<Record> {
    if fs::metadata(path)?.len() > LARGEST {
        return Err(io::Error::new(ErrorKind::InvalidData, "the file is too large"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

#[cfg(test)]
mod tests {
    use dhcproto::v4::DhcpOption;

    use super::*;
    use crate::lease::tests::ack;
    use crate::message::tests::allocation;

    fn record(container: &str) -> Record {
        Record {
            allocation: allocation(container),
            identity: Identity::default(),
            station: [2, 0, 0, 0, 0, 1],
            lease: Lease::read(&ack([DhcpOption::SubnetMask([255, 255, 255, 0].into())])).unwrap(),
            lacking: Vec::new(),
            since: Time::from_secs(7),
        }
    }

    #[test]
    fn a_record_is_read_again_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("made")).unwrap();
        let [long, other] = [&*"c".repeat(300), "other"].map(record);
        for record in [&long, &other, &other] {
            store.write(record).unwrap();
        }
        store.remove(&other.allocation.attachment).unwrap();
        store.remove(&other.allocation.attachment).unwrap();
        assert_eq!(store.read().unwrap(), [long]);
    }

    #[test]
    fn other_files_are_removed_and_hide_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_owned()).unwrap();
        let (path, new) = (|name: &str| folder.path().join(name), record("c"));
        fs::write(path("half.json"), "{\"allocation\"").unwrap();
        // What a daemon leaves that is killed before it renames the file.
        let old = Record {
            since: Time::from_secs(1),
            ..new.clone()
        };
        fs::write(path(".c.json.7-0.tmp"), serde_json::to_vec(&old).unwrap()).unwrap();
        fs::create_dir(path("a.json")).unwrap();
        store.write(&new).unwrap();
        assert_eq!(store.read().unwrap(), [new]);
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "the record and the directory");
    }
}
