//! The leases of a network on disk, in the established format, so that either implementation can go on with what
//! the other left, also by turns (cni-plugins §6).
//!
//! ```text
//! <dataDir>/<network>/lock                 held by flock for every change
//!                     10.1.2.3             a lease: container, line break, interface
//!                     last_reserved_ip.0   the last address of range set 0
//! ```
//!
//! Nothing is flushed to disk: what a crash of the machine takes away belonged to containers that it took away as
//! well, and a lease that it leaves is GC's.
//!
//! Empty files with an address for a name may be what a crash left of a lease by the established plugin, and may as
//! well be what a person put there to keep the address from being used: they stay.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cni::{Error, config::ValidAttachment, files};
use linux::files::{Links, open_directory, open_or_create_regular, open_regular};

use super::{
    index::{Holdings, Index},
    owner::Owner,
    range::parse_ip,
};
use crate::lock;

const DIRECTORY_MODE: u32 = 0o755;
const LOCK: &str = "lock";
const LOCK_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o600;
const LAST_RESERVED: &str = "last_reserved_ip";
/// More than a lease can have, in bytes.
const LEASE_LIMIT: u64 = 4096;

/// The leases of a network, locked.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    directory: File,
    index: Index,
    known: Known,
    /// The index has no stamp any more.
    changed: bool,
    _lock: File,
}

/// The knowledge of owners and their addresses.
#[derive(Debug)]
enum Known {
    /// The index is complete.
    Index,
    /// Everything: all leases were read.
    Leases(Holdings),
    /// Nothing for certain: the index misses something.
    Nothing,
}

impl Store {
    /// Opens and locks the leases of a network. `index` is the directory of all indexes.
    pub(super) fn open(data_dir: &Path, network: &str, index: &Path) -> Result<Self, Error> {
        let path = data_dir.join(network);
        let open = || {
            create_directory(&path)?;
            Self::lock(path.clone(), network, index)
        };
        open().map_err(|error| failed("open", &path, &error))
    }

    /// [`Store::open`] for leases that may not be there.
    pub(super) fn open_existing(data_dir: &Path, network: &str, index: &Path) -> Result<Option<Self>, Error> {
        let path = data_dir.join(network);
        match Self::lock(path.clone(), network, index) {
            Ok(store) => Ok(Some(store)),
            Err(error) if files::is_absent(&error) => Ok(None),
            Err(error) => Err(failed("open", &path, &error)),
        }
    }

    fn lock(path: PathBuf, network: &str, index: &Path) -> io::Result<Self> {
        let directory = open_directory(&path)?;
        let lock = open_lock(&path)?;
        lock::wait_for(&lock, lock::PATIENCE)?;
        let metadata = directory.metadata()?;
        let index = Index::new(index, network, &metadata);
        let mut store = Self {
            path,
            directory,
            index,
            known: Known::Nothing,
            changed: false,
            _lock: lock,
        };
        if store.index.is_complete(&metadata) {
            store.known = Known::Index;
        } else {
            store.scan()?;
        }
        Ok(store)
    }

    /// The addresses of an owner.
    pub(super) fn leases_of(&mut self, owner: &Owner) -> Result<Vec<IpAddr>, Error> {
        if let Known::Index = self.known
            && let Ok(leases) = self.index.get(owner)
            && leases.iter().all(|ip| self.holder(*ip).as_ref() == Some(owner))
        {
            return Ok(leases);
        }
        self.read()?;
        match &self.known {
            Known::Leases(holdings) => Ok(holdings.get(owner).cloned().unwrap_or_default()),
            Known::Index | Known::Nothing => Ok(Vec::new()),
        }
    }

    /// Reads all leases.
    fn read(&mut self) -> Result<(), Error> {
        self.scan().map_err(|error| failed("read", &self.path, &error))
    }

    /// Makes sure by the leases themselves that the index, if it is believed, has not missed any of these owners.
    pub(super) fn verify(&mut self, owners: &[Owner]) -> Result<(), Error> {
        if let Known::Index = self.known {
            let holdings = self
                .read_all()
                .map_err(|error| failed("read", &self.path, &error))?;
            if owners.iter().any(|owner| holdings.contains_key(owner)) {
                self.begin_change();
                self.known = Known::Leases(holdings);
            }
        }
        Ok(())
    }

    /// Every address that has a file.
    pub(super) fn taken(&self) -> Result<BTreeSet<IpAddr>, Error> {
        addresses(&self.path).map_err(|error| failed("read", &self.path, &error))
    }

    /// Gives an address away; `Ok(false)` if somebody has it.
    pub(super) fn lease(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool, Error> {
        self.begin_change();
        let path = self.path.join(ip.to_string());
        // Nobody who has the lock can be faster, and a look is cheaper than a file made in vain.
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(false);
        }
        let created = linux::files::create_whole(&path, owner.content().as_bytes(), FILE_MODE)
            .map_err(cni::error::internal)?;
        if created {
            self.update(owner, |leases| leases.push(ip));
        }
        Ok(created)
    }

