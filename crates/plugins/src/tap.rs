//! `tap`: creates a link in the pod whose frames a program exchanges, such as a virtual machine (cni-plugins §15).

mod label;

use cni::{Error, json, plugin::Call, result::Dns};
use linux::{
    arp,
    link::{KindState, Link, LinkChange, Mac},
    tap::{TapSpec, create_tap},
};
use serde::Deserialize;

use crate::{
    attach::{
        CreatedLink, Inspection, LinkPlugin, LinkRequest, Sandbox, Settings, Stage, Step, WireMac, mac,
    },
    config::read_config,
    messages::Explain as _,
    names::{TAP, kind},
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tap;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    multi_queue: bool,
    mtu: i64,
    mac: String,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
    dns: Dns,
    runtime_config: WireMac,
}

/// The requested device.
struct Device {
    multi_queue: bool,
    owner: Option<u32>,
    group: Option<u32>,
    /// SELinux label.
    label: String,
    mac: Option<Mac>,
    mtu: Option<u32>,
    /// Name of a bridge in the pod.
    bridge: String,
    dns: Dns,
}

impl LinkPlugin for Tap {
    fn name(&self) -> &'static str {
        TAP
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        Ok(Box::new(Device {
            mac: mac(call, &wire.runtime_config, &wire.mac)?,
            multi_queue: wire.multi_queue,
            owner: wire.owner,
            group: wire.group,
            label: wire.selinux_context,
            mtu: u32::try_from(wire.mtu).ok().filter(|mtu| *mtu > 0),
            bridge: wire.bridge,
            dns: wire.dns,
        }))
    }
}

impl LinkRequest for Device {
    fn settings(&self) -> Settings {
        Settings::with_dns(&self.dns)
    }

    /// `None`: [`KindState::Tap`] is more specific than the kernel's kind.
    fn kind(&self) -> Option<&'static str> {
        None
    }

    fn occupied(&self, ifname: &str, _left: &[Step]) -> Error {
        Error::internal(format!("failed to rename tap to \"{ifname}\": file exists"))
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        let ifname = stage.call.request.ifname.clone();
        let create = || "failed to create tap".to_owned();
        // Avoids the unspecific "invalid argument" for an existing link of another kind.
        if stage.pod.socket.find_link(&ifname).explain(create)?.is_some() {
            return Err(self.occupied(&ifname, &[]));
        }
        stage.begin(Step::Link {
            kind: kind::TUN.to_owned(),
            name: ifname.clone(),
            sandbox: Sandbox::of(&stage.pod),
        })?;
        let spec = TapSpec {
            name: &ifname,
            multi_queue: self.multi_queue,
            owner: self.owner,
            group: self.group,
        };
        let (label, rules) = (self.label.as_str(), &stage.rules);
        stage.pod.inside(|_| match label {
            "" => create_tap(&spec).explain(create),
            label => label::create(rules, &spec, label),
        })?;
        self.set_up(stage, &ifname)
    }

    fn tune(&self, ifname: &str) {
        let _ = arp::enable(ifname);
    }

    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        if link.kind_state != KindState::Tap {
            return Err(Error::internal(format!(
                "Error: Container interface {} not of type tap",
                link.name
            )));
        }
        if self.bridge.is_empty() {
            return Ok(());
        }
        let bridge = self.find_bridge(&mut here.pod.socket)?;
        if link.master == Some(bridge.index) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "{} is no port of bridge {}",
            link.name, self.bridge
        )))
    }
}

impl Device {
    /// Applies the settings that follow the creation.
    fn set_up(&self, stage: &mut Stage<'_>, ifname: &str) -> Result<CreatedLink, Error> {
        let socket = &mut stage.pod.socket;
        let refetch = || format!("failed to refetch tap \"{ifname}\"");
        let link = socket.link_by_name(ifname).explain(refetch)?;
        let change = LinkChange {
            mac: self.mac,
            mtu: self.mtu,
            ..LinkChange::default()
        };
        if change != LinkChange::default() {
            socket
                .change_link(&link, "set MAC and MTU of link", &change)
                .explain(|| "failed to create tap".to_owned())?;
        }
        if !self.bridge.is_empty() {
            let bridge = self.find_bridge(socket)?;
            socket
                .set_master(&link, bridge.index)
                .explain(|| format!("failed to set tap {ifname} as a port of bridge {}", self.bridge))?;
        }
        socket
            .link_by_name(ifname)
            .explain(refetch)
            .map(CreatedLink::inside)
    }

    fn find_bridge(&self, socket: &mut linux::route::Socket) -> Result<Link, Error> {
        socket
            .link_by_name(&self.bridge)
            .explain(|| format!("failed to get bridge {}", self.bridge))
    }
}
