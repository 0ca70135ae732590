//! `bridge`: attaches a container to a Linux bridge (cni-plugins §3).
//!
//! ```text
//!   host namespace                                    container namespace
//!   bridge (made if missing) <── veth1a2b3c4d ═══════ net1 <── addresses, routes from IPAM
//!      └─ gateway address, forwarding (isGateway)
//! ```
//!
//! Every step of ADD has its undo; only a bridge that was made stays.

mod add;
mod check;
mod config;
mod gateway;
mod layer3;
mod node_defaults;
mod vlans;

use cni::{
    Error,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{link::Link, route::Socket};

use crate::{ipam, messages::Explain as _, names::BRIDGE, pod::Pod};

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
        // The config is deliberately not read beyond what IPAM needs: whatever made ADD fail must not keep a
        // pod from going.
        if let Some(mut pod) = Pod::find_remaining(call)? {
            let ifname = &call.request.ifname;
            match pod.socket.delete_link_by_name(ifname) {
                Err(error) if !error.is_not_found() => {
                    return Err(error).explain(|| format!("failed to delete \"{ifname}\""));
                }
                _ => {}
            }
        }
        ipam::del(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        ipam::status(call)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        ipam::gc(call)
    }
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
