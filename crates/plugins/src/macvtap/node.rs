//! The device node of a macvtap, through which a virtual machine exchanges frames (cni-plugins §11.2).
//!
//! ```text
//!  link net1, index 7 ──sysfs of its namespace──> device 246:3 ──> /dev/tap7 of the host, the path from kubelet
//!                                                                    with devtmpfs: exists, only the owner is changed
//!                                                                    missing or another device: created and recorded
//! ```
//!
//! The kernel recreates the node when the link changes its namespace. If `/dev` is not a devtmpfs, as on nodes in
//! containers, there is no node, or a stale one of an earlier link with this index, which would expose another pod's
//! frames. The device number is therefore compared before the owner is changed.

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

/// Owner of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// The node's path for a link index.
pub(super) fn path(index: u32) -> String {
    format!("{NODE_PREFIX}{index}")
}

/// Sets the owner of the node of the pod's link. Creates the node if the kernel did not.
pub(super) fn assign_node(stage: &mut Stage<'_>, index: u32, owner: Owner) -> Result<(), Error> {
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
        return set_owner(&node, owner).map_err(failed);
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

/// Removes a node that [`assign_node`] created, unless the path now belongs to another device.
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

/// Opens the node at a path if it is of this device. Does not follow symbolic links.
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

/// Sets the owner. The maximum ID means no change.
fn set_owner(node: &OwnedFd, owner: Owner) -> Result<(), Errno> {
    let valid = |id: u32| Some(id).filter(|id| *id != u32::MAX);
    let (user, group) = (
        valid(owner.user).map(Uid::from_raw),
        valid(owner.group).map(Gid::from_raw),
    );
    chownat(node, "", user, group, AtFlags::EMPTY_PATH)
}

/// Creates a node that only its owner can access. Replaces a node of another device.
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
        Some(node) => set_owner(&node, owner),
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
    fn node_of_another_device_is_replaced() {
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
