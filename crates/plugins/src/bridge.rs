//! `bridge`: attaches a container to a Linux bridge (cni-plugins §3).
//!
//! ```text
//!   host namespace                                    container namespace
//!   bridge (made if missing) <── veth1a2b3c4d ═══════ net1 <── addresses, routes from IPAM
//!      └─ gateway address, forwarding (isGateway)
//! ```
//!
//! Only what all containers of the bridge share stays: the bridge, its addresses, the pair of a VLAN's gateway.

mod add;
mod check;
mod config;
mod gateway;
mod layer3;
mod node_defaults;
mod vlans;

use cni::{Error, error::code, plugin::Call};
use linux::{link::Link, route::Socket};

use self::{add::Port, config::Config};
use crate::{
    attach::{LinkPlugin, Rules, Wish},
    messages::Explain as _,
    names::BRIDGE,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bridge;

impl LinkPlugin for Bridge {
    fn name(&self) -> &'static str {
        BRIDGE
    }

    fn keys(&self) -> &'static [&'static str] {
        config::keys()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error> {
        Ok(Box::new(Port::new(Config::read(call)?)))
    }

    fn rules(&self, call: &Call) -> Rules {
        Rules::of(call)
    }

    /// Code 50 if ADD could do nothing with the bridge. One that is missing is no obstacle.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        let usable = || {
            let mut host = Socket::open().map_err(cni::error::internal)?;
            match existing_bridge(&mut host, &config.bridge)? {
                Some(bridge) => require_vlans(&config, &bridge),
                None => Ok(()),
            }
        };
        usable().map_err(|error| Error {
            code: code::PLUGIN_NOT_AVAILABLE,
            ..error
        })
    }
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
