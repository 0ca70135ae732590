//! `host-device`: moves a host device into the pod and back (cni-plugins §15).
//!
//! ```text
//!   host: eth1 ──alias "eth1"──> pod: net1 ──name from the record or the alias──> host: eth1
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
use serde::Deserialize;

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
        return_device(&mut host, Some(pod), ifname, &name)
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
/// its namespace is no error. A device that the kernel returned to the host still has its alias.
pub(crate) fn return_device(
    host: &mut Socket,
    pod: Option<Pod>,
    ifname: &str,
    name: &str,
) -> Result<(), Error> {
    if let Some(mut pod) = pod {
        // An interrupted ADD may not have renamed it.
        for current in [ifname, name] {
            let failed = || format!("failed to move link \"{current}\" back to the host");
            let found = pod.socket.find_link(current).explain(failed)?;
            if let Some(link) = found.filter(|link| link.alias.as_deref() == Some(name)) {
                let home = NetNs::current().explain(failed)?;
                pod.socket.set_down(&link).explain(failed)?;
                pod.socket.move_link(&link, home.as_fd(), name).explain(failed)?;
            }
        }
    }
    let failed = || format!("failed to rename the device \"{name}\"");
    let aliased = |link: &Link| link.alias.as_deref() == Some(name);
    let back = match host.find_link(name).explain(failed)?.filter(aliased) {
        Some(link) => Some(link),
        None => host.links().explain(failed)?.into_iter().find(aliased),
    };
    let Some(link) = back else { return Ok(()) };
    if link.name != name {
        host.set_down(&link).explain(failed)?;
        let change = LinkChange {
            name: Some(name),
            ..LinkChange::default()
        };
        host.change_link(&link, "rename link", &change).explain(failed)?;
    }
    set_alias(host, &link, "")
}

fn set_alias(host: &mut Socket, link: &Link, alias: &str) -> Result<(), Error> {
    let change = LinkChange {
        alias: Some(alias),
        ..LinkChange::default()
    };
    host.change_link(link, "set alias of link", &change)
        .explain(|| format!("failed to set alias of \"{}\"", link.name))
}
