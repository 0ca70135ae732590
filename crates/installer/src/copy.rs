//! Files that are written atomically.

use crate::names::{TEMPORARY_PREFIX, TEMPORARY_SUFFIX};
use crate::{About, Error, label};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All users may run a plugin; only root may replace it.
pub(crate) const MODE: u32 = 0o755;

/// Minimum age of a temporary file that an interrupted installer left behind.
pub(crate) const STALE: Duration = Duration::from_mins(10);

/// SHA-256 of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checksum([u8; 32]);

impl Checksum {
    /// Computes the checksum of a file.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let mut file = File::open(path).about("open", path)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = match file.read(&mut buffer) {
                Ok(0) => return Ok(Self(hasher.finalize().into())),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).about("read", path),
            };
            hasher.update(&buffer[..length]);
        }
    }
}

/// Size and times of a file, which show whether it changed since the last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp([i128; 5]);

impl Stamp {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self([
            i128::from(metadata.dev()),
            i128::from(metadata.ino()),
            i128::from(metadata.size()),
            time(metadata.mtime(), metadata.mtime_nsec()),
            time(metadata.ctime(), metadata.ctime_nsec()),
        ])
    }
}

/// A complete and verified copy of a binary under a temporary name in its directory; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Staged {
    dir: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Copies `from` into `dir`, and verifies the written content.
    pub(crate) fn copy(from: &Path, dir: &Path, expected: Checksum) -> Result<Self, Error> {
        let staged = Self {
            dir: dir.to_path_buf(),
            path: temporary(dir),
        };
        write(from, &staged.path)?;
        label::inherit(dir, &staged.path)?;
        if Checksum::of(&staged.path)? == expected {
            Ok(staged)
        } else {
            Err(Error::Corrupt {
                path: staged.path.clone(),
            })
        }
    }

    /// A hard link to a valid file of `dir`, so that it is not stored twice. `None` if the file system has no hard
    /// links.
    pub(crate) fn link(existing: &Path, dir: &Path) -> Option<Self> {
        let path = temporary(dir);
        fs::hard_link(existing, &path).ok()?;
        Some(Self {
            dir: dir.to_path_buf(),
            path,
        })
    }

    /// Installs the binary under a name, and replaces an existing file or link. The names of one staged binary share
    /// their storage.
    pub(crate) fn place(&self, name: &str) -> Result<(), Error> {
        let temporary = temporary(&self.dir);
        if fs::hard_link(&self.path, &temporary).is_err() {
            write(&self.path, &temporary)?;
            label::inherit(&self.dir, &temporary).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
        }
        rename(&temporary, &self.dir.join(name))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // It is gone already, or swept later.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes `path` a symbolic link to `target`, and replaces an existing file or link.
pub(crate) fn link(target: &Path, path: &Path) -> Result<(), Error> {
    let temporary = temporary_link(target, path)?;
    rename(&temporary, path)
}

/// Makes `path` a symbolic link to `target`, unless a file exists there. A file that appears at the same time is kept.
pub(crate) fn link_unless_file(target: &Path, path: &Path) -> Result<(), Error> {
    let temporary = temporary_link(target, path)?;
    match renameat_with(CWD, &temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if !path.is_symlink() => {
            // It is swept later if this fails.
            let _ = fs::remove_file(&temporary);
            Ok(())
        }
        // An existing link, which may be replaced; or a file system that supports only replacing renames.
        Err(_) => rename(&temporary, path),
    }
}

fn temporary_link(target: &Path, path: &Path) -> Result<PathBuf, Error> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let temporary = temporary(dir);
    symlink(target, &temporary).about("link", &temporary)?;
    label::inherit(dir, &temporary).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(temporary)
}

/// Syncs a directory, so that renames in it survive a crash of the node.
pub(crate) fn sync(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).about("sync", dir)
}

/// Deletes the temporary files of interrupted installers.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX);
        let stale = || {
            let changed = fs::symlink_metadata(entry.path()).and_then(|metadata| metadata.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > STALE))
        };
        if ours && stale() {
            // Another installer may have deleted it at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write(from: &Path, to: &Path) -> Result<(), Error> {
    let mut source = File::open(from).about("open", from)?;
    let mut copy = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(to)
        .about("create", to)?;
    let written = io::copy(&mut source, &mut copy)
        .and_then(|_| copy.flush())
        // The umask restricts the mode at creation.
        .and_then(|()| copy.set_permissions(Permissions::from_mode(MODE)))
        .and_then(|()| copy.sync_all());
    written
        .inspect_err(|_| drop(fs::remove_file(to)))
        .about("write", to)
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to)
        .inspect_err(|_| drop(fs::remove_file(from)))
        .about("replace", to)
}

/// A name that no other installer uses: those in other containers may have the same process id.
fn temporary(dir: &Path) -> PathBuf {
    let random = RandomState::new().build_hasher().finish();
    dir.join(format!("{TEMPORARY_PREFIX}{random:016x}{TEMPORARY_SUFFIX}"))
}
