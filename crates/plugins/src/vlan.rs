//! `vlan`: creates a link in the pod for one 802.1Q tag of a host link (cni-plugins §15).

use cni::{Error, json, plugin::Call, result::Dns};
use linux::link::{KindState, LinkKind};
use serde::Deserialize;

use crate::{
    attach::{Addressing, Child, LinkPlugin, LinkRequest, Parent, parent_status},
    config::read_config,
    ipam,
    messages::{IPAM_DELEGATE, NO_MASTER, NO_PLUGIN_NAME},
    names::VLAN,
};

/// Maximum tag. 4095 is reserved.
const LAST: u16 = 4094;

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vlan;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    master: String,
    vlan_id: i64,
    mtu: i64,
    link_in_container: bool,
    dns: Dns,
}

impl LinkPlugin for Vlan {
    fn name(&self) -> &'static str {
        VLAN
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        if wire.master.is_empty() {
            return Err(Error::internal(NO_MASTER));
        }
        let id = u16::try_from(wire.vlan_id).ok().filter(|id| *id <= LAST);
        // Upstream's text: it names 4095, but upstream accepts only up to 4094.
        let id = id.ok_or_else(|| {
            Error::internal(format!(
                "invalid VLAN ID {} (must be between 0 and 4095 inclusive)",
                wire.vlan_id
            ))
        })?;
        if !ipam::is_wanted(call) {
            return Err(Error::internal(format!("{IPAM_DELEGATE}: {NO_PLUGIN_NAME}")));
        }
        Ok(Box::new(Child {
            what: VLAN,
            kind: LinkKind::Vlan { id },
            state: KindState::Vlan(id),
            state_name: "container VLAN ID",
            mac: None,
            parent: Parent {
                master: wire.master,
                in_container: wire.link_in_container,
                mtu: wire.mtu,
            },
            dns: wire.dns,
            announces: false,
            inherited: None,
            ipam_failed: Some(IPAM_DELEGATE),
        }))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Required
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        parent_status(call)
    }
}
