//! `macvlan`: creates a link in the pod with its own MAC on a host link (cni-plugins §9).

use cni::{Error, json, plugin::Call, result::Dns};
use linux::link::{LinkKind, MacVlanMode};
use serde::Deserialize;

use crate::{
    attach::{Child, LinkPlugin, LinkRequest, Parent, WireMac, mac, mode, parent_status},
    config::read_config,
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

impl LinkPlugin for MacVlan {
    fn name(&self) -> &'static str {
        MACVLAN
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        let mode = mode(MACVLAN, &wire.mode, MacVlanMode::Bridge)?;
        let parent = Parent {
            master: wire.master,
            in_container: wire.link_in_container,
            mtu: wire.mtu,
        };
        Ok(Box::new(Child {
            kind: LinkKind::MacVlan {
                mode,
                broadcast_queue: Some(wire.broadcast_queue).filter(|length| *length != 0),
            },
            mac: mac(call, &wire.runtime_config, &wire.mac)?,
            ..Child::macvlan(mode, parent, wire.dns)
        }))
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        parent_status(call)
    }
}
