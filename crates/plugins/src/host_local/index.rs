//! An index of addresses by owner, so that a call does not read every lease.
//!
//! The index has one symbolic link per owner, whose target lists the owner's addresses. Creating and reading a link
//! each take one system call and are atomic. One more link, the stamp, holds the modification time of the lease
//! directory at which the index was complete. Every change of a lease changes that time, so the index is valid only
//! while both match. Our plugin removes the stamp before a change and adds a new one afterwards. An interrupted call
//! therefore leaves an invalid index.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io,
    net::IpAddr,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    time::SystemTime,
};

use cni::files;

use super::owner::Owner;

/// Name of the stamp. Not a valid owner.
const STAMP: &str = ":stamp";

/// All leases of a network, by owner.
pub(super) type Holdings = BTreeMap<Owner, Vec<IpAddr>>;

/// The index of one lease directory. A cache: the leases are authoritative.
#[derive(Debug)]
pub(super) struct Index {
    folder: PathBuf,
}

impl Index {
    /// The index of a directory, named by device and inode: different paths to one directory share an index, and
    /// different directories at one path do not.
    pub(super) fn new(root: &Path, network: &str, directory: &Metadata) -> Self {
        let folder = root.join(format!("{network}-{:x}-{:x}", directory.dev(), directory.ino()));
        Self { folder }
    }

    /// Whether the index covers all leases in the directory.
    pub(super) fn is_complete(&self, directory: &Metadata) -> bool {
        fs::read_link(self.path(STAMP)).is_ok_and(|stamp| stamp == Path::new(&stamp_of(directory)))
    }

    /// The addresses of an owner, possibly none. An error means that the index is unusable.
    pub(super) fn get(&self, owner: &Owner) -> io::Result<Vec<IpAddr>> {
        let text = match fs::read_link(self.path(&owner.to_string())) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let addresses = text.to_string_lossy();
        addresses
            .split(',')
            .map(|ip| ip.parse().map_err(io::Error::other))
            .collect()
    }

    /// Sets the addresses of an owner.
    pub(super) fn put(&self, owner: &Owner, addresses: &[IpAddr]) -> io::Result<()> {
        let path = self.path(&owner.to_string());
        files::remove_if_present(&path)?;
        if addresses.is_empty() {
            return Ok(());
        }
        let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        symlink(text.join(","), path)
    }

    /// Invalidates the index. Must precede a change of a lease.
    pub(super) fn take_stamp(&self) -> io::Result<()> {
        files::remove_if_present(&self.path(STAMP))
    }

    /// Rebuilds the index.
    pub(super) fn rebuild(&self, holdings: &Holdings) -> io::Result<()> {
        self.clear();
        files::create_private_folder(&self.folder)?;
        let fill = || {
            holdings
                .iter()
                .try_for_each(|(owner, addresses)| self.put(owner, addresses))
        };
        // Frees the space if the index does not fit.
        fill().inspect_err(|_| self.clear())
    }

    /// Declares the index complete.
    pub(super) fn put_stamp(&self, directory: &File) -> io::Result<()> {
        // Sets an explicit time instead of using the last change: before Linux 6.13 file times have a
        // granularity of milliseconds, which hides another change in the same tick. The explicit time is not
        // a tick boundary.
        let now = SystemTime::now();
        directory.set_modified(now)?;
        let metadata = directory.metadata()?;
        if metadata.modified()? != now {
            // The file system has coarser times, which hide changes too: no index.
            return Ok(());
        }
        symlink(stamp_of(&metadata), self.path(STAMP))
    }

    fn clear(&self) {
        // Best effort: a leftover fails the next rebuild.
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn stamp_of(directory: &Metadata) -> String {
    format!("{}.{:09}", directory.mtime(), directory.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(text: &str) -> Owner {
        Owner::parse(text).unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_index_is_complete_until_the_directory_changes() {
        let folder = tempfile::tempdir().unwrap();
        let leases = folder.path().join("leases");
        fs::create_dir(&leases).unwrap();
        let directory = File::open(&leases).unwrap();
        let metadata = || directory.metadata().unwrap();
        let index = Index::new(&folder.path().join("run/index"), "net", &metadata());
        assert!(!index.is_complete(&metadata()));

        let one = owner("abc\r\neth0");
        let addresses = ips(&["10.0.0.1", "fd00::1"]);
        index.rebuild(&[(one.clone(), addresses.clone())].into()).unwrap();
        index.put_stamp(&directory).unwrap();
        assert!(index.is_complete(&metadata()));
        assert_eq!(index.get(&one).unwrap(), addresses);
        assert_eq!(index.get(&one.without_interface()).unwrap(), ips(&[]));
        index.take_stamp().unwrap();
        assert!(!index.is_complete(&metadata()));
        index.put(&one, &ips(&["10.0.0.2"])).unwrap();
        assert_eq!(index.get(&one).unwrap(), ips(&["10.0.0.2"]));
        index.put_stamp(&directory).unwrap();
        assert!(index.is_complete(&metadata()));

        // At once, in the same tick.
        fs::write(leases.join("10.0.0.9"), "def").unwrap();
        assert!(!index.is_complete(&metadata()));
        index.take_stamp().unwrap();
        index.put_stamp(&directory).unwrap();
        assert!(index.is_complete(&metadata()));
        fs::remove_file(leases.join("10.0.0.9")).unwrap();
        assert!(!index.is_complete(&metadata()));

        index.put(&one, &[]).unwrap();
        assert_eq!(index.get(&one).unwrap(), ips(&[]));
        symlink("nonsense", index.path(&one.to_string())).unwrap();
        assert!(index.get(&one).is_err());
        index.rebuild(&Holdings::new()).unwrap();
        assert_eq!(index.get(&one).unwrap(), ips(&[]));
    }

    #[test]
    fn an_index_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = fs::metadata(folder.path()).unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let index = Index::new(&folder.path().join("file"), "net", &metadata);
        assert!(index.rebuild(&Holdings::new()).is_err());
        assert!(index.get(&owner("abc")).is_err());
        assert!(!index.is_complete(&metadata));
        let long = owner(&"a".repeat(300));
        let index = Index::new(folder.path(), "net", &metadata);
        assert!(index.rebuild(&[(long, ips(&["10.0.0.1"]))].into()).is_err());
        assert!(!index.folder.exists(), "nothing stays of a half");
    }
}
