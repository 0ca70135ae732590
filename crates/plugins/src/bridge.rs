//! `bridge`: attaches a container to a Linux bridge (cni-plugins §3).
//!
//! ```text
//!   host namespace                                    container namespace
//!   bridge (created on demand) <── veth1a2b3c4d ═════ net1 <── addresses, routes from IPAM
//!      └─ gateway address, forwarding (isGateway)
//! ```
//!
//! After DEL, only the shared resources remain: the bridge, its addresses and the pairs of VLAN gateways.

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
    attach::{LinkPlugin, LinkRequest, Rules},
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

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        Ok(Box::new(Port::new(Config::read(call)?)))
    }

    fn rules(&self, call: &Call) -> Rules {
        Rules::of(call)
    }

    /// Error 50 if the bridge is unusable. A missing bridge is no error.
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

/// An error if the config requests VLANs and the bridge has VLAN filtering off.
fn require_vlans(config: &Config, bridge: &Link) -> Result<(), Error> {
    if config.vlans.is_none() || bridge.bridge.is_some_and(|bridge| bridge.vlan_filtering) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "\"{}\" has VLAN filtering turned off, so that VLANs would have no effect",
        bridge.name
    )))
}

/// Looks up a bridge. A link of another kind is an error.
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
