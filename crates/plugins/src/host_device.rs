//! `host-device`: moves a device of the host into a container, and back (cni-plugins §15).
//!
//! ```text
//!   host: eth1 ──alias "eth1"──> container: net1 ──by the alias, or by the record──> host: eth1
//! ```
//!
//! A device that a program of user space drives is no link: it stays where it is, and gets addresses alone.

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
    attach::{LinkPlugin, Made, Sandbox, Settings, Stage, Step, Wish},
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

/// The move that a config asks for.
struct Move {
    device: Device,
    dns: Dns,
    /// The device, once it is known, where it was up: it is up again after an ADD that failed.
    was_up: Option<String>,
}

impl LinkPlugin for HostDevice {
    fn name(&self) -> &'static str {
        HOST_DEVICE
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error> {
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

    /// The device's name on the host is its alias.
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
        give_back(&mut host, Some(pod), ifname, &name)
    }
}

impl Wish for Move {
    fn settings(&self) -> Settings {
        Settings::with_dns(&self.dns)
    }

    fn kind(&self) -> Option<&'static str> {
        None
    }

    fn has_link(&self) -> bool {
        !self.device.is_driven_by_a_program()
    }

    fn occupied(&self, ifname: &str, _left: &[Step]) -> Error {
        Error::internal(format!("failed to move link: \"{ifname}\": file exists"))
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error> {
        if !self.has_link() {
            return Ok(Made {
                link: None,
                outside: Vec::new(),
            });
        }
        let device = self.device.find(&mut stage.host)?;
        let ifname = stage.call.request.ifname.as_str();
        let failed = || format!("failed to move link \"{}\"", device.name);
        // Nothing has happened to the device yet.
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
        Ok(Made::inside(moved))
    }

    fn restore(&mut self, stage: &mut Stage<'_>) {
        if let Some(name) = &self.was_up
            && let Ok(Some(device)) = stage.host.find_link(name)
        {
            // As good as it gets: the error of ADD is the one that counts.
            let _ = stage.host.set_up(&device);
        }
    }
}

/// Brings the device that was called `name` back to the host, where it is down and has no alias. A device that went with
/// its namespace is fine; one that the kernel saved from it has its alias still.
pub(crate) fn give_back(host: &mut Socket, pod: Option<Pod>, ifname: &str, name: &str) -> Result<(), Error> {
    if let Some(mut pod) = pod {
        // A killed ADD may not have come to the new name.
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