    /// Takes addresses back; fine if they are free already. One that fails does not keep the others.
    pub(super) fn release(&mut self, leases: &[IpAddr], owner: &Owner) -> Result<(), Error> {
        self.begin_change();
        let mut errors = Vec::new();
        for ip in leases {
            let path = self.path.join(ip.to_string());
            match files::remove_if_present(&path) {
                Ok(()) => self.update(owner, |leases| leases.retain(|lease| lease != ip)),
                Err(error) => errors.push(failed("remove", &path, &error).msg),
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Error::internal(errors.join(";")))
    }

    /// Takes back what belongs to no valid attachment. Files that no plugin wrote stay.
    pub(super) fn collect(&mut self, valid: &[ValidAttachment]) -> Result<(), Error> {
        self.read()?;
        let Known::Leases(holdings) = &self.known else {
            return Ok(());
        };
        let orphans: Holdings = holdings
            .iter()
            .filter(|(owner, _)| !owner.is_one_of(valid))
            .map(|(owner, leases)| (owner.clone(), leases.clone()))
            .collect();
        let failures: Vec<String> = orphans
            .iter()
            .filter_map(|(owner, leases)| self.release(leases, owner).err())
            .map(|error| error.msg)
            .collect();
        if failures.is_empty() {
            return Ok(());
        }
        Err(Error::internal(failures.join(";")))
    }

    /// The address that was last given away of a range set, if that is known.
    pub(super) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = content(&self.last_reserved_path(set))?;
        parse_ip(text.trim())
    }

    /// Remembers the address that was last given away of a range set. Not worth an atomic write: whatever a kill or a
    /// full disk leaves there only means that the next search begins elsewhere.
    pub(super) fn set_last_reserved(&mut self, set: usize, ip: IpAddr) -> Result<(), Error> {
        let path = self.last_reserved_path(set);
        let text = ip.to_string();
        let write = || {
            // Not emptied before: ext4 waits for the disk when a file that was is closed, which takes longer
            // than all the rest.
            let mut file = open_or_create_regular(&path, FILE_MODE)?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write().map_err(|error| failed("write", &path, &error))
    }

    /// Brings the index up to date. Without it the next call reads the leases, as it does after a kill.
    pub(super) fn finish(self) {
        let complete = match &self.known {
            Known::Leases(holdings) => self.index.rebuild(holdings).is_ok(),
            Known::Index => self.changed,
            Known::Nothing => false,
        };
        if complete {
            // See above.
            let _ = self.index.put_stamp(&self.directory);
        }
    }

    /// Has the index disbelieved by whoever comes next, until [`Store::finish`].
    fn begin_change(&mut self) {
        if !self.changed {
            self.changed = true;
            // A stamp that cannot be taken away is wrong with the first change.
            let _ = self.index.take_stamp();
        }
    }

    /// Changes what is known of an owner.
    fn update(&mut self, owner: &Owner, change: impl FnOnce(&mut Vec<IpAddr>)) {
        match &mut self.known {
            Known::Leases(holdings) => change(holdings.entry(owner.clone()).or_default()),
            Known::Index => {
                let updated = self.index.get(owner).and_then(|mut leases| {
                    change(&mut leases);
                    self.index.put(owner, &leases)
                });
                if updated.is_err() {
                    self.known = Known::Nothing;
                }
            }
            Known::Nothing => {}
        }
    }

    /// From here on everything is known from the leases themselves.
    fn scan(&mut self) -> io::Result<()> {
        if !matches!(self.known, Known::Leases(_)) {
            self.begin_change();
            self.known = Known::Leases(self.read_all()?);
        }
        Ok(())
    }

    fn read_all(&self) -> io::Result<Holdings> {
        let mut holdings = Holdings::new();
        for ip in addresses(&self.path)? {
            if let Some(owner) = self.holder(ip) {
                holdings.entry(owner).or_default().push(ip);
            }
        }
        Ok(holdings)
    }

    /// The owner of an address.
    fn holder(&self, ip: IpAddr) -> Option<Owner> {
        Owner::parse(&content(&self.path.join(ip.to_string()))?)
    }

    fn last_reserved_path(&self, set: usize) -> PathBuf {
        self.path.join(format!("{LAST_RESERVED}.{set}"))
    }
}

/// The content of a small file, if there is one.
fn content(path: &Path) -> Option<String> {
    let file = open_regular(path, Links::Follow).ok()?;
    let mut content = String::new();
    file.take(LEASE_LIMIT).read_to_string(&mut content).ok()?;
    Some(content)
}

/// Whether leases could be written.
pub(super) fn probe(data_dir: &Path, network: &str) -> io::Result<()> {
    let path = data_dir.join(network);
    create_directory(&path)?;
    open_lock(&path)?;
    linux::files::probe(&path).map_err(io::Error::other)
}

fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
}

fn open_lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    match open_regular(&path, Links::Follow) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(LOCK_MODE)
        .open(&path);
    match made {
        // Another call made it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_regular(&path, Links::Follow),
        made => made,
    }
}

/// The files of a directory that are named after an address.
fn addresses(directory: &Path) -> io::Result<BTreeSet<IpAddr>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        found.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<IpAddr>().ok()),
        );
    }
    Ok(found)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let text = format!("failed to {what} {}: {error}", path.display());
    Error::new(lock::code(error), text)
}
