//! TAP devices and macvtaps: links whose other end is the file of a program.

use std::{
    ffi::c_int,
    fs::{File, OpenOptions},
    io::Read as _,
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
};

use rustix::{
    fs::{Mode, OFlags, openat},
    ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::{Errno, Error, Feature, Result};

/// The device that creates them.
const DEVICE: &str = "/dev/net/tun";

/// Requests of `<linux/if_tun.h>`.
const SET_INTERFACE: Opcode = opcode::write::<c_int>(b'T', 202);
const SET_PERSISTENT: Opcode = opcode::write::<c_int>(b'T', 203);
const SET_OWNER: Opcode = opcode::write::<c_int>(b'T', 204);
const SET_GROUP: Opcode = opcode::write::<c_int>(b'T', 206);

/// Flags of `<linux/if_tun.h>`: Ethernet frames, without the header that names their protocol, with the header for
/// virtual machines, and an error if the device exists.
const TAP: u16 = 0x0002;
const NO_PROTOCOL: u16 = 0x1000;
const VNET_HEADER: u16 = 0x4000;
const EXCLUSIVE: u16 = 0x8000;
const MULTI_QUEUE: u16 = 0x0100;

/// Length of a name with its zero byte, bytes.
const NAME: usize = 16;

/// `struct ifreq`, with the flags as the only used member of its union.
#[repr(C)]
struct Interface {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

/// A new device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapSpec<'a> {
    /// Name, 15 bytes at most.
    pub name: &'a str,
    /// Several programs or threads may open the device.
    pub multi_queue: bool,
    /// The user that may open the device; by default only root.
    pub owner: Option<u32>,
    /// The group that may open the device.
    pub group: Option<u32>,
}

/// Creates a persistent TAP device, down, in the network namespace of the calling thread. If the kernel has no TAP
/// devices, the error [`is_unsupported`](Error::is_unsupported).
pub fn create_tap(spec: &TapSpec<'_>) -> Result<()> {
    let failed = |errno: Errno| Error::kernel("create tap", spec.name, errno);
    let bytes = spec.name.as_bytes();
    if bytes.len() >= NAME || bytes.contains(&0) {
        return Err(failed(Errno::INVAL));
    }
    let mut name = [0; NAME];
    name[..bytes.len()].copy_from_slice(bytes);
    let queues = if spec.multi_queue { MULTI_QUEUE } else { 0 };
    let interface = Interface {
        name,
        flags: TAP | NO_PROTOCOL | VNET_HEADER | EXCLUSIVE | queues,
        rest: [0; 22],
    };
    let lacking = Some(Feature::Driver("CONFIG_TUN"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default())
        .open(DEVICE)
        .map_err(|error| {
            Error::io("create tap", spec.name, &error)
                .lacking(Errno::NOENT, lacking)
                .lacking(Errno::NODEV, lacking)
        })?;
    let fd = file.as_fd();
    #[allow(unsafe_code, reason = "no safe interface creates devices of this kind")]
    // SAFETY: the requests are those of the device, each with its type of argument: the first request reads and writes
    // the 40 bytes of an `ifreq`, of which `Setter` passes its own copy; the others take a number.
    unsafe {
        ioctl(fd, Setter::<SET_INTERFACE, Interface>::new(interface)).map_err(failed)?;
        if let Some(owner) = spec.owner {
            ioctl(fd, IntegerSetter::<SET_OWNER>::new_usize(owner as usize)).map_err(failed)?;
        }
        if let Some(group) = spec.group {
            ioctl(fd, IntegerSetter::<SET_GROUP>::new_usize(group as usize)).map_err(failed)?;
        }
        ioctl(fd, IntegerSetter::<SET_PERSISTENT>::new_usize(1)).map_err(failed)?;
    }
    Ok(())
}

/// The number of a character device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNumber {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device.
    pub minor: u32,
}

/// Returns the character device of the macvtap with this index in the network namespace of the calling thread. The
/// kernel assigns another device each time the macvtap changes its namespace.
///
/// A mounted sysfs shows the namespace of its mount, so this mounts a new sysfs without a path (Linux 5.2).
pub fn macvtap_device(index: u32) -> Result<DeviceNumber> {
    let name = format!("tap{index}");
    let failed = |errno: Errno| Error::kernel("look up device of macvtap", name.as_str(), errno);
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    fsconfig_create(sysfs.as_fd()).map_err(failed)?;
    let root = fsmount(
        sysfs.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
    .map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let path = format!("class/macvtap/{name}/dev");
    let mut file = File::from(openat(&root, path, flags, Mode::empty()).map_err(failed)?);
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| Error::io("look up device of macvtap", name.as_str(), &error))?;
    device_number(&text).ok_or_else(|| Error::answer("look up device of macvtap", name.as_str(), text.trim()))
}

/// `246:1`.
fn device_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_number_is_parsed_from_sysfs() {
        let number = |major, minor| Some(DeviceNumber { major, minor });
        assert_eq!(device_number("246:1\n"), number(246, 1));
        for text in ["", "246", "246:", ":1", "246:x", "-1:1"] {
            assert_eq!(device_number(text), None, "{text}");
        }
    }

    #[test]
    fn requests_have_the_numbers_of_the_kernels_header() {
        assert_eq!(size_of::<Interface>(), size_of::<libc::ifreq>());
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(
            [SET_INTERFACE, SET_PERSISTENT, SET_OWNER, SET_GROUP],
            [0x4004_54ca, 0x4004_54cb, 0x4004_54cc, 0x4004_54ce]
        );
    }

    #[test]
    fn invalid_name_is_refused() {
        for name in ["sixteen-letters-", "a\0b"] {
            let spec = TapSpec {
                name,
                multi_queue: false,
                owner: None,
                group: None,
            };
            assert_eq!(create_tap(&spec).unwrap_err().errno(), Some(Errno::INVAL));
        }
    }
}
