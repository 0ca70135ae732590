//! The bridge on the host, and its fitness for a config.

use cni::Error;
use linux::{link::Link, route::Socket};

use super::config::Config;
use crate::messages::Explain as _;

/// An error if the config requests VLANs and the bridge has VLAN filtering off.
pub(super) fn require_vlans(config: &Config, bridge: &Link) -> Result<(), Error> {
    if config.vlans.is_none() || bridge.bridge.is_some_and(|bridge| bridge.vlan_filtering) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "\"{}\" has VLAN filtering turned off, so that VLANs would have no effect",
        bridge.name
    )))
}

/// Looks up a bridge. A link of another kind is an error.
pub(super) fn existing_bridge(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
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
