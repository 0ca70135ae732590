//! Finds the configured device by its name, MAC, sysfs path or device ID.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cni::Error;
use linux::{
    link::{InvalidMac, Link, Mac},
    route::Socket,
};

use crate::messages::{Explain as _, NO_DEVICE, NO_PHYSICAL_INTERFACE};

/// Mount point of sysfs.
const SYS: &str = "/sys";
/// Required prefix of a kernel path.
const DEVICES: &str = "/sys/devices/";
/// Drivers that pass a device to user space.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// Prefix of the devices between a PCI device and its network interface.
const VIRTIO: &str = "virtio";

/// The config keys. The first set one decides.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) name: String,
    pub(super) mac: String,
    pub(super) path: String,
    pub(super) pci: String,
    /// From the runtime, replaces `pci`.
    pub(super) id: String,
}

/// The configured device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Device {
    Name(String),
    Mac(Mac),
    Path(PathBuf),
    Pci(String),
    /// A PCI or auxiliary-bus device.
    Id(String),
}

impl Device {
    /// Validates the keys.
    pub(super) fn new(wire: Wire) -> Result<Self, Error> {
        if !wire.name.is_empty() {
            return Ok(Device::Name(wire.name));
        }
        if !wire.mac.is_empty() {
            let invalid = |error: InvalidMac| {
                not_found(&format!("failed to parse MAC address \"{}\": {error}", wire.mac))
            };
            return wire.mac.parse().map(Device::Mac).map_err(invalid);
        }
        if !wire.path.is_empty() {
            let steps_back = wire.path.split('/').any(|step| step == "..");
            if !wire.path.starts_with(DEVICES) || steps_back {
                return Err(not_found(&format!(
                    "kernel device path \"{}\" must be absolute and begin with {DEVICES}",
                    wire.path
                )));
            }
            return Ok(Device::Path(wire.path.into()));
        }
        if !wire.id.is_empty() {
            return Ok(Device::Id(wire.id));
        }
        if wire.pci.is_empty() {
            return Err(Error::internal(NO_DEVICE));
        }
        Ok(Device::Pci(wire.pci))
    }

    /// Whether the device has a user-space driver and therefore no link.
    pub(super) fn has_user_space_driver(&self) -> bool {
        let (Device::Pci(id) | Device::Id(id)) = self else {
            return false;
        };
        let Some(folder) = Bus::Pci.folder(Path::new(SYS), id) else {
            return false;
        };
        let driver = fs::read_link(folder.join("driver")).unwrap_or_default();
        let name = driver.file_name().unwrap_or_default();
        USER_SPACE_DRIVERS.iter().any(|driver| name == *driver)
    }

    /// The device's link on the host.
    pub(super) fn find(&self, host: &mut Socket) -> Result<Link, Error> {
        let by_name = |host: &mut Socket, name: &str| {
            host.link_by_name(name)
                .explain(|| "failed to find host device".to_owned())
        };
        match self {
            Device::Name(name) => by_name(host, name),
            Device::Mac(mac) => {
                let links = host.links().explain(|| "failed to find host device".to_owned())?;
                let found = links.into_iter().find(|link| link.mac == Some(*mac));
                found.ok_or_else(|| not_found(NO_PHYSICAL_INTERFACE))
            }
            placed => by_name(host, &placed.name_in(Path::new(SYS))?),
        }
    }

    /// The name of the network interface in the device's sysfs directory.
    fn name_in(&self, sys: &Path) -> Result<String, Error> {
        let folder = match self {
            Device::Path(path) => Some(path.clone()),
            Device::Pci(id) => Bus::Pci.folder(sys, id),
            Device::Id(id) => {
                let found = Bus::Pci
                    .folder(sys, id)
                    .or_else(|| Bus::Auxiliary.folder(sys, id));
                let text = format!("runtime config DeviceID {id} not found or unsupported");
                Some(found.ok_or_else(|| Error::internal(text))?)
            }
            Device::Name(_) | Device::Mac(_) => None,
        };
        let name = folder.as_deref().and_then(|folder| {
            let direct = first_in(&folder.join("net"), "");
            direct.or_else(|| first_in(&folder.join(first_in(folder, VIRTIO)?).join("net"), ""))
        });
        name.ok_or_else(|| match self {
            Device::Pci(id) => not_found(&format!("no net directory under pci device {id}")),
            _ => not_found(NO_PHYSICAL_INTERFACE),
        })
    }
}

