//! Creates the macvtap of a device, and the device node if the kernel creates none (cni-plugins.md §11.1).
//!
//! ```text
//! device dataplaneMvp0 ──> link mvtcc7b47d9091b on the lower device, index 7 ──> /dev/tap7 ──> container
//! ```
//!
//! The kernel creates the device node if `/dev` is a devtmpfs. Nodes that are containers have no devtmpfs: there, a
//! leftover device node of an earlier link with the same index would lead to the frames of another pod, so the device
//! number of each node is compared.

use crate::names::NODE_PREFIX;
use crate::resource::{Resource, UnknownMode};
use linux::Errno;
use linux::link::{Link, LinkChange, LinkKind, LinkSpec};
use linux::route::Socket;
use linux::tap::{DeviceNumber, macvtap_device};
use plugins::macvtap::link_name;
use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The macvtap of a device cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Mode(#[from] UnknownMode),
    #[error("failed to lookup lowerDevice \"{name}\": {source}")]
    LowerDevice { name: String, source: linux::Error },
    #[error("failed to create macvtap: {0}")]
    Link(#[from] linux::Error),
    #[error("failed to create macvtap: cannot create its device {}: {source}", path.display())]
    Node { path: PathBuf, source: io::Error },
}

/// Creates the macvtap of a device, in place of an earlier one, in the network namespace of the calling thread. Returns
/// the name of the device node in `/dev`. A failure leaves nothing behind.
pub(crate) fn make(id: &str, resource: &Resource, device_dir: &Path) -> Result<String, Error> {
    let mode = resource.mode.clone()?;
    let mut socket = Socket::open()?;
    let lower = socket
        .link_by_name(&resource.lower_device)
        .map_err(|source| Error::LowerDevice {
            name: resource.lower_device.clone(),
            source,
        })?;
    let name = link_name(id);
    if let Some(old) = socket.find_link(&name)? {
        socket.delete_link(&old)?;
    }
    let spec = LinkSpec {
        parent: Some(lower.index),
        ..LinkSpec::new(&name, LinkKind::MacVtap { mode })
    };
    socket.create_link(&spec)?;
    let node = complete(&mut socket, &name, &lower, device_dir);
    if node.is_err()
        && let Err(error) = socket.delete_link_by_name(&name)
    {
        tracing::warn!(link = name, %error, "cannot delete the macvtap of a failed allocation");
    }
    node
}

fn complete(socket: &mut Socket, name: &str, lower: &Link, device_dir: &Path) -> Result<String, Error> {
    let link = socket.link_by_name(name)?;
    let change = LinkChange {
        up: Some(true),
        tx_queue_len: Some(lower.tx_queue_len),
        ..LinkChange::default()
    };
    socket.change_link(&link, "set link up", &change)?;
    let node = format!("{NODE_PREFIX}{}", link.index);
    let path = device_dir.join(&node);
    let number = macvtap_device(link.index)?;
    match provide(&path, number) {
        Ok(()) => Ok(node),
        Err(source) => Err(Error::Node { path, source }),
    }
}

/// Creates a device node for root, unless it exists. Replaces the node of another device.
fn provide(path: &Path, number: DeviceNumber) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if is_device(&found, number) => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let device = makedev(number.major, number.minor);
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::CharacterDevice, mode, device).map_err(|errno: Errno| errno.into())
}

fn is_device(found: &fs::Metadata, number: DeviceNumber) -> bool {
    found.file_type().is_char_device()
        && (major(found.rdev()), minor(found.rdev())) == (number.major, number.minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// The device numbers of `/dev/null` and `/dev/zero`.
    const NULL: DeviceNumber = DeviceNumber { major: 1, minor: 3 };
    const ZERO: DeviceNumber = DeviceNumber { major: 1, minor: 5 };

    #[test]
    fn provide_replaces_the_node_of_another_device() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: device nodes need root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tap7");
        let number = || {
            let found = fs::symlink_metadata(&path).unwrap();
            assert!(found.file_type().is_char_device());
            assert_eq!(found.permissions().mode() & 0o777, 0o600);
            (major(found.rdev()), minor(found.rdev()))
        };
        provide(&path, NULL).unwrap();
        assert_eq!(number(), (1, 3));
        provide(&path, NULL).unwrap();
        provide(&path, ZERO).unwrap();
        assert_eq!(number(), (1, 5));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        provide(&path, ZERO).unwrap();
        assert_eq!(number(), (1, 5));
        assert!(provide(Path::new("/nowhere/tap7"), ZERO).is_err());
    }
}
