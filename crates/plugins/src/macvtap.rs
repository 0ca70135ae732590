//! `macvtap`: moves the macvtap link that the device plugin created on the host into the pod (cni-plugins §11.2).
//!
//! ```text
//!  kubelet ──Allocate──> device plugin: mvtcc7b47d9091b on the host, /dev/tap7 for the container
//!  multus ──deviceID──> ADD: mvtcc7b47d9091b of the host ──moved──> net1 of the pod, still index 7
//!                            /dev/tap7 ──> owned by the user of the virtual machine
//!  DEL, or a failed ADD: the link is deleted. The next Allocate creates another one
//! ```
//! kubelet has already passed the device path to the container, and the path contains the link's index. A move that
//! changes the index is therefore an error.

mod abandoned;
mod name;
mod node;

use std::{os::fd::AsFd as _, path::Path};

use cni::{
    Error, json,
    plugin::Call,
    result::{CniResult, Dns},
};
use linux::{
    link::{Link, LinkChange, Mac},
    route::Socket,
};
use serde::Deserialize;

use self::node::Owner;
use crate::{
    attach::{
        Addressing, CreatedLink, Inspection, LinkPlugin, LinkRequest, Sandbox, Settings, Stage, Step,
        WireMac, mac,
    },
    config::read_config,
    messages::{Explain as _, NO_DEVICE_ID, NO_MACVTAP_DRIVER},
    names::{
        MACVTAP,
        macvtap::{DRIVER, QEMU},
    },
};

pub use abandoned::{allocated_links, is_abandoned, node_age};
pub use name::link_name;
pub(crate) use node::remove as remove_node;

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MacVtap;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    #[serde(rename = "deviceID")]
    device_id: String,
    mtu: i64,
    promisc_mode: bool,
    owner: Option<u32>,
    group: Option<u32>,
    mac: String,
    dns: Dns,
    runtime_config: WireMac,
}

/// The requested link.
struct Device {
    /// Name of the link on the host. `None` in a NAD, to which multus adds each pod's device.
    name: Option<String>,
    mtu: Option<u32>,
    promiscuous: bool,
    mac: Option<Mac>,
    owner: Owner,
    dns: Dns,
}

impl LinkPlugin for MacVtap {
    fn name(&self) -> &'static str {
        MACVTAP
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        let mtu =
            u32::try_from(wire.mtu).map_err(|_| Error::internal(format!("invalid MTU {}", wire.mtu)))?;
        Ok(Box::new(Device {
            name: Some(wire.device_id)
                .filter(|id| !id.is_empty())
                .map(|id| link_name(&id)),
            mtu: Some(mtu).filter(|mtu| *mtu != 0),
            promiscuous: wire.promisc_mode,
            mac: mac(call, &wire.runtime_config, &wire.mac)?,
            owner: Owner {
                user: wire.owner.unwrap_or(QEMU),
                group: wire.group.unwrap_or(QEMU),
            },
            dns: wire.dns,
        }))
    }

    /// IPAM is unused: the virtual machine behind the link gets its addresses by other means.
    fn addressing(&self) -> Addressing {
        Addressing::None
    }

    fn collect(&self, call: &Call, host: &mut Socket) -> Result<(), Error> {
        abandoned::collect(call, host)
    }
}

impl LinkRequest for Device {
    fn settings(&self) -> Settings {
        Settings {
            dns: Some(self.dns.clone()),
            ..Settings::default()
        }
    }

    fn kind(&self) -> Option<&'static str> {
        Some(MACVTAP)
    }

    fn lease(&self, _call: &Call) -> Result<Option<CniResult>, Error> {
        Ok(None)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        let ifname = stage.call.request.ifname.as_str();
        let device = self.find(&mut stage.host)?;
        let failed = || format!("failed to move iface {} to the netns", device.name);
        // Keeps the device for another ADD.
        if stage.pod.socket.find_link(ifname).explain(failed)?.is_some() {
            return Err(self.occupied(ifname, &[]));
        }
        stage.begin(Step::Link {
            kind: MACVTAP.to_owned(),
            name: device.name.clone(),
            sandbox: Sandbox::of(&stage.pod),
        })?;
        stage
            .host
            .move_link(&device, stage.pod.ns.as_fd(), ifname)
            .explain(failed)?;
        let socket = &mut stage.pod.socket;
        let refetch = || format!("failed to refetch macvtap \"{ifname}\"");
        let moved = socket.link_by_name(ifname).explain(refetch)?;
        require_index(&device, moved.index)?;
        self.set_up(socket, &device, &moved)?;
        socket
            .link_by_name(ifname)
            .explain(refetch)
            .map(CreatedLink::inside)
    }

    fn finish(&mut self, stage: &mut Stage<'_>, link: &Link, _result: &mut CniResult) -> Result<(), Error> {
        node::assign_node(stage, link.index, self.owner)
    }

    fn check_link(&self, _here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != link.mtu) {
            return Err(Error::internal(format!(
                "Error: Tuning configured MTU of {} is {mtu}, current value is {}",
                link.name, link.mtu
            )));
        }
        if self.promiscuous && !link.is_promiscuous() {
            return Err(Error::internal(format!(
                "{} is not in promiscuous mode",
                link.name
            )));
        }
        Ok(())
    }
}

impl Device {
    /// Looks up the device plugin's link.
    fn find(&self, host: &mut Socket) -> Result<Link, Error> {
        let name = self
            .name
            .as_deref()
            .ok_or_else(|| Error::internal(NO_DEVICE_ID))?;
        let looked_up = host
            .link_by_name(name)
            .explain(|| format!("failed to lookup device \"{name}\""));
        match looked_up {
            Ok(link) if !link.is_kind(MACVTAP) => Err(Error::internal(format!(
                "failed to lookup device \"{name}\": not of type {MACVTAP}"
            ))),
            Err(error) if !Path::new(DRIVER).exists() => Err(error.with_details(NO_MACVTAP_DRIVER)),
            found => found,
        }
    }

    /// Applies the config. The error texts are upstream's.
    fn set_up(&self, socket: &mut Socket, device: &Link, moved: &Link) -> Result<(), Error> {
        let mut change = |doing: &'static str, change: LinkChange<'_>, text: &dyn Fn() -> String| {
            if change == LinkChange::default() {
                return Ok(());
            }
            socket.change_link(moved, doing, &change).explain(text)
        };
        let (none, name) = (LinkChange::default(), &device.name);
        let mtu = LinkChange {
            mtu: self.mtu,
            ..none.clone()
        };
        change("set MTU of link", mtu, &|| {
            format!("failed to set the macvtap MTU for {name}")
        })?;
        let mac = LinkChange {
            mac: self.mac,
            ..none.clone()
        };
        change("set MAC of link", mac, &|| {
            format!("failed to add hardware addr to \"{name}\"")
        })?;
        let promiscuous = LinkChange {
            promiscuous: Some(true).filter(|_| self.promiscuous),
            ..none
        };
        change("set promiscuous mode of link", promiscuous, &|| {
            format!("failed to enable promiscous mode on \"{name}\"")
        })
    }
}

/// An error if the link's index no longer matches the device path of the container.
fn require_index(device: &Link, index: u32) -> Result<(), Error> {
    if device.index == index {
        return Ok(());
    }
    Err(Error::internal(format!(
        "failed to move iface {}: its index is {index} in the netns, and the container was promised {}",
        device.name,
        node::path(device.index)
    )))
}
