//! `host-device`: moves a host device into the pod and back (cni-plugins §15).
//!
//! ```text
//!   host: eth1 ──alias "eth1"──> pod: net1 ──name from the record or the alias──> host: eth1
//!                                      └── recognised by its hardware, which the pod cannot change
//! ```
//!
//! A device with a user-space driver has no link. It is not moved, and only gets addresses.

mod find;

use std::os::fd::AsFd as _;

use cni::{Error, json, plugin::Call, result::Dns};
use linux::{
    link::{Link, LinkChange},
    netns::NetNs,
    route::Socket,
};
use serde::{Deserialize, Serialize};

use self::find::{Device, Wire as DeviceKeys};
use crate::{
    attach::{CreatedLink, LinkPlugin, LinkRequest, Sandbox, Settings, Stage, Step},
    config::read_config,
    messages::Explain as _,
    names::HOST_DEVICE,
    pod::Pod,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostDevice;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wire {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    dns: Dns,
    #[serde(rename = "runtimeConfig")]
    runtime_config: WireDeviceId,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireDeviceId {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// The properties of a device that a pod cannot change. Virtual devices, kernels before 5.13 and records of older versions
/// have no parent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hardware {
    /// Name of the device on its bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// Its own address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mac: Option<String>,
}

impl Hardware {
    fn of(link: &Link) -> Self {
        Hardware {
            parent: link.parent_device.clone(),
            mac: link.permanent_mac.map(|mac| mac.to_string()),
        }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.parent.is_none()
    }

    /// The device that was called `name` on the host. The alias decides where the hardware is unknown, where the ports of
    /// a card have the same address too, and where the host has changed the address of a virtual function.
    fn find<'a>(&self, links: &'a [Link], name: &str) -> Option<&'a Link> {
        let is_same = |link: &&Link| !self.is_unknown() && Hardware::of(link) == *self;
        let may_be = |link: &&Link| self.is_unknown() || link.parent_device == self.parent;
        let mut same = links.iter().filter(is_same);
        match (same.next(), same.next()) {
            (Some(only), None) => Some(only),
            _ => links.iter().filter(may_be).find(|link| is_aliased(link, name)),
        }
    }
}

fn is_aliased(link: &Link, name: &str) -> bool {
    link.alias.as_deref() == Some(name)
}

/// The requested move.
struct Move {
    device: Device,
    dns: Dns,
    /// Name of the device if it was up before the move. A failed ADD sets it up again.
    was_up: Option<String>,
}

impl LinkPlugin for HostDevice {
    fn name(&self) -> &'static str {
        HOST_DEVICE
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        Ok(Box::new(Move {
            device: Device::new(DeviceKeys {
                name: wire.device,
                mac: wire.hwaddr,
                path: wire.kernelpath,
                pci: wire.pci_bus_id,
                id: wire.runtime_config.device_id,
            })?,
            dns: wire.dns,
            was_up: None,
        }))
    }

    /// The device's alias holds its name on the host.
    fn remove_unrecorded(&self, call: &Call) -> Result<(), Error> {
        let ifname = &call.request.ifname;
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        let found = pod.socket.find_link(ifname);
        let Some(link) = found.explain(|| format!("failed to find \"{ifname}\""))? else {
            return Ok(());
        };
        let name = link.alias.ok_or_else(|| {
            Error::internal(format!(
                "failed to find original ifname for \"{ifname}\" (alias is not set)"
            ))
        })?;
        let mut host = Socket::open().map_err(cni::error::internal)?;
        return_device(&mut host, Some(pod), ifname, &name, &Hardware::default())
    }
}

impl LinkRequest for Move {
    fn settings(&self) -> Settings {
        Settings::with_dns(&self.dns)
    }

    fn kind(&self) -> Option<&'static str> {
        None
    }

    fn has_link(&self) -> bool {
        !self.device.has_user_space_driver()
    }

    fn occupied(&self, ifname: &str, _left: &[Step]) -> Error {
        Error::internal(format!("failed to move link: \"{ifname}\": file exists"))
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        if !self.has_link() {
            return Ok(CreatedLink {
                link: None,
                outside: Vec::new(),
            });
        }
        let device = self.device.find(&mut stage.host)?;
        let ifname = stage.call.request.ifname.as_str();
        let failed = || format!("failed to move link \"{}\"", device.name);
        // The device is unchanged so far.
        if stage.pod.socket.find_link(ifname).explain(failed)?.is_some() {
            return Err(self.occupied(ifname, &[]));
        }
        stage.begin(Step::Device {
            name: device.name.clone(),
            sandbox: Sandbox::of(&stage.pod),
            hardware: Hardware::of(&device),
        })?;
        self.was_up = device.is_up().then(|| device.name.clone());
        set_alias(&mut stage.host, &device, &device.name)?;
        stage
            .host
            .move_link(&device, stage.pod.ns.as_fd(), ifname)
            .explain(failed)?;
        let moved = stage.pod.socket.link_by_name(ifname).explain(failed)?;
        Ok(CreatedLink::inside(moved))
    }

    fn restore(&mut self, stage: &mut Stage<'_>) {
        if let Some(name) = &self.was_up
            && let Ok(Some(device)) = stage.host.find_link(name)
        {
            // Best effort: ADD reports its own error.
            let _ = stage.host.set_up(&device);
        }
    }
}

