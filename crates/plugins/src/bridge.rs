//! `bridge`: attaches a container to a Linux bridge (cni-plugins §3).
//!
//! ```text
//!   host namespace                                    container namespace
//!   bridge (made if missing) <── veth1a2b3c4d ═══════ net1 <── addresses, routes from IPAM
//!      └─ gateway address, forwarding (isGateway)
//! ```
//!
//! Every step of ADD has its undo and is recorded before it is taken; only what all containers of the bridge share
//! stays: the bridge, its addresses, the pair of a VLAN's gateway.

mod add;
mod check;
mod config;
mod gateway;
mod layer3;
mod node_defaults;
mod remove;
mod steps;
mod vlans;

use cni::{
    Error,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{link::Link, route::Socket};

use self::config::Config;
use crate::{messages::Explain as _, names::BRIDGE, record::Records};

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Whether an ADD would take the config.
pub(crate) fn examine(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        BRIDGE
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        add::add(call)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::del(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        check::status(call)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        remove::gc(call)
    }
}

/// The records of the attachments to a call's network.
fn records(call: &Call) -> Records {
    Records::of(BRIDGE, call)
}

/// An error if the config asks for VLANs and the bridge takes no notice of them.
fn require_vlans(config: &Config, bridge: &Link) -> Result<(), Error> {
    if config.vlans.is_none() || bridge.bridge.is_some_and(|bridge| bridge.vlan_filtering) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "\"{}\" has VLAN filtering turned off, so that VLANs would have no effect",
        bridge.name
    )))
}

/// A link that must be there and be a bridge.
fn existing_bridge(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    let found = host
        .find_link(name)
        .explain(|| format!("could not lookup \"{name}\""))?;
    match found {
        Some(link) if link.bridge.is_none() => Err(Error::internal(format!(
            "\"{name}\" already exists but is not a bridge"
        ))),
        found => Ok(found),
    }
}