/// A device bus.
#[derive(Debug, Clone, Copy)]
enum Bus {
    Pci,
    Auxiliary,
}

impl Bus {
    /// The folder of a device, if it exists. Rejects identifiers with path separators.
    fn folder(self, sys: &Path, id: &str) -> Option<PathBuf> {
        let bus = match self {
            Bus::Pci => "pci",
            Bus::Auxiliary => "auxiliary",
        };
        if matches!(id, "." | "..") || id.contains(['/', '\0']) {
            return None;
        }
        let folder = sys.join("bus").join(bus).join("devices").join(id);
        folder.is_dir().then_some(folder)
    }
}

/// The first name in a folder with this prefix.
fn first_in(folder: &Path, begin: &str) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(begin)).min()
}

fn not_found(why: &str) -> Error {
    Error::internal(format!("failed to find host device: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: [&str; 5]) -> Result<Device, String> {
        let [name, mac, path, pci, id] = keys.map(str::to_owned);
        let wire = Wire {
            name,
            mac,
            path,
            pci,
            id,
        };
        Device::new(wire).map_err(|error| error.msg)
    }

    #[test]
    fn the_first_key_that_is_given_counts() {
        // cni-plugins#52 (host-device)
        let mac = "02:00:00:00:00:01";
        let path = "/sys/devices/pci0000:00/0000:00:03.0";
        assert_eq!(of(["eth1", mac, path, "p", "i"]), Ok(Device::Name("eth1".into())));
        assert_eq!(
            of(["", mac, path, "p", "i"]),
            Ok(Device::Mac(mac.parse().unwrap()))
        );
        assert_eq!(of(["", "", path, "p", "i"]), Ok(Device::Path(path.into())));
        assert_eq!(of(["", "", "", "p", "i"]), Ok(Device::Id("i".into())));
        assert_eq!(of(["", "", "", "p", ""]), Ok(Device::Pci("p".into())));
        let none = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
        assert_eq!(of([""; 5]), Err(none.into()));
        let mac =
            "failed to find host device: failed to parse MAC address \"x\": address x: invalid MAC address";
        assert_eq!(of(["", "x", "", "", ""]), Err(mac.into()));
        for path in ["sys/devices/a", "/sys/class/net/lo", "/sys/devices/../class"] {
            let text = format!(
                "failed to find host device: kernel device path \"{path}\" must be absolute and begin with /sys/devices/"
            );
            assert_eq!(of(["", "", path, "", ""]), Err(text));
        }
    }

    #[test]
    fn sysfs_path_resolves_to_the_interface() {
        let sys = tempfile::tempdir().unwrap();
        for folder in [
            "bus/pci/devices/0000:00:03.0/net/eth7",
            "bus/pci/devices/0000:00:04.0/virtio3/net/eth8",
            "bus/pci/devices/0000:00:05.0",
            "bus/auxiliary/devices/mlx5_core.sf.4/net/eth9",
        ] {
            fs::create_dir_all(sys.path().join(folder)).unwrap();
        }
        let name = |device: Device| device.name_in(sys.path()).map_err(|error| error.msg);
        let pci = |id: &str| Device::Pci(id.into());
        assert_eq!(name(pci("0000:00:03.0")), Ok("eth7".into()));
        assert_eq!(name(pci("0000:00:04.0")), Ok("eth8".into()));
        for id in ["0000:00:05.0", "0000:00:06.0", "../devices/0000:00:03.0", ".."] {
            let text = format!("failed to find host device: no net directory under pci device {id}");
            assert_eq!(name(pci(id)), Err(text));
        }
        let id = |id: &str| Device::Id(id.into());
        assert_eq!(name(id("0000:00:03.0")), Ok("eth7".into()));
        assert_eq!(name(id("mlx5_core.sf.4")), Ok("eth9".into()));
        let text = "runtime config DeviceID x not found or unsupported";
        assert_eq!(name(id("x")), Err(text.into()));
        let path = Device::Path(sys.path().join("bus/pci/devices/0000:00:03.0"));
        assert_eq!(name(path), Ok("eth7".into()));
    }
}
