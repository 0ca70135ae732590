//! Files that appear with their whole content or not at all, and files under paths that other users chose.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};

use crate::{Errno, Error, Result};

/// Creates a file that readers see only with its content, even if this process is killed. Returns `Ok(false)` if the
/// file exists, and does not change it then.
///
/// File systems without unnamed files have the name first: a kill between two system calls leaves an empty file there.
/// Nothing is flushed to disk.
pub fn create_whole(path: &Path, content: &[u8], mode: u32) -> Result<bool> {
    let outcome = match link_unnamed(path, content, mode) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => create_named(path, content, mode),
        outcome => outcome,
    };
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("create file", path.display().to_string(), &error)),
    }
}

/// Device and inode of a file or directory.
pub type Identity = (u64, u64);

/// Identity of the file at a path, if it exists. Follows symbolic links.
pub fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// True if the directory was deleted while it is mounted or open: nothing can be created in it. A mount of a directory
/// never shows the directory that is created in its place, so only a new container does. A path that does not exist is
/// not deleted.
pub fn is_deleted_directory(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.nlink() == 0)
}

/// Handling of a symbolic link as the last part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// The link is followed.
    Follow,
    /// The link is refused.
    Refuse,
}

/// Opens a regular file for reading, under a path that another user chose. Refuses pipes and terminals at once, because
/// an open or read could block.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the path is no regular file, and the kernel's errors.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let irregular = |cause: &str| io::Error::new(io::ErrorKind::InvalidInput, cause);
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) if links == Links::Refuse => return Err(irregular("a symbolic link")),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(irregular("not a regular file"))
}

/// Opens a regular file for writing without truncation, or creates it, in a directory that another user may own.
/// Follows no link, and never blocks on a pipe.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the path is no regular file, and the kernel's errors.
pub fn open_or_create_regular(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    let file = match open(path, flags, Mode::from_raw_mode(mode)) {
        Ok(file) => File::from(file),
        // A link, a pipe without a reader, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Err(irregular()),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(irregular())
    }
}

/// Opens a directory under a path that another user chose. Refuses other files at once.
///
/// # Errors
/// [`io::ErrorKind::NotADirectory`] if the path is no directory, and the kernel's errors.
pub fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// Checks that files in `folder` can be created and written, and leaves no file. Returns `Ok` too if the file system
/// has no unnamed files, because nothing can be checked then.
pub fn probe(folder: &Path) -> Result<()> {
    match unnamed(folder, b"?", 0o600) {
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(()),
            _ => Err(Error::io("create file in", folder.display().to_string(), &error)),
        },
        Ok(_) => Ok(()),
    }
}

/// Creates a file without a name and writes its content.
fn unnamed(folder: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut file = File::from(open(folder, flags, Mode::from_raw_mode(mode))?);
    file.write_all(content)?;
    Ok(file)
}

/// Creates a file without a name, writes its content, and links it to `path`.
fn link_unnamed(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let file = unnamed(path.parent().ok_or(Errno::INVAL)?, content, mode)?;
    let unnamed = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
    Ok(())
}

fn create_named(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content).inspect_err(|_| {
        // The error of the write is more useful than an error of the clean-up.
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A function that creates a file.
    type Create = fn(&Path, &[u8], u32) -> io::Result<()>;

    #[test]
    fn deleted_directory_is_detected_through_what_holds_it() {
        let root = std::env::temp_dir().join(format!("weft-deleted-{}", std::process::id()));
        let path = root.join("held");
        fs::create_dir_all(&path).unwrap();
        let open = File::open(&path).unwrap();
        let held = format!("/proc/self/fd/{}", open.as_raw_fd());
        let held = Path::new(&held);
        assert!(!is_deleted_directory(held));
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(is_deleted_directory(held));
        assert!(!is_deleted_directory(&path));
        assert!(!is_deleted_directory(&root.join("never was there")));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn open_of_a_file_that_is_not_regular_fails_at_once() {
        // multus#108
        let folder = std::env::temp_dir().join(format!("weft-regular-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.join(name));
        fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        for links in [Links::Follow, Links::Refuse] {
            open_regular(&file, links).unwrap();
            for wrong in [&*pipe, &*folder, Path::new("/dev/ptmx"), Path::new("/dev/null")] {
                let error = open_regular(wrong, links).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", wrong.display());
            }
            let missing = open_regular(&folder.join("none"), links).unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
            open_directory(&folder).unwrap();
            for wrong in [&link, &pipe] {
                let error = open_or_create_regular(wrong, 0o600).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", wrong.display());
            }
            open_or_create_regular(&file, 0o600).unwrap();
            open_or_create_regular(&folder.join("new"), 0o600).unwrap();
            for wrong in [&file, &pipe] {
                assert_eq!(
                    open_directory(wrong).unwrap_err().kind(),
                    io::ErrorKind::NotADirectory
                );
            }
        }
        open_regular(&link, Links::Follow).unwrap();
        assert_eq!(
            open_regular(&link, Links::Refuse).unwrap_err().to_string(),
            "a symbolic link"
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn file_is_created_once_with_its_content() {
        let folder = std::env::temp_dir().join(format!("weft-files-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for (name, create) in [("a", link_unnamed as Create), ("b", create_named)] {
            let path = folder.join(name);
            create(&path, b"one", 0o600).unwrap();
            let again = create(&path, b"two", 0o600).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            assert!(!create_whole(&path, b"three", 0o600).unwrap());
            assert_eq!(fs::read(&path).unwrap(), b"one");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(create_whole(&folder.join("c"), b"three", 0o600).unwrap());
        let error = create_whole(&folder.join("no/such"), b"x", 0o600).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        probe(&folder).unwrap();
        assert!(probe(&folder.join("no")).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}
