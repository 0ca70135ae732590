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
mod existing;
mod gateway;
mod layer3;
mod node_defaults;
mod vlans;

use cni::{Error, error::code, plugin::Call};
use linux::route::Socket;

use self::{
    add::Port,
    config::Config,
    existing::{existing_bridge, require_vlans},
};
use crate::{
    attach::{LinkPlugin, LinkRequest, Rules},
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
