//! `macvlan`: gives a container another Ethernet address on a link of the host (cni-plugins §9).

use cni::{Error, json, plugin::Call, result::Dns};
use linux::{
    arp,
    link::{InvalidMode, KindState, Link, LinkKind, Mac, MacVlanMode},
};
use serde::Deserialize;

use crate::{
    attach::{
        Inspection, LinkPlugin, Made, NewLink, Parent, Settings, Stage, WireMac, Wish, mac, parent_status,
        read_config,
    },
    names::MACVLAN,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MacVlan;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    master: String,
    mode: String,
    mtu: i64,
    mac: String,
    link_in_container: bool,
    #[serde(rename = "bcqueuelen")]
    broadcast_queue: u32,
    dns: Dns,
    runtime_config: WireMac,
}

/// The macvlan that a config asks for.
struct Child {
    parent: Parent,
    mode: MacVlanMode,
    mac: Option<Mac>,
    broadcast_queue: Option<u32>,
    dns: Dns,
}

impl LinkPlugin for MacVlan {
    fn name(&self) -> &'static str {
        MACVLAN
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error> {
        let wire: Wire = read_config(call)?;
        let mode = match wire.mode.as_str() {
            "" => MacVlanMode::Bridge,
            named => named
                .parse()
                .map_err(|InvalidMode(mode)| Error::internal(format!("unknown macvlan mode: \"{mode}\"")))?,
        };
        Ok(Box::new(Child {
            mode,
            mac: mac(call, &wire.runtime_config, &wire.mac)?,
            broadcast_queue: Some(wire.broadcast_queue).filter(|length| *length != 0),
            parent: Parent {
                master: wire.master,
                in_container: wire.link_in_container,
                mtu: wire.mtu,
            },
            dns: wire.dns,
        }))
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        parent_status(call)
    }
}

impl Wish for Child {
    fn settings(&self) -> Settings {
        Settings {
            dns: Some(self.dns.clone()),
            ..Settings::default()
        }
    }

    fn kind(&self) -> Option<&'static str> {
        Some(MACVLAN)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error> {
        let parent = self.parent.find(&mut stage.host, &mut stage.pod)?;
        let link = stage.make_link(&NewLink {
            kind: LinkKind::MacVlan {
                mode: self.mode,
                broadcast_queue: self.broadcast_queue,
            },
            what: MACVLAN,
            mac: self.mac,
            mtu: parent.mtu,
            parent: Some(&parent),
        })?;
        Ok(Made::inside(link))
    }

    fn tune(&self, ifname: &str) {
        let _ = arp::enable(ifname);
    }

    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        self.parent.find(&mut here.host, &mut here.pod).map(drop)
    }

    fn check_link(&self, _here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        match link.kind_state {
            KindState::MacVlan(mode) if mode != self.mode => Err(Error::internal(format!(
                "container macvlan mode {mode} does not match expected value: {}",
                self.mode
            ))),
            _ => Ok(()),
        }
    }
}