/// Returns the device to the host under its old name `name`, down and without alias. A device that was deleted with
/// its namespace is no error. The kernel may have returned the device to the host under another name.
pub(crate) fn return_device(
    host: &mut Socket,
    pod: Option<Pod>,
    ifname: &str,
    name: &str,
    hardware: &Hardware,
) -> Result<(), Error> {
    if let Some(mut pod) = pod {
        let failed = || format!("failed to move link \"{ifname}\" back to the host");
        let mut links = pod.socket.links().explain(failed)?;
        if hardware.is_unknown() {
            // An interrupted ADD may not have renamed it.
            links.retain(|link| link.name == ifname || link.name == name);
            links.sort_by_key(|link| link.name != ifname);
        }
        let mut found = hardware.find(&links, name);
        // The pod has changed its alias.
        if found.is_none() && hardware.is_unknown() && host.find_link(name).explain(failed)?.is_none() {
            found = links.iter().find(|link| link.name == ifname);
        }
        if let Some(link) = found {
            let home = NetNs::current().explain(failed)?;
            pod.socket.set_down(link).explain(failed)?;
            pod.socket.move_link(link, home.as_fd(), name).explain(failed)?;
            let moved = host.link_by_name(name).explain(failed)?;
            return set_alias(host, &moved, "");
        }
    }
    let failed = || format!("failed to rename the device \"{name}\"");
    let mut links = host.links().explain(failed)?;
    // The kernel sets a device down when it returns it. The host uses a device that is up.
    links.retain(|link| !link.is_up() || is_aliased(link, name));
    let Some(link) = hardware.find(&links, name) else {
        return Ok(());
    };
    if link.name != name {
        host.set_down(link).explain(failed)?;
        let change = LinkChange {
            name: Some(name),
            ..LinkChange::default()
        };
        host.change_link(link, "rename link", &change).explain(failed)?;
    }
    set_alias(host, link, "")
}

fn set_alias(host: &mut Socket, link: &Link, alias: &str) -> Result<(), Error> {
    let change = LinkChange {
        alias: Some(alias),
        ..LinkChange::default()
    };
    host.change_link(link, "set alias of link", &change)
        .explain(|| format!("failed to set alias of \"{}\"", link.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, alias: &str, parent: &str, mac: &str) -> Link {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let mut link = Link::default();
        name.clone_into(&mut link.name);
        link.alias = text(alias);
        link.parent_device = text(parent);
        link.permanent_mac = mac.parse().ok();
        link
    }

    #[test]
    fn device_is_recognised_by_its_hardware() {
        let (mac, other) = ("00:00:5e:00:53:01", "00:00:5e:00:53:02");
        let links = [
            link("net1", "eth1", "", ""),
            // Another port of the same card.
            link("net2", "eth1", "0000:03:00.0", other),
            link("renamed", "x", "0000:03:00.0", mac),
            link("net3", "eth3", "0000:03:02.0", other),
            // A VLAN of the first port.
            link("net4", "x", "", mac),
            // Ports of a switch.
            link("net5", "lan1", "switch0", mac),
            link("net6", "lan2", "switch0", mac),
        ];
        let found = |parent: &str, mac: &str, name: &str| {
            let hardware = Hardware::of(&link("", "", parent, mac));
            hardware.find(&links, name).map(|link| link.name.as_str())
        };
        assert_eq!(found("0000:03:00.0", mac, "eth1"), Some("renamed"));
        assert_eq!(found("0000:03:00.0", other, "eth1"), Some("net2"));
        // The host has set the address of the virtual function since.
        assert_eq!(found("0000:03:02.0", mac, "eth3"), Some("net3"));
        assert_eq!(found("0000:03:02.0", mac, "eth1"), None);
        assert_eq!(found("switch0", mac, "lan2"), Some("net6"));
        assert_eq!(found("switch0", mac, "lan3"), None);
        // Virtual.
        assert_eq!(found("", mac, "eth1"), Some("net1"));
        assert_eq!(found("", mac, "eth9"), None);
    }
}
