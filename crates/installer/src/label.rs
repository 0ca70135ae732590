//! SELinux labels: installed files get the label of their directory, like files that the node itself writes there.
//!
//! The kernel gives a new file the type of its directory, but the user and the level of the container that wrote it.

use crate::{About, Error};
use rustix::fs::{XattrFlags, getxattr, lgetxattr, lsetxattr};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// The extended attribute that holds the label.
const ATTRIBUTE: &str = "security.selinux";

/// Maximum length of a label in bytes.
const LONGEST: usize = 4096;

/// Sets the label of a directory on a file, or on a symbolic link itself. Without a label on the directory (no SELinux,
/// or a file system without labels) the file stays unchanged.
pub(crate) fn inherit(dir: &Path, path: &Path) -> Result<(), Error> {
    let Some(wanted) = read(|buffer| getxattr(dir, ATTRIBUTE, buffer)).about("read label of", dir)? else {
        return Ok(());
    };
    let found = read(|buffer| lgetxattr(path, ATTRIBUTE, buffer)).about("read label of", path)?;
    if found.as_ref() == Some(&wanted) {
        return Ok(());
    }
    match lsetxattr(path, ATTRIBUTE, &wanted, XattrFlags::empty()) {
        Err(errno) if has_no_labels(errno) => Ok(()),
        outcome => outcome.map_err(Into::into).about("label", path),
    }
}

/// The label, if it exists.
fn read(
    attribute: impl FnOnce(&mut [u8; LONGEST]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = [0; LONGEST];
    match attribute(&mut buffer) {
        Ok(length) => Ok(Some(buffer[..length].to_vec())),
        Err(errno) if errno == Errno::NODATA || has_no_labels(errno) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn has_no_labels(errno: Errno) -> bool {
    errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}
