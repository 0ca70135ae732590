//! Files that survive a crash.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file atomically and durably: to a temporary file in the same directory, synced, then renamed. A reader,
/// also after a crash, sees either the old or the new content. `mode` is the new file's.
///
/// On failure the temporary file is removed, and the target is unchanged.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace(path, content, mode, File::sync_all)?;
    sync_folder(path)
}

/// Like [`write_atomically`], without waiting for the disk: atomic for readers, but it survives a crash of the node
/// only after [`sync`].
pub fn write_lazily(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace(path, content, mode, |_| Ok(()))
}

/// Waits until a file and its directory entry are on disk.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn replace(
    path: &Path,
    content: &[u8],
    mode: u32,
    flush: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
    // The leading dot hides it from programs that list configs by extension.
    let temporary = folder.join(format!(
        ".{}.{}-{}.tmp",
        name.to_string_lossy(),
        std::process::id(),
        SERIAL.fetch_add(1, Ordering::Relaxed)
    ));
    // Another user may own the directory: never writes through an existing file or link.
    let create = || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)
    };
    let write = || {
        let mut file = match create() {
            // A leftover of a killed process with the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&temporary)?;
                create()?
            }
            created => created?,
        };
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        flush(&file)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // The error of the write is the cause.
        let _ = fs::remove_file(&temporary);
    })
}

/// Creates a directory and its parents with mode 0700. Existing directories are not changed.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether an error means that the file does not or cannot exist: names come from users and may be too long.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
    )
}

/// Removes a file. A missing file is no error.
pub fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if !is_absent(&error) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_temporary_file_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("other"));
        fs::write(&other, "whole").unwrap();
        for serial in 0..50 {
            let temporary = format!(".a.{}-{serial}.tmp", std::process::id());
            std::os::unix::fs::symlink(&other, folder.path().join(temporary)).unwrap();
        }
        write_atomically(&path, b"one", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read(&other).unwrap(), b"whole");
    }

    #[test]
    fn write_replaces_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomically(&path, b"one", 0o600).unwrap();
        write_lazily(&path, b"two", 0o600).unwrap();
        sync(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write_atomically(&folder.path().join("no/such"), b"x", 0o600).is_err());
        remove_if_present(&path).unwrap();
        remove_if_present(&path).unwrap();
        remove_if_present(&folder.path().join("a".repeat(300))).unwrap();
    }
}
