//! The leases of a network on disk, in upstream's format, so that both implementations can use the same files
//! (cni-plugins §6).
//!
//! ```text
//! <dataDir>/<network>/lock                 held by flock for every change
//!                     10.1.2.3             a lease: container, line break, interface
//!                     last_reserved_ip.0   the last address of range set 0
//! ```
//!
//! Files are not synced: a crash of the node loses leases only of containers that it also ended. GC removes remaining
//! leases.
//!
//! Empty files named after an address are kept. They may be leases of upstream's plugin that a crash damaged, or
//! reservations by an administrator.

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
/// Exceeds the maximum length of a lease, in bytes.
const LEASE_LIMIT: u64 = 4096;

/// The leases of a network, locked.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    directory: File,
    index: Index,
    view: LeaseView,
    /// The index is invalidated.
    changed: bool,
    _lock: File,
}

/// The source of owners and their addresses.
#[derive(Debug)]
enum LeaseView {
    /// The complete index.
    Index,
    /// All leases, read from disk.
    Leases(Holdings),
    /// None: the index is incomplete.
    Unknown,
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

    /// Like [`Store::open`]. `None` if the directory does not exist.
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
        lock::wait_for(&lock, lock::TIMEOUT)?;
        let metadata = directory.metadata()?;
        let index = Index::new(index, network, &metadata);
        let mut store = Self {
            path,
            directory,
            index,
            view: LeaseView::Unknown,
            changed: false,
            _lock: lock,
        };
        if store.index.is_complete(&metadata) {
            store.view = LeaseView::Index;
        } else {
            store.scan()?;
        }
        Ok(store)
    }

    /// The addresses of an owner.
    pub(super) fn leases_of(&mut self, owner: &Owner) -> Result<Vec<IpAddr>, Error> {
        if let LeaseView::Index = self.view
            && let Ok(leases) = self.index.get(owner)
            && leases.iter().all(|ip| self.holder(*ip).as_ref() == Some(owner))
        {
            return Ok(leases);
        }
        self.read()?;
        match &self.view {
            LeaseView::Leases(holdings) => Ok(holdings.get(owner).cloned().unwrap_or_default()),
            LeaseView::Index | LeaseView::Unknown => Ok(Vec::new()),
        }
    }

    /// Reads all leases.
    fn read(&mut self) -> Result<(), Error> {
        self.scan().map_err(|error| failed("read", &self.path, &error))
    }

    /// Cross-checks a valid index for these owners with the leases.
    pub(super) fn verify(&mut self, owners: &[Owner]) -> Result<(), Error> {
        if let LeaseView::Index = self.view {
            let holdings = self
                .read_all()
                .map_err(|error| failed("read", &self.path, &error))?;
            if owners.iter().any(|owner| holdings.contains_key(owner)) {
                self.begin_change();
                self.view = LeaseView::Leases(holdings);
            }
        }
        Ok(())
    }

    /// Every address with a file.
    pub(super) fn taken(&self) -> Result<BTreeSet<IpAddr>, Error> {
        addresses(&self.path).map_err(|error| failed("read", &self.path, &error))
    }

    /// Leases an address. `Ok(false)` if it is taken.
    pub(super) fn lease(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool, Error> {
        self.begin_change();
        let path = self.path.join(ip.to_string());
        // The lock excludes a race, and the check is cheaper than a failed create.
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

    /// Releases addresses. A free address is no error. Continues after an error.
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

    /// Releases the leases of invalid attachments. Keeps files that no plugin wrote.
    pub(super) fn collect(&mut self, valid: &[ValidAttachment]) -> Result<(), Error> {
        self.read()?;
        let LeaseView::Leases(holdings) = &self.view else {
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

    /// The last leased address of a range set, if known.
    pub(super) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = content(&self.last_reserved_path(set))?;
        parse_ip(text.trim())
    }

    /// Stores the last leased address of a range set. Not atomic: a damaged file only changes the start of the
    /// next search.
    pub(super) fn set_last_reserved(&mut self, set: usize, ip: IpAddr) -> Result<(), Error> {
        let path = self.last_reserved_path(set);
        let text = ip.to_string();
        let write = || {
            // Not truncated first: closing a truncated file makes ext4 wait for the disk, which dominates the
            // whole call.
            let mut file = open_or_create_regular(&path, FILE_MODE)?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        write().map_err(|error| failed("write", &path, &error))
    }

    /// Completes the index. Otherwise the next call reads the leases, as after an interrupted call.
    pub(super) fn finish(self) {
        let complete = match &self.view {
            LeaseView::Leases(holdings) => self.index.rebuild(holdings).is_ok(),
            LeaseView::Index => self.changed,
            LeaseView::Unknown => false,
        };
        if complete {
            // Best effort, as above.
            let _ = self.index.put_stamp(&self.directory);
        }
    }

    /// Invalidates the index until [`Store::finish`].
    fn begin_change(&mut self) {
        if !self.changed {
            self.changed = true;
            // Best effort: the first change invalidates a remaining stamp.
            let _ = self.index.take_stamp();
        }
    }

    /// Updates the addresses of an owner.
    fn update(&mut self, owner: &Owner, change: impl FnOnce(&mut Vec<IpAddr>)) {
        match &mut self.view {
            LeaseView::Leases(holdings) => change(holdings.entry(owner.clone()).or_default()),
            LeaseView::Index => {
                let updated = self.index.get(owner).and_then(|mut leases| {
                    change(&mut leases);
                    self.index.put(owner, &leases)
                });
                if updated.is_err() {
                    self.view = LeaseView::Unknown;
                }
            }
            LeaseView::Unknown => {}
        }
    }

    /// Reads all leases from disk.
    fn scan(&mut self) -> io::Result<()> {
        if !matches!(self.view, LeaseView::Leases(_)) {
            self.begin_change();
            self.view = LeaseView::Leases(self.read_all()?);
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

    fn holder(&self, ip: IpAddr) -> Option<Owner> {
        Owner::parse(&content(&self.path.join(ip.to_string()))?)
    }

    fn last_reserved_path(&self, set: usize) -> PathBuf {
        self.path.join(format!("{LAST_RESERVED}.{set}"))
    }
}

/// The content of a small file, if it exists.
fn content(path: &Path) -> Option<String> {
    let file = open_regular(path, Links::Follow).ok()?;
    let mut content = String::new();
    file.take(LEASE_LIMIT).read_to_string(&mut content).ok()?;
    Some(content)
}

/// Checks that leases can be written.
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
        // A concurrent call created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_regular(&path, Links::Follow),
        made => made,
    }
}

/// The addresses that files of a directory are named after.
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
