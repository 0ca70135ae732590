//! CHECK of the bridge and of the pod's port (cni-plugins §3.4).

use cni::{
    Error,
    result::{CniResult, Interface},
};
use linux::{
    link::{Link, PortState},
    route::Socket,
};

use super::config::Config;
use crate::{
    attach::Inspection, check, messages::Explain as _, names::kind, record::AttachmentId, spoof_check,
};

/// Compares the bridge with the config and the result of ADD.
pub(super) fn check_bridge(host: &mut Socket, config: &Config, previous: &CniResult) -> Result<Link, Error> {
    let name = &config.bridge;
    let expected = outside(previous)
        .find(|interface| interface.name == *name)
        .ok_or_else(|| Error::internal(format!("prevResult has no interface \"{name}\"")))?;
    let bridge = host
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))?
        .ok_or_else(|| Error::internal(format!("Bridge interface {name} not found")))?;
    if bridge.bridge.is_none() {
        return Err(Error::internal(format!(
            "Interface {name} does not have link type of bridge"
        )));
    }
    // Compares the MAC only of a gateway: the MAC of another bridge may change with its ports. The gateway of a
    // VLAN is another link.
    let vlan = config.vlans.as_ref().and_then(|vlans| vlans.access);
    if config.is_gateway && vlan.is_none() {
        check::same_mac(&bridge, expected, "Bridge interface")?;
    }
    if bridge.is_promiscuous() != config.promiscuous {
        return Err(Error::internal(format!(
            "Bridge interface {name} configured Promisc Mode {} doesn't match current state: {} ",
            config.promiscuous,
            bridge.is_promiscuous()
        )));
    }
    Ok(bridge)
}

/// Finds the host end: the reported veth whose peer is the pod's link and whose master is the bridge.
fn find_outer(host: &mut Socket, previous: &CniResult, bridge: &Link, inner: &Link) -> Result<Link, Error> {
    for expected in outside(previous).filter(|interface| interface.name != bridge.name) {
        let Some(link) = host
            .find_link(&expected.name)
            .explain(|| format!("failed to lookup \"{}\"", expected.name))?
        else {
            continue;
        };
        let other_end = link.peer == Some(inner.index) && inner.peer == Some(link.index);
        if link.is_kind(kind::VETH) && other_end && link.master == Some(bridge.index) {
            check::same_mac(&link, expected, "Host interface")?;
            return Ok(link);
        }
    }
    Err(Error::internal(format!(
        "CNI veth created for bridge {} was not found",
        bridge.name
    )))
}

/// Compares the pair and the port's rules with the config.
pub(super) fn check_port(
    here: &mut Inspection<'_>,
    config: &Config,
    bridge: &Link,
    inner: &Link,
) -> Result<(), Error> {
    let outer = find_outer(&mut here.host, &here.previous, bridge, inner)?;
    check_settings(&mut here.host, config, &outer)?;
    let Some(mac) = inner.mac.filter(|_| config.spoof_check) else {
        return Ok(());
    };
    let port = spoof_check::Port {
        name: &outer.name,
        mac,
    };
    let key = AttachmentId::of(here.call);
    spoof_check::check(&mut here.rules, key.to(here.call.config.name()), port)
}

fn check_settings(host: &mut Socket, config: &Config, outer: &Link) -> Result<(), Error> {
    let name = &outer.name;
    let wanted = PortState {
        hairpin: config.hairpin,
        isolated: Some(config.isolated),
    };
    let found = outer.port.unwrap_or_default();
    if found.hairpin != wanted.hairpin {
        return Err(Error::internal(format!(
            "Port {name} configured hairpin mode {} doesn't match current state: {}",
            wanted.hairpin, found.hairpin
        )));
    }
    // A kernel without isolation reports none.
    if found.isolated.unwrap_or_default() != config.isolated {
        return Err(Error::internal(format!(
            "Port {name} configured isolation {} doesn't match current state: {}",
            config.isolated,
            found.isolated.unwrap_or_default()
        )));
    }
    let Some(vlans) = &config.vlans else { return Ok(()) };
    let present = host
        .port_vlans(outer)
        .explain(|| format!("failed to list VLANs of \"{name}\""))?;
    match vlans.wanted().into_iter().find(|vlan| !present.contains(vlan)) {
        Some(missing) => Err(Error::internal(format!(
            "Port {name} is not in VLAN {} as configured",
            missing.id
        ))),
        None => Ok(()),
    }
}

/// The host interfaces in a result.
fn outside(previous: &CniResult) -> impl Iterator<Item = &Interface> {
    previous
        .interfaces
        .iter()
        .filter(|interface| interface.sandbox.is_none())
}
