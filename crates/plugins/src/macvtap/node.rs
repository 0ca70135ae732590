//! The device node of a macvtap: the file by which a virtual machine exchanges the link's frames (cni-plugins §11.2).
//!
//! ```text
//!  link net1, index 7 ──sysfs of its namespace──> device 246:3 ──> /dev/tap7 of the host, the path that kubelet gave out
//!                                                                    kernel with devtmpfs: it is there, and is given away
//!                                                                    without, or another device: it is made, and recorded
//! ```
//!
//! The kernel makes the node anew when the link changes its namespace. Where `/dev` is no devtmpfs, as on nodes that are
//! containers, it makes none, and the one of an earlier link of the same index would lead to another pod's frames: a node
//! is never given away before its number was compared.

use std::{fs, io};

use cni::Error;
use linux::{
    Errno,
    tap::{DeviceNumber, macvtap_device},
};
use rustix::{
    fd::OwnedFd,
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, major, makedev, minor, mknodat,
        openat,
    },
};

use crate::{
    attach::{Stage, Step},
    messages::Explain as _,
    names::macvtap::NODE_PREFIX,
};

/// User and group of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// The path of the node of a link with this index.
pub(super) fn path(index: u32) -> String {
    format!("{NODE_PREFIX}{index}")
}

/// Gives the node of the container's link away, and makes it first where the kernel made none.
pub(super) fn hand_over(stage: &mut Stage<'_>, index: u32, owner: Owner) -> Result<(), Error> {
    let (path, ifname) = (path(index), stage.call.request.ifname.as_str());
    let number = stage
        .pod
        .inside(|_| macvtap_device(index).explain(|| format!("failed to find tap device {path}")))?;
    let failed = |error: Errno| {
        let Owner { user, group } = owner;
        let cause = io::Error::from(error);
        Error::internal(format!(
            "failed to change ownership of tap device {path} for iface {ifname} to {user}:{group} because: {cause}"
        ))
    };
    if let Some(node) = open(&path, number).map_err(failed)? {
        return give(&node, owner).map_err(failed);
    }
    stage.begin(Step::Node {
        path: path.clone(),
        major: number.major,
        minor: number.minor,
    })?;
    make(&path, number, owner).map_err(|error| {
        let cause = io::Error::from(error);
        Error::internal(format!("failed to make tap device {path}: {cause}"))
    })
}

/// Removes a node that [`hand_over`] made, unless the path is another device's by now.
pub(crate) fn remove(path: &str, number: DeviceNumber) -> Result<(), Error> {
    let removed = match open(path, number) {
        Ok(Some(_)) => fs::remove_file(path),
        Ok(None) => Ok(()),
        Err(error) => Err(error.into()),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::internal(format!("failed to remove {path}: {error}")))
        }
        _ => Ok(()),
    }
}

/// The node at a path, if it is of this device. Follows no link.
fn open(path: &str, number: DeviceNumber) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let stat = fstat(&file)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (number.major, number.minor);
    Ok(is_device.then_some(file))
}

/// The largest number is nobody's: with it the owner stays.
fn give(node: &OwnedFd, owner: Owner) -> Result<(), Errno> {
    let valid = |id: u32| Some(id).filter(|id| *id != u32::MAX);
    let (user, group) = (
        valid(owner.user).map(Uid::from_raw),
        valid(owner.group).map(Gid::from_raw),
    );
    chownat(node, "", user, group, AtFlags::EMPTY_PATH)
}

/// Makes a node in place of another device's, for its owner alone.
fn make(path: &str, number: DeviceNumber, owner: Owner) -> Result<(), Errno> {
    match rustix::fs::unlink(path) {
        Err(error) if error != Errno::NOENT => return Err(error),
        _ => {}
    }
    let device = makedev(number.major, number.minor);
    mknodat(
        CWD,
        path,
        FileType::CharacterDevice,
        Mode::RUSR | Mode::WUSR,
        device,
    )?;
    match open(path, number)? {
        Some(node) => give(&node, owner),
        None => Err(Errno::NODEV),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

    use super::*;

    /// Of `/dev/null` and `/dev/zero`, which every kernel has.
    const NULL: DeviceNumber = DeviceNumber { major: 1, minor: 3 };
    const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };

    #[test]
    fn node_of_another_device_is_replaced_and_not_given_away() {
        // cni-plugins#70 (owner and group)
        if !rustix::process::geteuid().is_root() {
            println!("skipped: device nodes need root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tap7").display().to_string();
        let owner = Owner {
            user: 107,
            group: 108,
        };
        assert!(open(&path, ZERO).unwrap().is_none());
        make(&path, NULL, owner).unwrap();
        assert!(open(&path, ZERO).unwrap().is_none());
        make(&path, ZERO, owner).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_char_device());
        assert_eq!((found.uid(), found.gid()), (107, 108));
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        remove(&path, NULL).unwrap();
        assert!(open(&path, ZERO).unwrap().is_some());
        remove(&path, ZERO).unwrap();
        remove(&path, ZERO).unwrap();
        assert!(fs::symlink_metadata(&path).is_err());
    }

    #[test]
    fn link_and_regular_file_are_no_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tap7").display().to_string();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(open(&path, ZERO).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(open(&path, ZERO).unwrap().is_none());
        remove(&path, ZERO).unwrap();
        assert!(fs::symlink_metadata(&path).is_ok());
    }
}
